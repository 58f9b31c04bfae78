// The subscriptions of all tabs on one connection of the leader. Each channel or pattern has one wire subscription,
// which lasts as long as a tab reads it. Every tab receives only what it has subscribed, from its own position on.
// Channels and patterns have a relay each, and a connection each: within a session, the server reads every channel only
// once, from one position.
import type { MillraceError } from '../errors.js';
import type { Hub } from '../hub.js';
import type { Wanted } from '../link.js';
import { isNewer } from '../position.js';
import type { Item, Message } from '../subscription.js';
import type { Gap } from '../types.js';
import { matcher } from '../wildcards.js';

export interface StartedAt {
  /** Absent for a pattern. */
  readonly position?: string | undefined;
  readonly recovered?: boolean | undefined;
  readonly time: number;
}

/** The link of one tab. */
export interface Reader {
  /** Called once per subscription, and again whenever the wire subscription has started again. */
  started(channel: string, at: StartedAt): void;
  /** Sends the text of a push. */
  push(text: string): void;
  refused(channel: string, cause?: MillraceError): void;
  /** Returns whether the tab has subscribed to the channel by its name. */
  reads(channel: string): boolean;
}

/** Where one tab reads a wire. */
interface Place {
  readonly policy: 'every' | 'latest';
  /** The position, or for a pattern the time, after which the tab reads. Undefined means from now on. */
  since: string | undefined;
  /** For a pattern: the last position of each channel. */
  readonly positions: Map<string, string>;
  started: boolean;
}

interface Wire {
  readonly places: Map<Reader, Place>;
  /** Set for a pattern. */
  readonly matches: RegExp | undefined;
  /** Start of the next wire subscription: the newest position received, or for a pattern a time. */
  since: string | undefined;
  readonly positions: Map<string, string>;
  /** Whether the wire subscription may have been sent, and whether the server has answered it. */
  sent: boolean;
  live: boolean;
  /** Server time at which the wire subscription started, ms. An older message comes from history. */
  liveFrom: number;
}

