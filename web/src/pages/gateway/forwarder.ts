/**
 * What a gateway does with the messages of its peers: passes one on, gathers those of many into one, splits one into many. As
 * `crates/rtc/src/forward` does it. No connections and no clock: a message and the time are inputs, what is to be written to a peer is an output.
 */
import { asText, Bundle, bytesOf, item, read, startsWith, type Data } from './bundle';

/** The largest message of a device; gathered, it may be six times as long. */
export const MESSAGE_BYTES_MAX = 16 * 1024;
/** The largest bundle that is split. */
export const BUNDLE_BYTES_MAX = 256 * 1024;
export const NAME_BYTES_MAX = 64;
/** Names of missing receivers that are kept. */
const MISSING_MAX = 8;
/** What a message that waits costs besides its bytes. */
const WAITING_BYTES = 64;

/** What is done, for all peers (docs/gateway.md, "Modes"). */
export interface Config {
  readonly gathers: boolean;
  readonly splits: boolean;
  /** From the first message of a bundle until it goes. */
  readonly windowMs: number;
  /** A bundle that would grow beyond this goes before. One message that alone is longer goes alone. */
  readonly bundleBytesMax: number;
  /** What may wait for a receiver that takes less than comes; then the oldest give way. */
  readonly waitingBytesMax: number;
  readonly peersMax: number;
}

export const DEFAULTS: Config = { gathers: false, splits: false, windowMs: 250, bundleBytesMax: 16 * 1024, waitingBytesMax: 1 << 20, peersMax: 64 };

/** How a peer comes. */
export interface Ticket {
  readonly name: string;
  /** Whom what it sends is for. */
  readonly to?: string;
  /** Messages that begin with this are not kept waiting. */
  readonly urgent?: string;
}

/** Why a peer cannot join, by the code that it is told. */
export class Refused extends Error {
  constructor(
    readonly code: 'bad_request' | 'name_taken' | 'unavailable',
    message: string,
  ) {
    super(message);
  }
}

/** To be written to a peer. */
export interface Message {
  readonly data: Data;
  readonly bytes: number;
  /** Messages of devices in it. */
  readonly count: number;
  /** How many lost ones it tells of. */
  readonly told: number;
}

/** Messages, counted since the beginning, under the names of `GET /v1/stats`. A gathered message counts as one when it comes and when it goes. */
export interface Stats {
  received: number;
  received_bytes: number;
  sent: number;
  sent_bytes: number;
  gathered_bundles: number;
  split_bundles: number;
  /** Of messages that went at once because of their urgency. */
  urgent: number;
  /** Gave way because their receiver took too little. */
  lost: number;
  /** Their receiver was not there. */
  nowhere: number;
  /** Too large, or no bundle where one was due. */
  refused: number;
}

/** A peer, and how many messages of devices it has sent and was sent. */
export interface Peer extends Ticket {
  readonly id: number;
  readonly received: number;
  readonly sent: number;
  readonly waitingBytes: number;
}

interface Entry {
  readonly ticket: Ticket;
  readonly bundle: Bundle;
  readonly waiting: Message[];
  waitingBytes: number;
  /** When its bundle goes. */
  dueMs: number | undefined;
  /** Gave way, and its bundles have not said so. */
  untold: number;
  received: number;
  sent: number;
}

/**
 * All peers of a gateway.
 *
 * ```text
 *   handle ──► to it as it is ─────────────────────────┐
 *     │                                                ▼
 *     ├──────► Bundle of its receiver ── window, ──► waiting ── pollOutput
 *     │                                  size, urgent  ▲
 *     └──────► parts of a bundle ──────────────────────┘
 * ```
 */
export class Forwarder {
  readonly stats: Stats = { received: 0, received_bytes: 0, sent: 0, sent_bytes: 0, gathered_bundles: 0, split_bundles: 0, urgent: 0, lost: 0, nowhere: 0, refused: 0 };
  readonly #peers = new Map<number, Entry>();
  readonly #byName = new Map<string, number>();
  readonly #ready = new Set<number>();
  readonly #missing = new Map<string, number>();
  #config: Config;
  #serial = 0;

  constructor(config: Partial<Config> = {}) {
    this.#config = { ...DEFAULTS, ...config };
  }

