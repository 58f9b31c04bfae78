// Data in a tree: all participants publish to the channel `rooms/{room}/data`. The root reads the channel, and parents
// forward to their children.
//
// Each message carries its position in the channel. A participant that is new, gets another parent or loses a message
// therefore knows what is missing, and reads it from history. A participant without a live parent reads the channel
// itself until it has one. It reports this to the room, which assigns another parent. Source: docs/reference/rooms.md,
// "Data".
import type { Subscription } from '../types.js';
import { isNewer, parsePosition } from '../position.js';
import type { Flow, FlowHost } from './flow.js';
import type { Link } from './link.js';
import type { FlowSnapshot } from './seat.js';
import type { RoomState } from './types.js';

/**
 * Silence after which the channel replaces a parent, silence after which the parent is lost, and interval of pings, ms.
 */
const SILENCE = 1_750;
const LOST = 3_000;
const PING_EVERY = 500;
/** Time after which missing messages are read from the channel, and maximum time to establish a link, ms. */
const MISSING = 500;
const CONNECT_MAX = 10_000;
/** Maximum number of messages kept for new children. */
const BUFFER_MAX = 4096;

interface Message {
  readonly at: string;
  readonly from: string;
  readonly data: unknown;
}

export interface TreeHost extends FlowHost {
  /** Reads the channel after a position. */
  read(after: string, fn: (message: unknown, position: string) => void): Subscription;
  /** Reports a lost parent to the room at once. */
  report(): void;
}

export class TreeFlow implements Flow {
  readonly #host: TreeHost;
  #at: string;
  #state!: RoomState;
  readonly #buffer: Message[] = [];
  readonly #ahead = new Map<string, Message>();
  /** Time since which a message is missing, ms. */
  #missingSince: number | undefined;
  /** Time since which no live parent is linked, ms. */
  #aloneSince: number | undefined;
  /** Id of the lost parent. */
  #lost: string | undefined;
  #direct: Subscription | undefined;
  readonly #timer = setInterval(() => this.#check(), MISSING / 2);
  #pinged = 0;

  constructor(host: TreeHost, at: string) {
    this.#host = host;
    this.#at = at;
  }

  send(data: unknown): void {
    this.#host.publish({ from: this.#host.me, data });
  }

  follow(state: RoomState): void {
    this.#state = state;
    this.#check();
  }

  opened(link: Link): void {
    link.send({ at: this.#at });
    this.#check();
  }

  closed(): void {
    this.#check();
  }

  received(link: Link, { at, from, data }: Record<string, unknown>): void {
    if (typeof at !== 'string' || !/^.+:\d+$/.test(at)) return;
    const isParent = link.to === this.#parent;
    if (typeof from === 'string') {
      if (isParent) this.#accept({ at, from, data });
    } else if (isParent) {
      // Position of the parent. Messages up to it either arrive on the link, or are read from the channel.
      if (isNewer(at, this.#at)) this.#missingSince ??= performance.now();
    } else if (this.#state.parents?.[link.to] === this.#host.me) {
      for (const message of this.#buffer) if (isNewer(message.at, at)) link.send(message);
    }
  }

  snapshot(): FlowSnapshot {
    return { at: this.#at };
  }

  read(): void {}

  unreachable(): void {}

  tick(): void {
    this.#check();
  }

  reportFields(): object {
    return this.#lost ? { parent_lost: this.#lost } : {};
  }

  end(): void {
    clearInterval(this.#timer);
    void this.#direct?.close();
  }

  get #parent(): string | undefined {
    return this.#state.parents?.[this.#host.me];
  }

  #accept(message: Message): void {
    if (!isNewer(message.at, this.#at)) return;
    const last = parsePosition(this.#at);
    const next = parsePosition(message.at);
    // Another epoch, or not the next offset: a message is missing, unless history skips it too.
    if (next.epoch !== last.epoch || next.offset !== last.offset + 1n) {
      if (this.#ahead.size < BUFFER_MAX) this.#ahead.set(message.at, message);
      this.#missingSince ??= performance.now();
      return this.#check();
    }
    this.#deliver(message);
    this.#drain();
  }

  #drain(): void {
    for (;;) {
      const { epoch, offset } = parsePosition(this.#at);
      const next = this.#ahead.get(`${epoch}:${offset + 1n}`);
      if (!next) break;
      this.#deliver(next);
    }
    for (const at of this.#ahead.keys()) if (!isNewer(at, this.#at)) this.#ahead.delete(at);
    if (!this.#ahead.size) this.#missingSince = undefined;
  }

  #deliver(message: Message): void {
    this.#at = message.at;
    this.#ahead.delete(message.at);
    this.#buffer.push(message);
    if (this.#buffer.length > BUFFER_MAX) this.#buffer.shift();
    for (const link of this.#host.links.values()) if (this.#state.parents?.[link.to] === this.#host.me) link.send(message);
    if (message.from !== this.#host.me) this.#host.deliver({ from: message.from, data: message.data });
  }

  /** Starts or stops to read the channel, as needed. */
  #check(): void {
    const now = performance.now();
    if (now - this.#pinged > PING_EVERY) {
      this.#pinged = now;
      for (const link of this.#host.links.values()) link.send({ at: this.#at });
    }
    const parent = this.#parent === undefined ? undefined : this.#host.links.get(this.#parent);
    const isAlive = !!parent?.isOpen && now - parent.receivedAt < SILENCE;
    this.#aloneSince = isAlive ? undefined : (this.#aloneSince ?? now);
    const isMissing = this.#missingSince !== undefined && now - this.#missingSince > MISSING;
    // A link that is being established gets some time.
    const isAlone = this.#parent === undefined || (this.#aloneSince !== undefined && (!!this.#direct || !!parent?.receivedAt || now - this.#aloneSince > MISSING));
    const isLost = !!parent && (parent.receivedAt ? !parent.isOpen || now - parent.receivedAt > LOST : now - parent.createdAt > CONNECT_MAX);
    const lost = isLost ? this.#parent : undefined;
    if (lost !== this.#lost) {
      this.#lost = lost;
      if (lost) this.#host.report();
    }
    if ((isAlone || isMissing) && !this.#direct) {
      const { epoch } = parsePosition(this.#at);
      this.#direct = this.#host.read(this.#at, (message, position) => {
        const { from, data } = (message ?? {}) as Record<string, unknown>;
        if (typeof from !== 'string' || !isNewer(position, this.#at)) return;
        // The channel skips no message that history still contains.
        const skipped = parsePosition(position);
        if (skipped.epoch === epoch && skipped.offset > parsePosition(this.#at).offset + 1n) this.#host.lost(from, Number(skipped.offset - parsePosition(this.#at).offset) - 1);
        this.#deliver({ at: position, from, data });
        this.#drain();
      });
    } else if (!isAlone && !isMissing && this.#direct) {
      void this.#direct.close();
      this.#direct = undefined;
    }
    // The missing messages have arrived. The parent reports its position again when there are more.
    if (this.#direct && isMissing && !this.#ahead.size && isAlive) this.#missingSince = undefined;
  }
}
