// Which channels are read, from where, and who gets what. One wire subscription per channel, any number of consumers; links
// come and go above it and always read on from the positions kept here.
import { MillraceError, toError } from './errors.js';
import type { Page, Wanted } from './link.js';
import { sleep } from './listen.js';
import { before, checkChannel, isNews, withOffset } from './position.js';
import { consumer, type Consumer, type Item, type Message } from './subscription.js';
import type { From, Gap, SubscribeOptions, Subscription } from './types.js';

export interface Hub {
  subscribe<T>(channel: string, options: SubscribeOptions<T>): Subscription<T>;
  wanted(): Wanted[];
  /** The wire subscription stands at `position`. `time`: the server's clock, ms. */
  started(channel: string, at: { position: string; recovered?: boolean; time: number }): void;
  hear(item: Item): void;
  /** The channel cannot be read, and trying again would not change that. */
  refused(channel: string, cause?: MillraceError): boolean;
  end(cause?: MillraceError): void;
}

export interface Wire {
  readonly readers: Set<Consumer<any>>;
  /** What is older came out of history; 0 until the wire has started. */
  liveFrom: number;
}

interface ChannelWire extends Wire {
  /** The last position heard; what comes next must be news to it. */
  head?: string;
}

/** Publications in one page of history. */
const PAGE = 1000;
/** History may lag behind the wire, across nodes: how often it is asked again before the wire is believed. */
const STALLS = 5;

export const policyOf = ({ readers }: Wire): 'every' | 'latest' => ([...readers].every(({ options }) => options.policy === 'latest') ? 'latest' : 'every');

/** A new reader of `name`, on the wire that is there or on `wire`. */
export function attach<T>(wires: Map<string, Wire>, name: string, wire: Wire, options: SubscribeOptions<T>, changed: () => void): Consumer<T> {
  const reader = consumer(name, options, () => {
    // A reader that leaves and comes back at once (React's StrictMode does that) must not cost a new subscription.
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

/** Ends all readers of `name`; false if it has no wire. */
export function detach(wires: Map<string, Wire>, name: string, cause?: MillraceError): boolean {
  wires.get(name)?.readers.forEach((reader) => reader.end(cause));
  return wires.delete(name);
}

/** `seconds` before now by the server's clock, which is ahead by `skewMs`. */
export const ago = (seconds: number, skewMs: number): string => String(Math.floor(Date.now() + skewMs - seconds * 1000));

/**
 * `changed`: the set of channels has. `page`: publications after `since`; keeps trying while another try may help.
 * `counts` is kept up to date.
 */
export function hub(
  counts: { messages: number; gaps: number },
  changed: () => void,
  page: (channel: string, since: string, limit: number, signal?: AbortSignal) => Promise<Page>,
): Hub {
  const wires = new Map<string, ChannelWire>();
  /** Server's clock minus this machine's, ms. */
  let skew = 0;

  /** `from` as `since`, for a reader of a wire that stands at `head`. */
  function sinceOf(from: From, head: string): string {
    if (typeof from === 'string') return from === 'latest' ? before(head) : from;
    return 'seconds' in from ? ago(from.seconds, skew) : 'offset' in from ? withOffset(head, from.offset) : from.position;
  }

  function join(channel: string, wire: ChannelWire, reader: Consumer<any>, recovered?: boolean): void {
    if (reader.live === undefined) catchUp(channel, wire, reader).catch((thrown) => reader.end(toError(thrown)));
    else reader.start(wire.head!, recovered);
  }

  /**
   * Reads history for one reader, at its pace, until it stands where the wire stands; from there on it gets what the wire
   * gets. The last check and the change-over are one step, so nothing falls between them.
   */
  async function catchUp(channel: string, wire: ChannelWire, reader: Consumer<any>): Promise<void> {
    const { from, buffer, signal } = reader.options;
    let since = sinceOf(from!, wire.head!);
    for (let stalls = 0; await reader.room(); await sleep(100 * stalls)) {
      const { position, messages, gap } = await page(channel, since, Math.min(PAGE, buffer?.max || PAGE), signal);
      const missed = from === 'latest' ? undefined : gap;
      reader.start(messages[0] ? before(messages[0].position) : position, !missed);
      for (const item of missed ? [missed, ...messages] : messages) {
        count(item);
        reader.take({ ...(item as Item), channel }, true);
      }
      stalls = position === since ? stalls + 1 : 0;
      since = position;
      if (!isNews(wire.head!, position) || stalls > STALLS) {
        reader.live = position;
        return;
      }
    }
  }

  function count(item: object): void {
    counts['to' in item ? 'gaps' : 'messages']++;
  }

  const refused = (channel: string, cause?: MillraceError): boolean => detach(wires, channel, cause);

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
    hear(item) {
      count(item);
      const { channel, time, position, to: at = position } = item as Message & Gap;
      const wire = wires.get(channel);
      if (!wire?.head || !isNews(at, wire.head)) return;
      wire.head = at;
      for (const { live, take } of wire.readers) if (live !== undefined && isNews(at, live)) take(item, time < wire.liveFrom);
    },
    refused,
    end: (cause) => [...wires.keys()].forEach((channel) => refused(channel, cause)),
  };
}
