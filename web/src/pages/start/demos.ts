/** List of the demos. A new demo page needs an entry here and a line in vite.config.ts. */
export const DEMOS = [
  {
    path: '/carcare',
    name: 'CarCare',
    says: 'A fleet of cars on a live map, on your phone, too. Change the transport while they drive: no record is lost.',
  },
  {
    path: '/rooms',
    name: 'Rooms',
    says: 'Video calls with live topology, statistics and quality diagnosis.',
  },
  {
    path: '/gateway',
    name: 'Gateway',
    says: 'A browser tab that forwards messages between devices around it, and bundles or splits them on the way.',
  },
] as const;
