import type { TransportName } from '@millrace/client';

/** Transports that a page can choose, in the client's default order. The last one is used only if it is chosen. */
export const TRANSPORTS = [
  { name: 'websocket', label: 'WebSocket', how: 'One socket, both ways' },
  { name: 'http-stream', label: 'Streaming', how: 'One endless response' },
  { name: 'sse', label: 'Server-sent events', short: 'SSE', how: 'One event stream' },
  { name: 'long-poll', label: 'Long polling', how: 'Held until news' },
  { name: 'poll', label: 'Polling', how: 'Asks again and again' },
  { name: 'data-channel', label: 'Data channel', how: 'WebRTC, over UDP' },
] as const satisfies readonly { name: TransportName; label: string; short?: string; how: string }[];

export type PageTransport = (typeof TRANSPORTS)[number]['name'];

export function transportLabel(name: string): string {
  const found = TRANSPORTS.find((t) => t.name === name);
  return found ? ('short' in found ? found.short : found.label) : name;
}

export const isPageTransport = (name: string | null): name is PageTransport => TRANSPORTS.some((t) => t.name === name);
