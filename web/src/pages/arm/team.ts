/** Wearers in one page: their connections, movements, vibrations, and the one-way ages of these. */
import { MillraceError } from '@millrace/client';
import { reasonOf } from '../../lib/format';
import { after } from '../gateway/clock';
import { nowMs, Order, quantile } from '../gateway/sample';
import { join, type Link, type Movement } from './link';
import type { TopologyName } from './topology';

/** Maximum number of ages kept. */
const KEPT_MAX = 5_000;
/** Number of movements shown. */
const RECENT = 8;
/** Interval of checks of the network paths. */
const PATHS_MS = 2_000;
/** Wearers that join at the same time: each opens up to nine connections. */
const JOINING_MAX = 3;

export interface Plan {
  readonly topology: TopologyName;
  readonly group: string;
  readonly wearers: number;
  /** Whether the device itself vibrates. */
  readonly vibrates: boolean;
}

export interface Wearer {
  readonly name: string;
  state: 'joining' | 'joined' | 'failed';
  trouble: string;
  moved: number;
  vibrated: number;
  /** Time of the last movement and vibration by `performance.now()`. */
  movedAtMs: number;
  vibratedAtMs: number;
}

/** A movement, and the wearers of this page that vibrated. */
export interface Seen {
  readonly from: string;
  readonly number: number;
  readonly vibrated: string[];
  maxAgeMs: number;
}

export interface Snapshot {
  readonly wearers: readonly Wearer[];
  readonly open: number;
  readonly wanted: number;
  /** Whether all wearers of this page are connected. */
  readonly isReady: boolean;
  readonly recent: readonly Seen[];
  readonly moved: number;
  readonly vibrated: number;
  readonly missing: number;
  readonly duplicates: number;
  readonly p50: number | undefined;
  readonly p99: number | undefined;
  readonly max: number | undefined;
  readonly paths: readonly string[];
  /** The server's message, if it refused this page. */
  readonly refusal: string | undefined;
}

export class Team {
  readonly #plan: Plan;
  readonly #members: { readonly wearer: Wearer; link?: Link }[];
  readonly #over = new AbortController();
  readonly #ages: number[] = [];
  readonly #order = new Order();
  #recent: Seen[] = [];
  #paths: readonly string[] = [];
  #refusal: string | undefined;
  #automatic: (() => void) | undefined;

  constructor(plan: Plan, token: string | undefined) {
    this.#plan = plan;
    // Several tabs join one group, so names differ between tabs.
    const tab = Math.random().toString(36).slice(2, 6);
    this.#members = Array.from({ length: plan.wearers }, (_, i) => {
      const wearer: Wearer = { name: `${tab}-${i + 1}`, state: 'joining', trouble: '', moved: 0, vibrated: 0, movedAtMs: -Infinity, vibratedAtMs: -Infinity };
      return { wearer };
    });
    const waiting = [...this.#members];
    for (let i = 0; i < JOINING_MAX; i++) void this.#joinAll(waiting, token);
    this.#watchPaths();
  }

  async #joinAll(waiting: { readonly wearer: Wearer; link?: Link }[], token: string | undefined): Promise<void> {
    for (let member; (member = waiting.shift()) && !this.#over.signal.aborted; ) {
      const { wearer } = member;
      const ended = (cause: MillraceError | undefined): void => this.#fail(wearer, cause ?? new Error('the connection ended'));
      try {
        const { topology, group } = this.#plan;
        member.link = await join({ topology, group, wearer: wearer.name, token, receive: (movement) => this.#receive(wearer, movement), ended });
        if (this.#over.signal.aborted) return void member.link.close();
        if (wearer.state === 'joining') wearer.state = 'joined';
      } catch (thrown) {
        this.#fail(wearer, thrown);
      }
    }
  }

  #fail(wearer: Wearer, cause: unknown): void {
    if (this.#over.signal.aborted) return;
    Object.assign(wearer, { state: 'failed', trouble: reasonOf(cause) });
    if (cause instanceof MillraceError && cause.code === 'auth') this.#refusal = cause.message;
  }

  /** Moves a wearer of this page: all others vibrate. */
  move(name: string): void {
    const member = this.#members.find(({ wearer }) => wearer.name === name);
    if (!member?.link) return;
    const { wearer, link } = member;
    const number = ++wearer.moved;
    wearer.movedAtMs = performance.now();
    this.#seen(name, number);
    link.send({ from: name, number, atMs: nowMs() });
  }

  /** Moves a random wearer `hz` times per second; 0 ends that. */
  automatic(hz: number): void {
    this.#automatic?.();
    this.#automatic = undefined;
    if (hz <= 0) return;
    const next = (): void => {
      this.move(this.#members[Math.floor(Math.random() * this.#members.length)]!.wearer.name);
      this.#automatic = after(1000 / hz, next);
    };
    this.#automatic = after(1000 / hz, next);
  }

  #seen(from: string, number: number): Seen {
    const known = this.#recent.find((seen) => seen.from === from && seen.number === number);
    if (known) return known;
    const seen: Seen = { from, number, vibrated: [], maxAgeMs: 0 };
    this.#recent = [seen, ...this.#recent].slice(0, RECENT);
    return seen;
  }

  #receive(wearer: Wearer, { from, number, atMs }: Movement): void {
    const age = nowMs() - atMs;
    wearer.vibrated++;
    wearer.vibratedAtMs = performance.now();
    this.#order.observe(`${from}\n${wearer.name}`, number);
    this.#ages.push(age);
    if (this.#ages.length > KEPT_MAX) this.#ages.splice(0, KEPT_MAX / 10);
    const seen = this.#seen(from, number);
    seen.vibrated.push(wearer.name);
    seen.maxAgeMs = Math.max(seen.maxAgeMs, age);
    if (this.#plan.vibrates) navigator.vibrate?.(80);
  }

  #watchPaths(): void {
    after(PATHS_MS, () => {
      if (this.#over.signal.aborted) return;
      const link = this.#members.find((member) => member.link)?.link;
      void link?.paths().then((paths) => (this.#paths = paths), () => {});
      this.#watchPaths();
    });
  }

  snapshot(): Snapshot {
    const connections = this.#members.map(({ link }) => link?.connections() ?? { open: 0, wanted: 1 });
    const sum = (of: 'open' | 'wanted'): number => connections.reduce((total, one) => total + one[of], 0);
    const wearers = this.#members.map(({ wearer }) => ({ ...wearer }));
    const total = (of: 'moved' | 'vibrated'): number => wearers.reduce((total, one) => total + one[of], 0);
    const ages = [...this.#ages].sort((a, b) => a - b);
    const { missing, duplicates } = this.#order;
    return {
      wearers,
      open: sum('open'),
      wanted: sum('wanted'),
      isReady: wearers.every(({ state }) => state === 'joined') && sum('open') >= sum('wanted'),
      recent: this.#recent.map((seen) => ({ ...seen, vibrated: [...seen.vibrated] })),
      moved: total('moved'),
      vibrated: total('vibrated'),
      missing,
      duplicates,
      p50: quantile(ages, 0.5),
      p99: quantile(ages, 0.99),
      max: ages.at(-1),
      paths: this.#paths,
      refusal: this.#refusal,
    };
  }

  close(): void {
    this.#over.abort();
    this.automatic(0);
    for (const { link } of this.#members) void link?.close();
  }
}
