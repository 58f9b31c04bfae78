// Which channels are read, from where, and who gets what. One wire subscription per channel, any number of consumers; links
// come and go above it and always read on from the positions kept here.
import { MillraceError } from './errors.js';
import type { Page } from './http.js';
import type { Wanted } from './link.js';
import { checkChannel, isNews, isPattern, matches, parsePosition, type Position } from './position.js';
import { Consumer, type Message } from './subscription.js';
import type { Gap, SubscribeOptions } from './types.js';

export interface HubHost {
  /** The set of channels has changed. */
  changed(): void;
  /** Publications after `since`; keeps trying while another try may help. */
  page(channel: string, since: string, limit: number, policy: string, signal: AbortSignal): Promise<Page>;
  /** Settles after `ms`, or earlier when there is reason to try again. */
  nap(ms: number): Promise<void>;
}

interface Wire {
  readonly channel: string;
  readonly pattern: boolean;
  readonly consumers: Set<Consumer<any>>;
  /** The last position: what comes next must be news to it. */
  at?: Position;
  position?: string;
  /** Pattern: the server's clock at the first reply, or how far it was asked to look back. */
  since?: string;
  started: boolean;
  /** What is older came out of history. */
  liveFrom: number;
  /** Pattern: the last position of every channel heard. */
  readonly heard: Map<string, { at: Position; position: string }>;
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
  readonly #host: HubHost;

  constructor(host: HubHost) {
    this.#host = host;
  }

  subscribe<T>(channel: string, options: SubscribeOptions<T>): Consumer<T> {
    checkChannel(channel, true);
    const pattern = isPattern(channel);
    const from = options.from ?? 'now';
    let wire = this.#wires.get(channel);
    if (pattern && from !== 'now' && (wire || (from !== 'earliest' && !(typeof from === 'object' && 'seconds' in from)))) {
      throw new MillraceError('rejected', wire ? `${channel} is being read already: only \`now\` can join it` : 'a wildcard starts at `now`, `earliest` or `seconds`');
    }
    if (typeof from === 'object' && 'position' in from) parsePosition(from.position);
    const consumer = new Consumer<T>(channel, options, (gone) => this.#leave(gone));
    if (options.signal?.aborted) {
      consumer.end();
      return consumer;
    }
    const fresh = !wire;
    if (!wire) {
      wire = { channel, pattern, consumers: new Set(), started: false, liveFrom: 0, heard: new Map() };
      if (pattern && from !== 'now') wire.since = this.#past(from);
      this.#wires.set(channel, wire);
    }
    const policy = this.#policy(wire);
    wire.consumers.add(consumer);
    consumer.live = pattern || from === 'now';
    if (wire.started) this.#join(wire, consumer, true);
    if (fresh || policy !== this.#policy(wire)) this.#host.changed();
    return consumer;
  }

  wanted(): Wanted[] {
    return [...this.#wires.values()].map((wire) => ({
      channel: wire.channel,
      policy: this.#policy(wire),
      since: wire.pattern ? wire.since : wire.position,
      ...(wire.heard.size && { positions: Object.fromEntries([...wire.heard].map(([channel, { position }]) => [channel, position])) }),
    }));
  }

  started(channel: string, position: string, recovered: boolean, time: number): void {
    this.#skew = time - Date.now();
    const wire = this.#wires.get(channel);
    if (!wire) return;
    wire.liveFrom = time;
    if (wire.started) return;
    wire.started = true;
    if (wire.pattern) wire.since ??= String(time);
    else {
      wire.position = position;
      wire.at = parsePosition(position);
    }
    for (const consumer of wire.consumers) this.#join(wire, consumer, recovered);
  }

  message(message: Message): void {
    this.messages++;
    const at = parsePosition(message.position);
    this.#route(message.channel, at, message.position, (consumer, wire) => consumer.accept(message, at, message.time < wire.liveFrom));
  }

  gap(channel: string, gap: Gap): void {
    this.gaps++;
    this.#route(channel, parsePosition(gap.to), gap.to, (consumer) => consumer.miss(channel, gap));
  }

  refused(channel: string, error: MillraceError): void {
    const wire = this.#wires.get(channel);
    this.#wires.delete(channel);
    for (const consumer of wire?.consumers ?? []) consumer.end(error);
  }

