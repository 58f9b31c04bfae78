// Data between linked participants: the messages of each sender arrive once and in order, on whichever path.
//
// Every message has its sender and a sequence number of that sender. A new link begins with `hello`: each side sends
// what it has received, and where new receivers begin. Missing messages are then sent from a bounded buffer. A hub
// forwards what it receives. A participant that no link reaches reads the channel `rooms/{room}/data`; meanwhile,
// senders also publish to it. Source: docs/reference/rooms.md, "Data".
import type { Link } from './link.js';
import type { FlowSnapshot } from './seat.js';
import type { Data, RoomState } from './types.js';
import { isByServer, neighbours } from './topology.js';

/** Limits of the buffer for links that break: messages, and characters of these. */
const BUFFER_MAX = 4096;
const BUFFER_CHARACTERS_MAX = 8 << 20;
/** Maximum number of messages of one sender that wait for an earlier one. */
const AHEAD_MAX = 4096;
/** Time without a link after which a participant is reached by the channel, ms. */
const LINK_TIMEOUT = 5_000;
/** A receiver sends an acknowledgment after this many messages, or after this time, ms. */
const ACK_EVERY = 64;
const ACK_AFTER = 250;

type Numbers = Record<string, number>;

interface Message {
  readonly from: string;
  readonly seq: number;
  readonly data: unknown;
  readonly size: number;
}

export interface FlowHost {
  readonly me: string;
  readonly links: ReadonlyMap<string, Link>;
  deliver(data: Data): void;
  /** Reports that `count` messages of a sender are lost: no participant has them any more. */
  lost(from: string, count: number): void;
  publish(message: object): void;
}

export interface Flow {
  send(data: unknown): void;
  follow(state: RoomState): void;
  opened(link: Link): void;
  closed(link: Link): void;
  received(link: Link, message: Record<string, unknown>): void;
  /** Receives a message from the channel. */
  read(data: unknown, position: string): void;
  /** Reports that no link will ever reach this participant. */
  unreachable(id: string): void;
  /** Called once a second. */
  tick(): void;
  /** Returns what the next page must know to continue after a reload. `at`: position in the channel. */
  snapshot(at: string): FlowSnapshot;
  /** Fields to add to the report to the server. */
  reportFields?(): object;
  end(): void;
}

export class LinkFlow implements Flow {
  readonly #host: FlowHost;
  #state!: RoomState;
  #seq = 0;
  /** Last sequence number delivered from each sender. */
  readonly #delivered = new Map<string, number>();
  readonly #ahead = new Map<string, Map<number, unknown>>();
  readonly #buffer: Message[] = [];
  #bufferCharacters = 0;
  /** Own sequence number when a participant was first seen. It receives the messages after that number. */
  readonly #base = new Map<string, number>();
  /** Last own sequence number that each participant has acknowledged. */
  readonly #acked = new Map<string, number>();
  /** Links whose `hello` was received. `#starts` holds the start numbers that were sent on each link. */
  readonly #greeted = new Set<Link>();
  /** Links whose peer receives too slowly. They begin again with `hello` when their queue has drained. */
  readonly #stalled = new Set<Link>();
  readonly #starts = new Map<Link, Numbers>();
  readonly #unacked = new Map<Link, { count: number; timer: ReturnType<typeof setTimeout> | undefined }>();
  /** Time since which a participant has no link, ms; and the participants that will never have one. */
  readonly #missing = new Map<string, number>();
  readonly #unreachable = new Set<string>();
  #byChannel = false;

  /** `before`: where the page before a reload has ended. */
  constructor(host: FlowHost, before?: FlowSnapshot) {
    this.#host = host;
    this.#seq = before?.seq ?? 0;
    for (const [from, seq] of Object.entries(numbers(before?.delivered))) this.#delivered.set(from, seq);
  }

