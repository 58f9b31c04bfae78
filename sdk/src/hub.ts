// Which channels are read, from where, and who gets what. One wire subscription per channel, any number of consumers; links
// come and go above it and always read on from the positions kept here.
import { MillraceError, toError } from './errors.js';
import type { Page, Wanted } from './link.js';
import { checkChannel, isNews, isPattern, matches, parsePosition, shift, type Position } from './position.js';
import { Consumer, type Message } from './subscription.js';
import type { From, Gap, SubscribeOptions } from './types.js';

export interface HubHost {
  /** The set of channels has changed. */
  changed(): void;
  /** Publications after `since`; keeps trying while another try may help. */
  page(channel: string, since: string, limit: number, signal?: AbortSignal): Promise<Page>;
}

interface Wire {
  readonly channel: string;
  readonly pattern: boolean;
  readonly consumers: Set<Consumer<any>>;
  /** The last position of every channel heard: of one, unless this is a pattern. What comes next must be news to it. */
  readonly heard: Map<string, Position>;
  /** Pattern: the server's clock at the first reply, or how far it was asked to look back. */
  since?: string | undefined;
  started?: boolean;
  /** What is older came out of history. */
  liveFrom: number;
}

/** Publications in one page of history. */
const PAGE = 1000;
/** History may lag behind the wire, across nodes: how often it is asked again before the wire is believed. */
const STALLS = 5;

export class Hub {
  messages = 0;
  gaps = 0;
  /** Server's clock minus this machine's, ms. */
  #skew = 0;
  #wires = new Map<string, Wire>();
  #patterns = new Set<Wire>();

  constructor(readonly host: HubHost) {}

