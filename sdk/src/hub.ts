// Which channels are read, from where, and who gets what. One wire subscription per channel, any number of consumers; links
// come and go above it and always read on from the positions kept here.
import { MillraceError, toError } from './errors.js';
import type { Page, Wanted } from './link.js';
import { before, checkChannel, isNews, matcher, parsePosition, withOffset } from './position.js';
import { consumer, isGap, type Consumer, type Item } from './subscription.js';
import type { SubscribeOptions, Subscription } from './types.js';

export interface Hub {
  subscribe<T>(channel: string, options: SubscribeOptions<T>): Subscription<T>;
  wanted(): Wanted[];
  /** The wire subscription stands at `position`. `time`: the server's clock, ms. */
  started(channel: string, position: string, recovered: boolean, time: number): void;
  hear(item: Item): void;
  /** The channel cannot be read, and trying again would not change that. */
  refused(channel: string, error?: MillraceError): void;
  end(cause?: MillraceError): void;
}

interface Reader {
  readonly consumer: Consumer<any>;
  readonly options: SubscribeOptions<any>;
  /** Takes from the wire what comes after this ('': all). Until then it reads history, at its own pace, to where the wire is. */
  live: string | undefined;
}

interface Wire {
  readonly channel: string;
  /** What matches the channels of a pattern. */
  readonly pattern: RegExp | undefined;
  readonly readers: Set<Reader>;
  /** The last position of every channel heard: of one, unless this is a pattern. What comes next must be news to it. */
  readonly heard: Map<string, string>;
  /** Pattern: the server's clock at the first reply, or how far it was asked to look back. */
  since: string | undefined;
  /** What is older came out of history; 0 until the wire has started. */
  liveFrom: number;
}

/** Publications in one page of history. */
const PAGE = 1000;
/** History may lag behind the wire, across nodes: how often it is asked again before the wire is believed. */
const STALLS = 5;

/**
 * `changed`: the set of channels has. `page`: publications after `since`; keeps trying while another try may help.
 * `counts` is kept up to date.
 */
