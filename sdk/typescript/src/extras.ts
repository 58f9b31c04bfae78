// Requests that only some applications need, as functions of a client. A bundle contains only the functions that it
// uses.
import { toError } from './errors.js';
import type { Ask } from './link.js';
import { orAborted, signalOf, sleep } from './listen.js';
import { withOffset } from './position.js';
import { toEvent } from './subscription.js';
import type { Client, History, HistoryQuery, Place, RpcOptions } from './types.js';

interface Asking {
  readonly ask: Ask;
}
type PresenceOptions = NonNullable<Parameters<Client['presence']>[1]>;

/** Implements `Client.history`. */
export async function history<T = unknown>({ ask }: Asking, channel: string, { since = 'earliest', until, limit = 100, signal }: HistoryQuery = {}): Promise<History<T>> {
  /** Encodes a place as the server expects it. An offset belongs to the current epoch. */
  const place = async (at: Place): Promise<string> => {
    if (at instanceof Date) return at.toISOString();
    return typeof at === 'string' ? at : withOffset((await ask('history', { channel, since: 'now', limit: 1 }, signal)).position, at);
  };
  const range = { since: await place(since), until: until === undefined ? until : await place(until) };
  const { messages, position, gap, more = false } = await ask('history', { channel, ...range, limit }, signal);
  const events = messages.map((message) => toEvent({ ...message, channel }, true));
  return Object.assign(events, { position, more, gap }) as unknown as History<T>;
}

/** Implements `Client.pages`. */
export async function* pages<T = unknown>(mr: Asking, channel: string, { until = 'now', limit = 1000, ...query }: HistoryQuery = {}): AsyncGenerator<History<T>> {
  // All pages share one `now`. Otherwise a range that grows while it is read might never end.
  if (until === 'now') until = (await history(mr, channel, { ...query, since: 'now', limit: 1 })).position;
  for (let more = true; more; ) {
    const page = await history<T>(mr, channel, { ...query, until, limit });
    if (page.length || page.gap) yield page;
    query.since = page.position;
    more = page.more;
  }
}

/** Implements `Client.rpc`. */
export async function rpc<T = unknown>({ ask }: Asking, method: string, params?: unknown, { signal, timeoutMs }: RpcOptions = {}): Promise<T> {
  // Without a deadline this is NaN, which JSON encodes as null.
  return (await ask('rpc', { method, params, timeout: timeoutMs! / 1000 }, signalOf(signal, timeoutMs))).result as T;
}

/** Implements `Client.presence`. */
export async function* presence({ ask }: Asking, channel: string, { signal, everyMs = 5000 }: PresenceOptions = {}): AsyncGenerator<{ readonly count: number }> {
  try {
    for (let last; ; await orAborted(sleep(everyMs), signal)) {
      const { count } = await ask('presence', { channel }, signal);
      if (count !== last) yield { count };
      last = count;
    }
  } catch (thrown) {
    if (toError(thrown).code !== 'aborted') throw thrown;
  }
}
