import type { Received } from './live';

declare global {
  interface Window {
    /** Received deliveries, for tests and debugging. */
    carcare?: { readonly received: readonly Received[]; readonly transport: string | undefined };
  }
}
