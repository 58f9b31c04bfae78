import type { Received } from './live';

declare global {
  interface Window {
    /** What has been delivered, for tests and the curious. */
    carcare?: { readonly received: readonly Received[]; readonly transport: string | undefined };
  }
}
