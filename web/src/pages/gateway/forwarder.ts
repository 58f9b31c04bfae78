/**
 * The forwarding of a gateway: forwards a message, gathers messages of several peers into a bundle, or splits a bundle.
 * It behaves as `crates/rtc/src/forward` does. It has no connections and no clock: messages and the time are inputs,
 * messages to write to peers are outputs.
 */
import { asText, Bundle, bytesOf, item, read, startsWith, type Data } from './bundle';

/** Maximum size of a device's message. In a bundle, the message may be six times as long. */
export const MESSAGE_BYTES_MAX = 16 * 1024;
/** Maximum size of a bundle to split. */
export const BUNDLE_BYTES_MAX = 256 * 1024;
export const NAME_BYTES_MAX = 64;
/** Maximum number of stored names of missing receivers. */
const MISSING_MAX = 8;
/** Overhead of a queued message, in addition to its bytes. */
const WAITING_BYTES = 64;

/** Settings for all peers (docs/reference/gateway.md, "Modes"). */
export interface Config {
  readonly gathers: boolean;
  readonly splits: boolean;
  /** Time from the first message of a bundle until the bundle is sent. */
  readonly windowMs: number;
  /** Maximum size of a bundle. A bundle that would exceed it is sent before. A single longer message is sent alone. */
  readonly bundleBytesMax: number;
  /** Maximum bytes queued for a slow receiver. Above this, the oldest messages are dropped. */
  readonly waitingBytesMax: number;
  readonly peersMax: number;
}

export const DEFAULTS: Config = { gathers: false, splits: false, windowMs: 250, bundleBytesMax: 16 * 1024, waitingBytesMax: 1 << 20, peersMax: 64 };

/** Request of a peer to join. */
export interface JoinRequest {
  readonly name: string;
  /** Receiver of the messages of this peer. */
  readonly to?: string;
  /** Prefix of messages that are sent without delay. */
  readonly urgent?: string;
}

/** A refused join. `code` is sent to the peer. */
export class JoinRefused extends Error {
  constructor(
    readonly code: 'bad_request' | 'name_taken' | 'unavailable',
    message: string,
  ) {
    super(message);
  }
}

/** A message to write to a peer. */
export interface Message {
  readonly data: Data;
  readonly bytes: number;
  /** Number of device messages that it contains. */
  readonly count: number;
  /** Number of lost messages that it reports. */
  readonly reportedLost: number;
}

/**
 * Counters of messages since the start, with the names of `GET /v1/stats`. A gathered message counts once when it is
 * received and once when it is sent.
 */
export interface Stats {
  received: number;
  received_bytes: number;
  sent: number;
  sent_bytes: number;
  gathered_bundles: number;
  split_bundles: number;
  /** Messages sent at once because they were urgent. */
  urgent: number;
  /** Messages dropped because their receiver was too slow. */
  lost: number;
  /** Messages whose receiver was not joined. */
  nowhere: number;
  /** Messages that were too large, or were not a bundle as required. */
  refused: number;
}

/** A peer, with the number of device messages that it has sent and received. */
export interface Peer extends JoinRequest {
  readonly id: number;
  readonly received: number;
  readonly sent: number;
  readonly waitingBytes: number;
}

interface Entry {
  readonly request: JoinRequest;
  readonly bundle: Bundle;
  readonly waiting: Message[];
  waitingBytes: number;
  /** Time at which its bundle is sent. */
  dueMs: number | undefined;
  /** Dropped messages that no bundle has reported yet. */
  unreportedLost: number;
  received: number;
  sent: number;
}

