/** The menu of what can be tried. A new demo page is a new entry here and a line in vite.config.ts. */
export const DEMOS = [
  {
    path: '/carcare',
    name: 'CarCare',
    says: 'A fleet on the map, on your phone. Switch the transport while you drive: no record is lost.',
  },
  {
    path: '/rooms',
    name: 'Rooms',
    says: 'A call between browsers, with its topology, its figures, and why it is bad.',
  },
  {
    path: '/gateway',
    name: 'Gateway',
    says: 'A tab that forwards between devices: one to one, many messages as one, one as many.',
  },
] as const;
