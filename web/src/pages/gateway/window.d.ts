import type { Hall } from './hall';
import type { Wearers } from './wearers';

declare global {
  interface Window {
    /** The gateway in this page, for tests and debugging. */
    gateway?: Hall;
    /** The simulated devices in this page. */
    wearers?: Wearers;
  }
}