  snapshot(at: string): FlowSnapshot {
    return { at, seq: this.#seq, delivered: Object.fromEntries(this.#delivered) };
  }

  send(data: unknown): void {
    const message = { from: this.#host.me, seq: ++this.#seq, data };
    this.#store(message);
    for (const link of this.#greeted) this.#write(link, message);
    if (this.#byChannel) this.#host.publish(message);
  }

  follow(state: RoomState): void {
    this.#state = state;
    const present = new Set(state.participants.map(({ id }) => id));
    for (const id of present) if (id !== this.#host.me && !this.#base.has(id)) this.#base.set(id, this.#seq);
    for (const map of [this.#base, this.#acked, this.#missing]) for (const id of map.keys()) if (!present.has(id)) map.delete(id);
    this.tick();
  }

  opened(link: Link, restart?: true): void {
    const start: Numbers = { [this.#host.me]: this.#base.get(link.to) ?? this.#seq };
    // A hub forwards the messages of all senders.
    if (this.#isHub) for (const [from, seq] of this.#delivered) if (from !== link.to) start[from] = seq;
    this.#starts.set(link, start);
    link.send({ hello: Object.fromEntries(this.#delivered), start, again: restart });
  }

  closed(link: Link): void {
    this.#greeted.delete(link);
    this.#starts.delete(link);
    this.#stalled.delete(link);
    clearTimeout(this.#unacked.get(link)?.timer);
    this.#unacked.delete(link);
  }

  received(link: Link, { hello, start, again, ack, lost, from, seq, data }: Record<string, unknown>): void {
    if (hello) {
      if (again) this.opened(link);
      this.#greet(link, numbers(hello), numbers(start));
    }
    else if (start) this.#begin(numbers(start));
    if (ack !== undefined) this.#acked.set(link.to, Math.max(Number(ack), this.#acked.get(link.to) ?? 0));
    else if (lost) for (const [from, seq] of Object.entries(numbers(lost))) this.#skip(from, seq);
    else if (typeof from === 'string' && Number.isSafeInteger(seq)) {
      this.#accept(from, seq as number, data);
      if (from === link.to) this.#ackLater(link);
    }
  }

  read(message: unknown): void {
    const { from, seq, data } = (message ?? {}) as Record<string, unknown>;
    if (typeof from !== 'string' || !Number.isSafeInteger(seq) || from === this.#host.me) return;
    if (!this.#delivered.has(from)) this.#delivered.set(from, (seq as number) - 1);
    this.#accept(from, seq as number, data);
  }

  unreachable(id: string): void {
    this.#unreachable.add(id);
    this.tick();
  }

  /** Finds participants that no link reaches, and uses the channel for them. */
  tick(): void {
    for (const link of this.#stalled) {
      if (!link.isIdle) continue;
      this.#stalled.delete(link);
      this.opened(link, true);
    }
    const now = performance.now();
    const { me, links } = this.#host;
    const reached = neighbours(this.#state, me);
    const others = this.#state.participants.map(({ id }) => id).filter((id) => id !== me);
    // A hub or the neighbors reach all other participants. The SFU does not accept data on its link, so all others need
    // the channel.
    const byServer = isByServer(this.#state.topology);
    const needed = byServer ? others : reached;
    for (const id of [...this.#missing.keys()]) if (!needed.includes(id)) this.#missing.delete(id);
    let byChannel = false;
    for (const id of needed) {
      const link = links.get(id);
      if (link && this.#greeted.has(link) && link.isOpen) {
        this.#missing.delete(id);
        continue;
      }
      if (!this.#missing.has(id)) this.#missing.set(id, now);
      byChannel ||= byServer || this.#unreachable.has(id) || now - this.#missing.get(id)! > LINK_TIMEOUT;
    }
    if (byChannel && !this.#byChannel) {
      const of = this.#state.topology === 'star' ? others : [...this.#missing.keys()];
      const had = Math.min(...of.map((id) => this.#acked.get(id) ?? this.#base.get(id) ?? this.#seq));
      for (const message of this.#buffer) if (message.from === me && message.seq > had) this.#host.publish(wire(message));
    }
    this.#byChannel = byChannel;
  }

  end(): void {
    for (const link of [...this.#unacked.keys()]) this.closed(link);
  }

  get #isHub(): boolean {
    return this.#state.topology === 'star' && this.#state.hub === this.#host.me;
  }

  #write(link: Link, message: object): void {
    if (this.#stalled.has(link) || link.send(message)) return;
    this.#greeted.delete(link);
    this.#stalled.add(link);
  }

  /**
   * Starts to receive from new senders after the given numbers; earlier messages are not expected. A hub forwards the
   * numbers to the other participants.
   */
  #begin(start: Numbers): void {
    for (const [from, seq] of Object.entries(start)) {
      if (from === this.#host.me || this.#delivered.has(from)) continue;
      this.#delivered.set(from, seq);
      if (this.#isHub) {
        for (const [link, sent] of this.#starts) {
          if (link.to === from || from in sent) continue;
          sent[from] = seq;
          link.send({ start: { [from]: seq } });
        }
      }
      this.#drain(from);
    }
  }

  #greet(link: Link, have: Numbers, start: Numbers): void {
    this.#begin(start);
    const sent = this.#starts.get(link) ?? {};
    const onlyFrom = this.#state.topology === 'star' ? undefined : this.#host.me;
    const lost: Numbers = {};
    const first = new Map<string, number>();
    for (const { from, seq } of this.#buffer) if (!first.has(from)) first.set(from, seq);
    // After a reload, the messages of the page before it are not in the buffer.
    if (!first.has(this.#host.me)) first.set(this.#host.me, this.#seq + 1);
    for (const [from, seq] of first) {
      const had = have[from] ?? sent[from];
      if (had !== undefined && had < seq - 1 && (!onlyFrom || onlyFrom === from)) lost[from] = seq - 1;
    }
    if (Object.keys(lost).length) link.send({ lost });
    for (const message of this.#buffer) {
      const { from, seq } = message;
      const had = have[from] ?? sent[from];
      if (had !== undefined && seq > had && from !== link.to && (!onlyFrom || onlyFrom === from)) this.#write(link, wire(message));
    }
    if (!this.#stalled.has(link)) this.#greeted.add(link);
  }

  #accept(from: string, seq: number, data: unknown): void {
    if (from === this.#host.me || seq <= (this.#delivered.get(from) ?? -1)) return;
    let ahead = this.#ahead.get(from);
    if (!ahead) this.#ahead.set(from, (ahead = new Map()));
    ahead.set(seq, data);
    if (ahead.size > AHEAD_MAX) this.#skip(from, Math.min(...ahead.keys()) - 1);
    this.#drain(from);
  }

  #skip(from: string, seq: number): void {
    const have = this.#delivered.get(from);
    if (have === undefined || have >= seq) return;
    this.#delivered.set(from, seq);
    this.#host.lost(from, seq - have);
    this.#drain(from);
  }

  #drain(from: string): void {
    const ahead = this.#ahead.get(from);
    if (!ahead || !this.#delivered.has(from)) return;
    for (let seq = this.#delivered.get(from)! + 1; ahead.has(seq); seq++) {
      const message = { from, seq, data: ahead.get(seq) };
      ahead.delete(seq);
      this.#delivered.set(from, seq);
      if (this.#state.topology === 'star') this.#store(message);
      if (this.#isHub) for (const link of this.#greeted) if (link.to !== from) this.#write(link, message);
      this.#host.deliver({ from, data: message.data });
    }
    if (!ahead.size) this.#ahead.delete(from);
  }

  #store(message: Omit<Message, 'size'>): void {
    const size = JSON.stringify(message.data)?.length ?? 0;
    this.#buffer.push({ ...message, size });
    this.#bufferCharacters += size;
    while (this.#buffer.length > BUFFER_MAX || (this.#bufferCharacters > BUFFER_CHARACTERS_MAX && this.#buffer.length > 1)) this.#bufferCharacters -= this.#buffer.shift()!.size;
  }

  #ackLater(link: Link): void {
    let owed = this.#unacked.get(link);
    if (!owed) this.#unacked.set(link, (owed = { count: 0, timer: undefined }));
    const ack = (): void => {
      clearTimeout(owed.timer);
      this.#unacked.delete(link);
      link.send({ ack: this.#delivered.get(link.to) });
    };
    owed.timer ??= setTimeout(ack, ACK_AFTER);
    if (++owed.count >= ACK_EVERY) ack();
  }
}

const wire = ({ from, seq, data }: Message): object => ({ from, seq, data });

/** Returns the entries of a peer's object that are integers. */
function numbers(value: unknown): Numbers {
  const entries = Object.entries((value ?? {}) as Record<string, unknown>).filter(([, seq]) => Number.isSafeInteger(seq));
  return Object.fromEntries(entries) as Numbers;
}
