// What only some applications ask of a server, as functions of a client: those that use none of it need not load it.
import { toError } from './errors.js';
import type { Ask } from './link.js';
import { orAborted, sleep } from './listen.js';
import { withOffset } from './position.js';
import { toEvent } from './subscription.js';
import type { Client, History } from './types.js';

interface Asking {
  readonly ask: Ask;
}
type HistoryQuery = NonNullable<Parameters<Client['history']>[1]>;
type PresenceOptions = NonNullable<Parameters<Client['presence']>[1]>;

/** See `Client.history`. */
export async function history<T = unknown>({ ask }: Asking, channel: string, { since = 'earliest', limit = 100, signal }: HistoryQuery = {}): Promise<History<T>> {
  const get = (since: string, limit: number) => ask('history', { channel, since, limit }, signal);
  const { messages, position, gap } = await get(typeof since === 'string' ? since : withOffset((await get('now', 1)).position, since), limit);
  const events = messages.map((message) => toEvent({ ...message, channel }, true));
  return Object.assign(events, { position, ...(gap && { gap }) }) as unknown as History<T>;
}

/** See `Client.presence`. */
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
