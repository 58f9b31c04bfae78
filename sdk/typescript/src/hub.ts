// Keeps the subscribed channels and their positions, and delivers messages to consumers. Each channel has one wire
// subscription and any number of consumers. When a link is replaced, the new link resumes from the positions kept here.
import { MillraceError, toError } from './errors.js';
import type { Page, Wanted } from './link.js';
import { sleep } from './listen.js';
import { before, checkChannel, isNewer, withOffset } from './position.js';
import { consumer, type Consumer, type Item, type Message } from './subscription.js';
import type { From, Gap, SubscribeOptions, Subscription } from './types.js';

export interface Hub {
  subscribe<T>(channel: string, options: SubscribeOptions<T>): Subscription<T>;
  wanted(): Wanted[];
  /** Reports that the wire subscription starts at `position`. `time` is the server's clock, ms. */
  started(channel: string, at: { position: string; recovered?: boolean; time: number }): void;
  receive(item: Item): void;
  /**
   * Ends the consumers of a channel that cannot be read, and for which a retry would not help. Returns false if the
   * channel is not subscribed.
   */
  refused(channel: string, cause?: MillraceError): boolean;
  end(cause?: MillraceError): void;
}

export interface Wire {
  readonly readers: Set<Consumer<any>>;
  /** Server time at which the wire started, ms; 0 before that. An older message is a replay from history. */
  liveFrom: number;
}

interface ChannelWire extends Wire {
  /** Position of the last message received. Only a newer message is accepted. */
  head?: string;
}

/** Maximum number of publications in one page of history. */
const PAGE = 1000;
/**
 * Across nodes, history may lag behind the wire. After this many pages without progress, the reader switches to the
 * wire.
 */
const STALLS = 5;

export const policyOf = ({ readers }: Wire): 'every' | 'latest' => ([...readers].every(({ options }) => options.policy === 'latest') ? 'latest' : 'every');

/** Adds a reader to the existing wire of `name`, or to `wire`. */
export function attach<T>(wires: Map<string, Wire>, name: string, wire: Wire, options: SubscribeOptions<T>, changed: () => void): Consumer<T> {
  const reader = consumer(name, options, () => {
    // A reader that leaves and returns at once, as in React's StrictMode, must not cost a new subscription.
    setTimeout(() => {
      if (wire.readers.delete(reader) && !wire.readers.size && wires.get(name) === wire) {
        wires.delete(name);
        changed();
      }
    });
  });
  if (!options.signal?.aborted) {
    const policy = wires.has(name) && policyOf(wire);
    wires.set(name, wire);
    wire.readers.add(reader);
    if (policy !== policyOf(wire)) changed();
  }
  return reader;
}

/** Ends all readers of `name`. Returns false if no wire has this name. */
export function detach(wires: Map<string, Wire>, name: string, cause?: MillraceError): boolean {
  wires.get(name)?.readers.forEach((reader) => reader.end(cause));
  return wires.delete(name);
}

/** Returns the server time `seconds` ago, in ms. The server's clock is ahead of this machine's by `skewMs`. */
export const ago = (seconds: number, skewMs: number): string => String(Math.floor(Date.now() + skewMs - seconds * 1000));

/**
 * Creates a hub. `changed` is called when the set of channels has changed. `page` returns publications after `since`
 * and retries while a retry may help. The hub updates `counts`.
 */
export function hub(
  counts: { messages: number; gaps: number },
  changed: () => void,
  page: (channel: string, since: string, limit: number, signal?: AbortSignal) => Promise<Page>,
): Hub {
  const wires = new Map<string, ChannelWire>();
  /** Server's clock minus this machine's, ms. */
  let skew = 0;

  /** Converts `from` to `since`, for a reader of a wire that is at `head`. */
  function sinceOf(from: From, head: string): string {
    if (typeof from === 'string') return from === 'latest' ? before(head) : from;
    return 'seconds' in from ? ago(from.seconds, skew) : 'offset' in from ? withOffset(head, from.offset) : from.position;
  }

  function join(channel: string, wire: ChannelWire, reader: Consumer<any>, recovered?: boolean): void {
    if (reader.live === undefined) catchUp(channel, wire, reader).catch((thrown) => reader.end(toError(thrown)));
    else reader.start(wire.head!, recovered);
  }

  /**
   * Reads history for one reader, at the reader's pace, until the reader reaches the position of the wire. From there
   * on the reader receives from the wire. The last check and the switch happen in one synchronous step, so no message
   * is lost between them.
   */
  async function catchUp(channel: string, wire: ChannelWire, reader: Consumer<any>): Promise<void> {
    const { from, buffer, signal } = reader.options;
    let since = sinceOf(from!, wire.head!);
    for (let stalls = 0; await reader.hasRoom(); await sleep(100 * stalls)) {
      const { position, messages, gap } = await page(channel, since, Math.min(PAGE, buffer?.max || PAGE), signal);
      const missed = from === 'latest' ? undefined : gap;
      reader.start(messages[0] ? before(messages[0].position) : position, !missed);
      for (const item of missed ? [missed, ...messages] : messages) {
        count(item);
        reader.take({ ...(item as Item), channel }, true);
      }
      // With this prefix, the server reports a gap of a state instead of the history that it still has.
      const next = from === 'state' ? position.replace(/^(?!state)/, 'state:') : position;
      stalls = next === since ? stalls + 1 : 0;
      since = next;
      if (!isNewer(wire.head!, position) || stalls > STALLS) {
        reader.live = position;
        if (from === 'state') reader.take({ channel, position, time: 0, complete: true }, true);
        return;
      }
    }
  }

  function count(item: object): void {
    counts['to' in item ? 'gaps' : 'messages']++;
  }

  return {
    subscribe(channel, options) {
      checkChannel(channel);
      const wire: ChannelWire = wires.get(channel) ?? { readers: new Set(), liveFrom: 0 };
      const reader = attach(wires, channel, wire, options, changed);
      if ((options.from ?? 'now') === 'now') reader.live = '';
      if (wire.head) join(channel, wire, reader);
      return reader.subscription;
    },
    wanted: () => [...wires].map(([channel, wire]) => ({ channel, policy: policyOf(wire), since: wire.head })),
    started(channel, { position, recovered, time }) {
      skew = time - Date.now();
      const wire = wires.get(channel);
      if (!wire) return;
      wire.liveFrom = time;
      if (wire.head) return;
      wire.head = position;
      wire.readers.forEach((reader) => join(channel, wire, reader, recovered));
    },
    receive(item) {
      count(item);
      const { channel, time, position, to: at = position } = item as Message & Gap;
      const wire = wires.get(channel);
      if (!wire?.head || !isNewer(at, wire.head)) return;
      wire.head = at;
      for (const { live, take } of wire.readers) if (live !== undefined && isNewer(at, live)) take(item, time < wire.liveFrom);
    },
    refused: (channel, cause) => detach(wires, channel, cause),
    end: (cause) => wires.forEach((_, channel) => detach(wires, channel, cause)),
  };
}