/**
 * All peers of a gateway.
 *
 * ```text
 *   handle ──► to the receiver as it is ───────────────┐
 *     │                                                ▼
 *     ├──────► bundle of the receiver ── window, ──► waiting ── pollOutput
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

  /**
   * Changes the settings. If gathering ends, all bundles are sent, so that new messages do not overtake them. A window
   * that has started keeps its length.
   */
  configure(change: Partial<Config>): void {
    this.#config = { ...this.#config, ...change };
    if (!this.#config.gathers) for (const [id, entry] of this.#peers) this.#release(id, entry);
  }

  /** Adds a peer and returns its id. From now on, messages for the peer are queued. Throws `JoinRefused`. */
  join(request: JoinRequest): number {
    if (!isName(request.name) || (request.to !== undefined && !isName(request.to))) throw new JoinRefused('bad_request', `a name has 1 to ${NAME_BYTES_MAX} bytes and no control characters`);
    if (this.#byName.has(request.name)) throw new JoinRefused('name_taken', `a device named “${request.name}” has already joined; choose another name`);
    if (this.#peers.size >= this.#config.peersMax) throw new JoinRefused('unavailable', `the gateway has its maximum of ${this.#config.peersMax} devices; try again later`);
    const id = ++this.#serial;
    this.#missing.delete(request.name);
    this.#byName.set(request.name, id);
    this.#peers.set(id, { request, bundle: new Bundle(), waiting: [], waitingBytes: 0, dueMs: undefined, unreportedLost: 0, received: 0, sent: 0 });
    return id;
  }

  /** Removes a peer. Messages gathered from this peer are still sent; messages queued for this peer are dropped. */
  leave(id: number): void {
    const entry = this.#peers.get(id);
    if (!entry) return;
    this.#peers.delete(id);
    this.#byName.delete(entry.request.name);
    this.#ready.delete(id);
    this.stats.nowhere += entry.waiting.reduce((sum, { count }) => sum + count, 0) + entry.bundle.count;
  }

  /** Processes a message from this peer. */
  handle(nowMs: number, from: number, message: Data | ArrayBuffer): void {
    const sender = this.#peers.get(from);
    if (!sender) return;
    const { stats } = this;
    const [data, config] = [asText(message), this.#config];
    const bytes = bytesOf(data);
    sender.received++;
    stats.received++;
    stats.received_bytes += bytes;
    const { name, to, urgent } = sender.request;
    if (to === undefined) {
      if (config.splits) this.#split(data, bytes);
      else stats.nowhere++;
      return;
    }
    if (bytes > MESSAGE_BYTES_MAX) return void stats.refused++;
    const id = this.#byName.get(to);
    if (id === undefined) return this.#miss(to);
    if (!config.gathers) return this.#put(id, { data, bytes, count: 1, reportedLost: 0 });
    this.#gather(nowMs, name, id, data, urgent !== undefined && startsWith(data, urgent));
  }

  #gather(nowMs: number, from: string, to: number, data: Data, isUrgent: boolean): void {
    const { bundleBytesMax, windowMs } = this.#config;
    const entry = this.#peers.get(to)!;
    const { bundle } = entry;
    if (bundle.bytes && bundle.bytes + bytesOf(item(from, data)) + 2 > bundleBytesMax) this.#release(to, entry);
    if (!bundle.count && entry.unreportedLost) {
      bundle.pushLost(entry.unreportedLost);
      entry.unreportedLost = 0;
    }
    bundle.push(from, data);
    this.stats.urgent += +isUrgent;
    if (isUrgent || bundle.bytes + 1 >= bundleBytesMax) this.#release(to, entry);
    else entry.dueMs ??= nowMs + windowMs;
  }

  /** Queues the bundle of this receiver for sending. */
  #release(to: number, entry: Entry): void {
    entry.dueMs = undefined;
    const { count, lost: reportedLost } = entry.bundle;
    if (!count) return;
    this.stats.gathered_bundles++;
    const data = entry.bundle.take();
    this.#put(to, { data, bytes: bytesOf(data), count, reportedLost });
  }

  #split(data: Data, bytes: number): void {
    const bundle = bytes <= BUNDLE_BYTES_MAX ? read(data) : undefined;
    if (!bundle) return void this.stats.refused++;
    this.stats.split_bundles++;
    for (const { peer, data } of bundle.parts) {
      const to = this.#byName.get(peer);
      if (to === undefined) this.#miss(peer);
      else this.#put(to, { data, bytes: bytesOf(data), count: 1, reportedLost: 0 });
    }
  }

  /** Counts a message for a receiver that has not joined. The names come from devices, so their number is limited. */
  #miss(name: string): void {
    this.stats.nowhere++;
    if (this.#missing.has(name) || this.#missing.size < MISSING_MAX) this.#missing.set(name, (this.#missing.get(name) ?? 0) + 1);
  }

  /** Returns receivers that have not joined, with the number of messages for each. */
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
      entry.unreportedLost += oldest.count + oldest.reportedLost;
      this.stats.lost += oldest.count;
    }
    this.#ready.add(to);
  }

  /** Returns when `handleTimeout` is due; `undefined` if no bundle is open. */
  timeout(): number | undefined {
    let next: number | undefined;
    for (const { dueMs } of this.#peers.values()) if (dueMs !== undefined && !(next! <= dueMs)) next = dueMs;
    return next;
  }

  handleTimeout(nowMs: number): void {
    for (const [id, entry] of this.#peers) if (entry.dueMs !== undefined && entry.dueMs <= nowMs) this.#release(id, entry);
  }

  /** Returns a peer with queued messages that were added since the last call. */
  pollReady(): number | undefined {
    const [id] = this.#ready;
    if (id !== undefined) this.#ready.delete(id);
    return id;
  }

  /** Returns the next message to write to this peer. */
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

  /** Returns the peers in the order in which they joined. */
  peers(): readonly Peer[] {
    return [...this.#peers].map(([id, { request, received, sent, waitingBytes, bundle }]) => ({ ...request, id, received, sent, waitingBytes: waitingBytes + bundle.bytes }));
  }
}

const cost = ({ bytes }: Message): number => bytes + WAITING_BYTES;

function isName(name: string): boolean {
  const bytes = bytesOf(name);
  return bytes >= 1 && bytes <= NAME_BYTES_MAX && !/\p{Control}/u.test(name);
}
