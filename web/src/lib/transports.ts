import type { TransportName } from '@millrace/client';

/** Transports that a page can choose, in the client's default order. The last one is used only if it is chosen. */
export const TRANSPORTS = [
  { name: 'websocket', label: 'WebSocket', how: 'One two-way connection' },
  { name: 'http-stream', label: 'HTTP streaming', how: 'One response, a line per message' },
  { name: 'sse', label: 'Server-sent events', short: 'SSE', how: 'One response, an event per message' },
  { name: 'long-poll', label: 'Long polling', how: 'Requests that wait for a message' },
  { name: 'poll', label: 'Polling', how: 'One request per second' },
  { name: 'data-channel', label: 'Data channel', how: 'WebRTC, over UDP' },
] as const satisfies readonly { name: TransportName; label: string; short?: string; how: string }[];

export type PageTransport = (typeof TRANSPORTS)[number]['name'];

export function transportLabel(name: string): string {
  const found = TRANSPORTS.find((t) => t.name === name);
  return found ? ('short' in found ? found.short : found.label) : name;
}

export const isPageTransport = (name: string | null): name is PageTransport => TRANSPORTS.some((t) => t.name === name);
