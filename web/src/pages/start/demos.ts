/** List of the demos. A new demo page needs an entry here and a line in vite.config.ts. */
export const DEMOS = [
  {
    path: '/carcare',
    name: 'CarCare',
    description: 'A live map of cars. Switch the transport while they drive: no message is lost.',
  },
  {
    path: '/chat',
    name: 'Chat',
    description: 'Channels, history, members. Messages written offline are sent once, in order.',
  },
  {
    path: '/race',
    name: 'Race',
    description: 'The same ticks over seven transports. Cut, delay or throttle one.',
  },
  {
    path: '/ticker',
    name: 'Ticker',
    description: 'Live prices, and how old each one is, over the transport that you choose.',
  },
  {
    path: '/rooms',
    name: 'Rooms',
    description: 'Video calls with live topology, statistics and quality diagnosis.',
  },
  {
    path: '/gateway',
    name: 'Gateway',
    description: 'A browser tab that forwards messages between devices.',
  },
  {
    path: '/ball',
    name: 'Ball',
    description: 'Pick a color: firmware on a simulated microcontroller lights two lamps.',
  },
  {
    path: '/arm',
    name: 'Arm',
    description: 'Ten wearers: a movement of one makes the others vibrate.',
  },
  {
    path: '/battery',
    name: 'Battery',
    description: 'Battery life of a phone that forwards the messages of devices.',
  },
] as const;
