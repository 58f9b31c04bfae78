/** List of the demos. A new demo page needs an entry here and a line in vite.config.ts. */
export const DEMOS = [
  {
    path: '/carcare',
    name: 'CarCare',
    description: 'A live map of a fleet of cars. Switch the transport while the cars drive: no message is lost.',
  },
  {
    path: '/rooms',
    name: 'Rooms',
    description: 'Video calls with live topology, statistics and quality diagnosis.',
  },
  {
    path: '/gateway',
    name: 'Gateway',
    description: 'A browser tab that forwards messages between devices, one by one or in bundles.',
  },
  {
    path: '/ball',
    name: 'Ball',
    description: 'Two color LEDs of a kit: pick a color, and firmware on a simulated microcontroller lights the lamps.',
  },
  {
    path: '/arm',
    name: 'Arm',
    description: 'Ten wearers: each movement of one makes the others vibrate, over the topology that you choose.',
  },
  {
    path: '/battery',
    name: 'Battery',
    description: 'Battery life of a phone that forwards the messages of devices, by a model fitted to measurements.',
  },
] as const;