export function hub(
  counts: { messages: number; gaps: number },
  changed: () => void,
  page: (channel: string, since: string, limit: number, signal?: AbortSignal) => Promise<Page>,
): Hub {
  const wires = new Map<string, Wire>();
  const patterns = new Set<Wire>();
  /** Server's clock minus this machine's, ms. */
  let skew = 0;

  const policyOf = ({ readers }: Wire): 'every' | 'latest' => ([...readers].every(({ options }) => options.policy === 'latest') ? 'latest' : 'every');

  /** `from` as `since`, for a reader of a wire that stands at `head`. */
  function sinceOf({ from = 'now' }: SubscribeOptions<any>, head: string): string {
    if (typeof from === 'string') return from === 'latest' ? before(head) : from;
    if ('seconds' in from) return String(Math.floor(Date.now() + skew - from.seconds * 1000));
    return 'offset' in from ? withOffset(head, from.offset) : from.position;
  }

  function join({ pattern, since, channel, heard }: Wire, reader: Reader, recovered: boolean): void {
    const { live, consumer } = reader;
    const position = pattern ? since! : heard.get(channel)!;
    if (live === undefined) catchUp(channel, heard, reader).catch((thrown) => consumer.end(toError(thrown)));
    else consumer.start({ offset: pattern ? 0n : parsePosition(position).offset, position, recovered });
  }


  /**
   * Reads history for one reader, at its pace, until it stands where the wire stands; from there on it gets what the wire
   * gets. The last check and the change-over are one step, so nothing falls between them.
   */
  async function catchUp(channel: string, heard: Map<string, string>, reader: Reader): Promise<void> {
    const { options, consumer } = reader;
    const newest = options.from === 'latest';
    let since = sinceOf(options, heard.get(channel)!);
    const limit = Math.max(1, Math.min(PAGE, options.buffer?.max ?? PAGE));
    for (let first = true, stalls = 0; await consumer.room(); first = false) {
      const { position, messages, gap = undefined } = await page(channel, since, limit, options.signal);
      const missed = newest ? undefined : gap;
      if (first) {
        const start = messages[0] ? before(messages[0].position) : position;
        consumer.start({ offset: parsePosition(start).offset, position: start, recovered: !missed });
      }
      for (const item of missed ? [missed, ...messages] : messages) {
        count(item as Item);
        consumer.take({ ...(item as Item), channel }, true);
      }
      const stalled = position === since;
      since = position;
      if (!isNews(heard.get(channel)!, position) || (stalled && ++stalls > STALLS)) {
        reader.live = position;
        return;
      }
      if (stalled) await new Promise((resolve) => setTimeout(resolve, 100 * stalls));
    }
  }

  function count(item: Item): void {
    counts[isGap(item) ? 'gaps' : 'messages']++;
  }

  function drop(channel: string): Wire | undefined {
    const wire = wires.get(channel);
    wires.delete(channel);
    patterns.delete(wire!);
    return wire;
  }

  function refused(channel: string, error?: MillraceError): void {
    drop(channel)?.readers.forEach(({ consumer }) => consumer.end(error));
  }

  return {
    subscribe(channel, options) {
      checkChannel(channel, true);
      const { from = 'now', signal } = options;
      const pattern = matcher(channel);
      let wire = wires.get(channel);
      if (pattern && from !== 'now' && (wire || (from !== 'earliest' && !('seconds' in Object(from))))) {
        throw new MillraceError('rejected', `${channel}: a wildcard starts from now, earliest or seconds, a second reader of it from now`);
      }
      const made = consumer(channel, options, () => {
        // A reader that leaves and comes back at once (React's StrictMode does that) must not cost a new subscription.
        setTimeout(() => {
          if (wire?.readers.delete(reader) && !wire.readers.size && wires.get(channel) === wire) {
            drop(channel);
            changed();
          }
        });
      });
      const reader: Reader = { consumer: made, options, live: pattern || from === 'now' ? '' : undefined };
      if (!signal?.aborted) {
        const policy = wire && policyOf(wire);
        if (!wire) {
          wire = { channel, pattern, readers: new Set(), heard: new Map(), since: pattern && from !== 'now' ? sinceOf(options, '') : undefined, liveFrom: 0 };
          wires.set(channel, wire);
          if (pattern) patterns.add(wire);
        }
        wire.readers.add(reader);
        if (wire.liveFrom) join(wire, reader, true);
        if (policy !== policyOf(wire)) changed();
      }
      return made.subscription;
    },
    wanted: () =>
      [...wires.values()].map((wire) => ({
        channel: wire.channel,
        policy: policyOf(wire),
        since: wire.pattern ? wire.since : wire.heard.get(wire.channel),
        positions: wire.pattern && Object.fromEntries(wire.heard),
      })),
    started(channel, position, recovered, time) {
      skew = time - Date.now();
      const wire = wires.get(channel);
      if (!wire) return;
      const { liveFrom } = wire;
      wire.liveFrom = time;
      if (liveFrom) return;
      if (wire.pattern) wire.since ??= String(time);
      else wire.heard.set(channel, position);
      wire.readers.forEach((reader) => join(wire, reader, recovered));
    },
    hear(item) {
      count(item);
      const { channel } = item;
      const [at, time] = isGap(item) ? [item.to, Infinity] : [item.position, item.time];
      for (const wire of [wires.get(channel), ...patterns]) {
        if (!wire?.liveFrom || (wire.pattern && !wire.pattern.test(channel)) || !isNews(at, wire.heard.get(channel))) continue;
        wire.heard.set(channel, at);
        for (const { live, consumer } of wire.readers) if (live !== undefined && isNews(at, live)) consumer.take(item, time < wire.liveFrom);
      }
    },
    refused,
    end: (cause) => [...wires.keys()].forEach((channel) => refused(channel, cause)),
  };
}