export const isPattern = (channel: string): boolean => /[+#]/.test(channel);
/** A start of a pattern as a number: `earliest` is before every time. */
const timeOf = (since: string | undefined): number => (since === undefined ? Infinity : since === 'earliest' ? -Infinity : +since);

export class Relay {
  readonly #wires = new Map<string, Wire>();
  readonly #changed: () => void;
  readonly #answered: () => Promise<unknown>;
  /** Settles when everything that was sent up to the end of this turn is answered. */
  #turn: Promise<unknown> | undefined;
  /** Channels whose wire subscription has just ended. A new one waits until the server has answered the old one. */
  readonly #blocked = new Map<string, Promise<unknown>>();
  /** Server's clock minus this machine's, ms. */
  #skew = 0;

  /**
   * `changed` is called when the wire subscriptions have changed. The promise of `answered` settles when the server has
   * answered everything that was sent before.
   */
  constructor(changed: () => void, answered: () => Promise<unknown>) {
    this.#changed = changed;
    this.#answered = answered;
  }

  get size(): number {
    return this.#wires.size;
  }

  /** Called when no tab reads anything any longer. */
  onEmpty = (): void => {};

  /** The relay as the links to the server see it. */
  readonly hub: Hub = {
    subscribe() {
      throw new Error('the leader subscribes for its tabs only');
    },
    wanted: () => [...this.#wires].filter(([channel]) => !this.#blocked.has(channel)).map(([channel, wire]) => this.#wanted(channel, wire)),
    started: (channel, at) => this.#started(channel, at),
    receive: (item) => this.#receive(item),
    refused: (channel, cause) => this.#refused(channel, cause),
    // The desk ends the links of the tabs.
    end: () => this.#wires.clear(),
  };

  subscribe(reader: Reader, { channel, policy, since, positions = {} }: Wanted): void {
    const found = this.#wires.get(channel);
    const wire = found ?? { places: new Map(), matches: isPattern(channel) ? matcher(channel) : undefined, since, positions: new Map(Object.entries(positions)), sent: false, live: false, liveFrom: 0 };
    const place: Place = { policy, since, positions: new Map(Object.entries(positions)), started: false };
    const before = policyOf(wire);
    wire.places.set(reader, place);
    this.#wires.set(channel, wire);
    if (!found) return this.#changed();
    if (!wire.sent) rewind(wire, place);
    else if (wire.live) {
      if (isBehind(wire, place)) this.#restart(channel, wire);
      else this.#start(reader, channel, wire, place, true);
    }
    if (policyOf(wire) !== before) this.#changed();
  }

  unsubscribe(reader: Reader, channel: string): void {
    const wire = this.#wires.get(channel);
    if (!wire?.places.has(reader)) return;
    const before = policyOf(wire);
    wire.places.delete(reader);
    if (wire.places.size && policyOf(wire) === before) return;
    if (!wire.places.size) {
      this.#wires.delete(channel);
      this.#block(channel);
    }
    this.#changed();
    if (!this.#wires.size) this.onEmpty();
  }

  /** Ends all subscriptions of a tab. */
  remove(reader: Reader): void {
    for (const channel of [...this.#wires.keys()]) this.unsubscribe(reader, channel);
  }

  #wanted(channel: string, wire: Wire): Wanted {
    wire.sent = true;
    const want = { channel, policy: policyOf(wire), since: wire.since };
    return wire.matches ? { ...want, positions: Object.fromEntries(wire.positions) } : want;
  }

  #started(channel: string, { position, recovered, time }: { position?: string; recovered?: boolean; time: number }): void {
    const wire = this.#wires.get(channel);
    if (!wire || this.#blocked.has(channel)) return;
    wire.live = true;
    // The reply for a pattern that starts in the past has the time of its start, `earliest` is 0.
    if (!wire.matches || wire.since === undefined) this.#skew = time - Date.now();
    wire.liveFrom = Date.now() + this.#skew;
    wire.since ??= wire.matches ? String(time) : position;
    let late = false;
    for (const [reader, place] of wire.places) {
      if (!place.started && isBehind(wire, place)) late = true;
      else this.#start(reader, channel, wire, place, recovered);
    }
    // A tab that came while the request was on its way reads from an earlier position.
    if (late) this.#restart(channel, wire);
  }

  /** Starts a tab at its own place, or at the newest one. */
  #start(reader: Reader, channel: string, wire: Wire, place: Place, recovered: boolean | undefined): void {
    const time = place.started ? wire.liveFrom : Date.now() + this.#skew;
    if (!place.started) {
      place.started = true;
      if (wire.matches && place.since === undefined) for (const [name, at] of wire.positions) place.positions.set(name, at);
      place.since ??= wire.matches ? String(time) : wire.since;
    }
    reader.started(channel, wire.matches ? { recovered, time } : { position: place.since, recovered, time });
  }

  /** Subscribes again from the earliest place of all tabs. The tabs that are further discard what they already have. */
  #restart(channel: string, wire: Wire): void {
    wire.live = wire.sent = false;
    this.#block(channel);
    this.#changed();
  }

  /** Delays the next wire subscription of a channel. Otherwise the answer to the last one could be taken for its. */
  #block(channel: string): void {
    const turn = (this.#turn ??= Promise.resolve().then(() => {
      this.#turn = undefined;
      return this.#answered();
    }));
    this.#blocked.set(channel, turn);
    void turn.then(() => {
      if (this.#blocked.get(channel) !== turn) return;
      this.#blocked.delete(channel);
      const wire = this.#wires.get(channel);
      if (!wire) return;
      for (const place of wire.places.values()) if (!place.started) rewind(wire, place);
      this.#changed();
    });
  }

  #receive(item: Item): void {
    const { channel, position, to: at = position } = item as Message & Gap;
    const { time = Infinity } = item as Message;
    const readers = new Set<Reader>();
    const plain = this.#wires.get(channel);
    if (plain) {
      // Until the server has answered, messages of the previous wire subscription may arrive.
      if (plain.live && isNewer(at, plain.since)) plain.since = at;
      for (const [reader, place] of plain.places) {
        if (!place.started || !isNewer(at, place.since)) continue;
        place.since = at;
        readers.add(reader);
      }
    }
    for (const wire of this.#wires.values()) {
      if (!wire.matches?.test(channel)) continue;
      if (wire.live && isNewer(at, wire.positions.get(channel))) wire.positions.set(channel, at);
      for (const [reader, { started, since, positions }] of wire.places) {
        const last = positions.get(channel);
        if (!started || !(last ? isNewer(at, last) : time >= wire.liveFrom || time >= timeOf(since))) continue;
        positions.set(channel, at);
        // Otherwise the tab receives it over the other connection, which may be behind this one.
        if (!reader.reads(channel)) readers.add(reader);
      }
    }
    if (!readers.size) return;
    const text = JSON.stringify({ push: 'to' in item ? 'gap' : 'message', ...item });
    readers.forEach((reader) => reader.push(text));
  }

  #refused(channel: string, cause?: MillraceError): boolean {
    const wire = this.#wires.get(channel);
    this.#wires.delete(channel);
    wire?.places.forEach((_, reader) => reader.refused(channel, cause));
    if (!this.#wires.size) this.onEmpty();
    return !!wire;
  }
}

const policyOf = ({ places }: Wire): 'every' | 'latest' => ([...places.values()].every(({ policy }) => policy === 'latest') ? 'latest' : 'every');

/** Returns whether the wire subscription cannot give the tab everything after its place. */
function isBehind(wire: Wire, { since, positions }: Place): boolean {
  if (since === undefined) return false;
  if (!wire.matches) return isNewer(wire.since!, since);
  if (timeOf(since) < timeOf(wire.since)) return true;
  return [...wire.positions].some(([channel, at]) => {
    const last = positions.get(channel);
    return !last || isNewer(at, last);
  });
}

/** Lets the next wire subscription start no later than at the place of a tab. */
function rewind(wire: Wire, { since, positions }: Place): void {
  if (since === undefined) return;
  if (!wire.matches) {
    if (wire.since === undefined || isNewer(wire.since, since)) wire.since = since;
    return;
  }
  if (timeOf(since) < timeOf(wire.since)) wire.since = since;
  for (const [channel, at] of [...wire.positions]) {
    const last = positions.get(channel);
    if (!last) wire.positions.delete(channel);
    else if (isNewer(at, last)) wire.positions.set(channel, last);
  }
}
