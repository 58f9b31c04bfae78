// Reads the body of an open-ended response, piece by piece.
import { MillraceError, unreachable } from '../errors.js';
import { serverTime, type Query } from './http.js';
import type { HttpLink } from './http-link.js';

/** Interval of heartbeats unless another was requested, and the delay after which a heartbeat is overdue, ms. */
const HEARTBEAT = 25_000;
const OVERDUE = 5000;
/**
 * Number of streams at which a warning is logged. Browsers open at most six HTTP/1.1 connections to one origin, for all
 * tabs together.
 */
const MANY = 5;
const open = new Map<string, number>();

/** Passes every piece to `take`, with the server's time when the response began. Throws when the stream ends. */
export async function reading(link: HttpLink, accept: string, query: Query, signal: AbortSignal, take: (piece: string, time: number) => void): Promise<void> {
  const { host } = link;
  const { base, heartbeatMs } = host;
  const origin = new URL(base).origin;
  let silence = HEARTBEAT + OVERDUE;
  host.report('alive', silence);
  const streams = (open.get(origin) ?? 0) + 1;
  open.set(origin, streams);
  if (streams === MANY && base.startsWith('http:') && 'document' in globalThis) {
    host.log?.({ level: 'warn', msg: `${streams} HTTP streams to ${origin}: a browser opens at most six connections to an HTTP/1.1 origin, so requests may wait` });
  }
  try {
    const response = await link.http.request('/v1/stream', [...query, ['heartbeat', heartbeatMs && `${heartbeatMs}ms`]], { accept, signal });
    const granted = +response.headers.get('Millrace-Heartbeat')!;
    if (granted) silence = granted * 1000 + OVERDUE;
    const time = serverTime(response);
    const reader = response.body!.getReader();
    const decoder = new TextDecoder();
    for (;;) {
      const { done, value } = await reader.read().catch((thrown) => {
        throw unreachable(thrown, base);
      });
      if (signal.aborted) return;
      if (done) throw new MillraceError('network', `the stream from ${origin} ended`);
      host.report('alive', silence);
      host.counts.bytesIn += value.length;
      take(decoder.decode(value, { stream: true }), time);
    }
  } finally {
    open.set(origin, open.get(origin)! - 1);
  }
}
