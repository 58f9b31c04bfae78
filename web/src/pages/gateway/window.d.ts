import type { GatewayHost } from './gateway-host';
import type { SimulatedDevices } from './simulated-devices';

declare global {
  interface Window {
    /** The gateway in this page, for tests and debugging. */
    gateway?: GatewayHost;
    /** The simulated devices in this page. */
    devices?: SimulatedDevices;
  }
}
