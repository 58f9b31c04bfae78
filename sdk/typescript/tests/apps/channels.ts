// The channels of the three applications.
export interface App {
  'cars/{id}/telemetry': { speed: number };
  feed: { n: number };
  fleet: { speed: number };
  'chat/{room}': { text: string };
}

declare module '@millrace/client' {
  interface Register {
    channels: App;
  }
}

declare global {
  /** How often the list of messages was rendered, for the tests. */
  // eslint-disable-next-line no-var
  var renders: number;
}
globalThis.renders = 0;

/** The server that the tests have started. */
export const server = (): string => new URLSearchParams(location.search).get('server') ?? 'http://127.0.0.1:8080';