  /** What has been gathered goes, if no more is: else what comes now would overtake it. A window that has begun stays as long as it was. */
  configure(change: Partial<Config>): void {
    this.#config = { ...this.#config, ...change };
    if (!this.#config.gathers) for (const [id, entry] of this.#peers) this.#release(id, entry);
  }

  /** From now on messages for it wait for it. Throws `Refused`. */
  join(ticket: Ticket): number {
    if (!isName(ticket.name) || (ticket.to !== undefined && !isName(ticket.to))) throw new Refused('bad_request', `a name has 1 to ${NAME_BYTES_MAX} bytes and no control characters`);
    if (this.#byName.has(ticket.name)) throw new Refused('name_taken', 'there is a peer of this name already');
    if (this.#peers.size >= this.#config.peersMax) throw new Refused('unavailable', 'the gateway has as many peers as it may; try again');
    const id = ++this.#serial;
    this.#missing.delete(ticket.name);
    this.#byName.set(ticket.name, id);
    this.#peers.set(id, { ticket, bundle: new Bundle(), waiting: [], waitingBytes: 0, dueMs: undefined, untold: 0, received: 0, sent: 0 });
    return id;
  }

  /** What was gathered of it goes its way; what waits for it goes nowhere. */
  leave(id: number): void {
    const entry = this.#peers.get(id);
    if (!entry) return;
    this.#peers.delete(id);
    this.#byName.delete(entry.ticket.name);
    this.#ready.delete(id);
    this.stats.nowhere += entry.waiting.reduce((sum, { count }) => sum + count, 0) + entry.bundle.count;
  }

  /** A message has come from this peer. */
  handle(nowMs: number, from: number, came: Data | ArrayBuffer): void {
    const sender = this.#peers.get(from);
    if (!sender) return;
    const { stats } = this;
    const [data, config] = [asText(came), this.#config];
    const bytes = bytesOf(data);
    sender.received++;
    stats.received++;
    stats.received_bytes += bytes;
    const { name, to, urgent } = sender.ticket;
    if (to === undefined) {
      if (config.splits) this.#split(data, bytes);
      else stats.nowhere++;
      return;
    }
    if (bytes > MESSAGE_BYTES_MAX) return void stats.refused++;
    const id = this.#byName.get(to);
    if (id === undefined) return this.#miss(to);
    if (!config.gathers) return this.#put(id, { data, bytes, count: 1, told: 0 });
    this.#gather(nowMs, name, id, data, urgent !== undefined && startsWith(data, urgent));
  }

  #gather(nowMs: number, from: string, to: number, data: Data, isUrgent: boolean): void {
    const { bundleBytesMax, windowMs } = this.#config;
    const entry = this.#peers.get(to)!;
    const { bundle } = entry;
    if (bundle.bytes && bundle.bytes + bytesOf(item(from, data)) + 2 > bundleBytesMax) this.#release(to, entry);
    if (!bundle.count && entry.untold) {
      bundle.pushLost(entry.untold);
      entry.untold = 0;
    }
    bundle.push(from, data);
    this.stats.urgent += +isUrgent;
    if (isUrgent || bundle.bytes + 1 >= bundleBytesMax) this.#release(to, entry);
    else entry.dueMs ??= nowMs + windowMs;
  }

  /** The bundle of this receiver goes. */
  #release(to: number, entry: Entry): void {
    entry.dueMs = undefined;
    const { count, lost: told } = entry.bundle;
    if (!count) return;
    this.stats.gathered_bundles++;
    const data = entry.bundle.take();
    this.#put(to, { data, bytes: bytesOf(data), count, told });
  }

  #split(data: Data, bytes: number): void {
    const bundle = bytes <= BUNDLE_BYTES_MAX ? read(data) : undefined;
    if (!bundle) return void this.stats.refused++;
    this.stats.split_bundles++;
    for (const { peer, data } of bundle.parts) {
      const to = this.#byName.get(peer);
      if (to === undefined) this.#miss(peer);
      else this.#put(to, { data, bytes: bytesOf(data), count: 1, told: 0 });
    }
  }

  /** A message for a receiver that has not joined. Names come from devices: only so many are kept. */
  #miss(name: string): void {
    this.stats.nowhere++;
    if (this.#missing.has(name) || this.#missing.size < MISSING_MAX) this.#missing.set(name, (this.#missing.get(name) ?? 0) + 1);
  }

  /** Receivers that messages name and that have not joined, and how many messages were for each. */
  missing(): ReadonlyMap<string, number> {
    return this.#missing;
  }

  #put(to: number, message: Message): void {
    const entry = this.#peers.get(to)!;
    entry.waitingBytes += cost(message);
    entry.waiting.push(message);
    while (entry.waitingBytes > this.#config.waitingBytesMax && entry.waiting.length > 1) {
      const oldest = entry.waiting.shift()!;
      entry.waitingBytes -= cost(oldest);
      entry.untold += oldest.count + oldest.told;
      this.stats.lost += oldest.count;
    }
    this.#ready.add(to);
  }

  /** When `handleTimeout` wants to be called; `undefined`: there is nothing to wait for. */
  timeout(): number | undefined {
    let next: number | undefined;
    for (const { dueMs } of this.#peers.values()) if (dueMs !== undefined && !(next! <= dueMs)) next = dueMs;
    return next;
  }

  handleTimeout(nowMs: number): void {
    for (const [id, entry] of this.#peers) if (entry.dueMs !== undefined && entry.dueMs <= nowMs) this.#release(id, entry);
  }

  /** A peer for which something has come to wait since it was told last. */
  pollReady(): number | undefined {
    const [id] = this.#ready;
    if (id !== undefined) this.#ready.delete(id);
    return id;
  }

  /** What is to be written to this peer next. */
  pollOutput(id: number): Message | undefined {
    const entry = this.#peers.get(id);
    this.#ready.delete(id);
    const message = entry?.waiting.shift();
    if (!entry || !message) return undefined;
    entry.waitingBytes -= cost(message);
    entry.sent += message.count;
    this.stats.sent += message.count;
    this.stats.sent_bytes += message.bytes;
    return message;
  }

  /** In the order in which they came. */
  peers(): readonly Peer[] {
    return [...this.#peers].map(([id, { ticket, received, sent, waitingBytes, bundle }]) => ({ ...ticket, id, received, sent, waitingBytes: waitingBytes + bundle.bytes }));
  }
}

const cost = ({ bytes }: Message): number => bytes + WAITING_BYTES;

function isName(name: string): boolean {
  const bytes = bytesOf(name);
  return bytes >= 1 && bytes <= NAME_BYTES_MAX && !/\p{Control}/u.test(name);
}