  subscribe<T>(channel: string, options: SubscribeOptions<T>): Consumer<T> {
    checkChannel(channel, true);
    const { from = 'now', signal } = options;
    const pattern = isPattern(channel);
    let wire = this.#wires.get(channel);
    const since = from === 'now' ? undefined : this.#past(from);
    if (pattern && since !== undefined && (wire || !since)) {
      throw new MillraceError('rejected', wire ? `only from now can ${channel} be joined` : 'a wildcard starts from now, earliest or seconds');
    }
    if (typeof from === 'object' && 'position' in from) parsePosition(from.position);
    const consumer = new Consumer<T>(channel, options, (gone) => this.#leave(gone));
    if (signal?.aborted) consumer.end();
    else {
      const policy = wire && policyOf(wire);
      if (!wire) {
        wire = { channel, pattern, consumers: new Set(), liveFrom: 0, heard: new Map(), since };
        this.#wires.set(channel, wire);
        if (pattern) this.#patterns.add(wire);
      }
      wire.consumers.add(consumer);
      consumer.live = pattern || from === 'now';
      if (wire.started) this.#join(wire, consumer, true);
      if (policy !== policyOf(wire)) this.host.changed();
    }
    return consumer;
  }

  wanted(): Wanted[] {
    return [...this.#wires.values()].map((wire) => ({
      channel: wire.channel,
      policy: policyOf(wire),
      since: wire.pattern ? wire.since : wire.heard.get(wire.channel)?.text,
      ...(wire.pattern && { positions: Object.fromEntries([...wire.heard].map(([channel, { text }]) => [channel, text])) }),
    }));
  }

  /** `time`: the server's clock, ms. */
  started(channel: string, position: string, recovered: boolean, time: number): void {
    this.#skew = time - Date.now();
    const wire = this.#wires.get(channel);
    if (!wire) return;
    wire.liveFrom = time;
    if (wire.started) return;
    wire.started = true;
    if (wire.pattern) wire.since ??= String(time);
    else wire.heard.set(channel, parsePosition(position));
    for (const consumer of wire.consumers) this.#join(wire, consumer, recovered);
  }

  message(message: Message): void {
    this.messages++;
    const at = parsePosition(message.position);
    this.#route(message.channel, at, (consumer, wire) => consumer.accept(message, at, message.time < wire.liveFrom));
  }

  gap(channel: string, gap: Gap): void {
    this.gaps++;
    this.#route(channel, parsePosition(gap.to), (consumer) => consumer.miss(channel, gap));
  }

  /** The channel cannot be read, and trying again would not change that. */
  refused(channel: string, error?: MillraceError): void {
    const wire = this.#drop(channel);
    for (const consumer of wire?.consumers ?? []) consumer.end(error);
  }

  end(cause?: MillraceError): void {
    for (const channel of this.#wires.keys()) this.refused(channel, cause);
  }

  #route(channel: string, at: Position, tell: (consumer: Consumer<any>, wire: Wire) => void): void {
    for (const wire of [this.#wires.get(channel), ...this.#patterns]) {
      if (!wire?.started || (wire.pattern && !matches(wire.channel, channel)) || !isNews(at, wire.heard.get(channel))) continue;
      wire.heard.set(channel, at);
      for (const consumer of wire.consumers) if (consumer.live) tell(consumer, wire);
    }
  }

  /** What `from` is as `since`, if it needs no position to say so. */
  #past(from: From): string {
    return typeof from === 'string' ? (from === 'earliest' ? from : '') : 'seconds' in from ? String(Math.floor(Date.now() + this.#skew - from.seconds * 1000)) : '';
  }

  #join(wire: Wire, consumer: Consumer<any>, recovered: boolean): void {
    if (!consumer.live) this.#catchUp(wire, consumer).catch((thrown) => consumer.end(toError(thrown)));
    else if (wire.pattern) consumer.startPattern(wire.since!, recovered);
    else consumer.start(wire.heard.get(wire.channel)!, recovered);
  }

  /**
   * Reads history for one consumer, at its pace, until it stands where the wire stands; from there on it gets what the wire
   * gets. The last check and the change-over are one step, so nothing falls between them.
   */
  async #catchUp({ channel, heard }: Wire, consumer: Consumer<any>): Promise<void> {
    const { from, buffer } = consumer.options as { from: any; buffer?: { max?: number } };
    const head = heard.get(channel)!;
    const newest = from === 'latest';
    let since = newest ? shift(head, -1n) : 'offset' in Object(from) ? `${head.epoch}:${from.offset}` : (from.position ?? this.#past(from));
    const limit = Math.max(1, Math.min(PAGE, buffer?.max ?? PAGE));
    for (let first = true, stalls = 0; ; first = false) {
      await consumer.room();
      if (consumer.over) return;
      const { position, messages, gap } = await this.host.page(channel, since, limit, consumer.options.signal);
      const at = parsePosition(position);
      if (first) consumer.start(messages[0] ? parsePosition(shift(parsePosition(messages[0].position), -1n)) : at, !gap || newest);
      if (gap && !newest) {
        this.gaps++;
        consumer.miss(channel, gap);
      }
      for (const message of messages) {
        this.messages++;
        consumer.accept({ ...message, channel }, parsePosition(message.position), true);
      }
      const stalled = position === since;
      since = position;
      if (!isNews(heard.get(channel)!, at) || (stalled && ++stalls > STALLS)) {
        consumer.live = true;
        return;
      }
      if (stalled) await new Promise((resolve) => setTimeout(resolve, 100 * stalls));
    }
  }

  #leave(consumer: Consumer<any>): void {
    const { channel } = consumer;
    const wire = this.#wires.get(channel);
    wire?.consumers.delete(consumer);
    // A consumer that leaves and comes back at once (React's StrictMode does that) must not cost a new subscription.
    setTimeout(() => {
      if (wire?.consumers.size === 0 && this.#wires.get(channel) === wire) {
        this.#drop(channel);
        this.host.changed();
      }
    });
  }

  #drop(channel: string): Wire | undefined {
    const wire = this.#wires.get(channel);
    this.#wires.delete(channel);
    this.#patterns.delete(wire!);
    return wire;
  }
}

function policyOf(wire: Wire): 'every' | 'latest' {
  return [...wire.consumers].some(({ options }) => options.policy !== 'latest') ? 'every' : 'latest';
}