  end(cause?: MillraceError): void {
    for (const channel of [...this.#wires.keys()]) {
      const wire = this.#wires.get(channel);
      this.#wires.delete(channel);
      for (const consumer of wire?.consumers ?? []) consumer.end(cause);
    }
  }

  #route(channel: string, at: Position, position: string, tell: (consumer: Consumer<any>, wire: Wire) => void): void {
    const plain = this.#wires.get(channel);
    if (plain?.started && isNews(at, plain.at)) {
      plain.at = at;
      plain.position = position;
      for (const consumer of plain.consumers) if (consumer.live) tell(consumer, plain);
    }
    for (const wire of this.#wires.values()) {
      if (!wire.pattern || !wire.started || !matches(wire.channel, channel) || !isNews(at, wire.heard.get(channel)?.at)) continue;
      wire.heard.set(channel, { at, position });
      for (const consumer of wire.consumers) tell(consumer, wire);
    }
  }

  #policy(wire: Wire): 'every' | 'latest' {
    for (const consumer of wire.consumers) if (consumer.options.policy !== 'latest') return 'every';
    return wire.consumers.size ? 'latest' : 'every';
  }

  #past(from: SubscribeOptions['from']): string {
    return typeof from === 'object' && 'seconds' in from ? String(Math.floor(Date.now() + this.#skew - from.seconds * 1000)) : 'earliest';
  }

  #join(wire: Wire, consumer: Consumer<any>, recovered: boolean): void {
    if (!consumer.live) this.#catchUp(wire, consumer).catch((thrown: MillraceError) => consumer.end(thrown));
    else consumer.start(wire.position ?? wire.since!, recovered);
  }

  /**
   * Reads history for one consumer, at its pace, until it stands where the wire stands; from there on it gets what the wire
   * gets. The last check and the change-over are one step, so nothing falls between them.
   */
  async #catchUp(wire: Wire, consumer: Consumer<any>): Promise<void> {
    const { from, buffer } = consumer.options;
    const { epoch, offset } = wire.at!;
    const newest = from === 'latest';
    let since = newest
      ? `${epoch}:${offset > 0n ? offset - 1n : 0n}`
      : typeof from === 'object' && 'offset' in from
        ? `${epoch}:${from.offset}`
        : typeof from === 'object' && 'position' in from
          ? from.position
          : this.#past(from);
    const limit = Math.max(1, Math.min(PAGE, buffer?.max ?? PAGE));
    const controller = new AbortController();
    consumer.onOver(() => controller.abort());
    let first = true;
    for (let stalls = 0; !consumer.over; ) {
      await consumer.room();
      const page = await this.#host.page(wire.channel, since, limit, consumer.options.policy ?? 'every', controller.signal);
      const oldest = page.messages[0];
      if (first) {
        const start = since.includes(':') ? (page.gap?.to ?? since) : page.position;
        consumer.start(!since.includes(':') && oldest ? before(oldest.position) : start, !page.gap || newest);
      }
      first = false;
      if (page.gap && !newest && consumer.miss(wire.channel, page.gap)) this.gaps++;
      for (const message of page.messages) {
        this.messages++;
        consumer.accept(message, parsePosition(message.position), true);
      }
      const at = parsePosition(page.position);
      const stalled = page.position === since;
      since = page.position;
      if (!isNews(wire.at!, at) || (stalled && ++stalls > STALLS)) {
        consumer.live = true;
        return;
      }
      if (stalled) await this.#host.nap(100 * stalls);
    }
  }

  #leave(consumer: Consumer<any>): void {
    const wire = this.#wires.get(consumer.channel);
    if (!wire?.consumers.delete(consumer) || wire.consumers.size) return;
    // A consumer that leaves and comes back at once (React's StrictMode does that) must not cost a new subscription.
    setTimeout(() => {
      if (wire.consumers.size || this.#wires.get(wire.channel) !== wire) return;
      this.#wires.delete(wire.channel);
      this.#host.changed();
    }, 0);
  }
}

/** The position just before a publication. */
function before(position: string): string {
  const { epoch, offset } = parsePosition(position);
  return `${epoch}:${offset - 1n}`;
}
