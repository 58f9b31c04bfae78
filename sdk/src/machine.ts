// When to connect, with which transport, when to doubt a connection, when to move and when to stop. It decides only: time,
// randomness and the network are inputs, so every behaviour replays on virtual time (tests/machine.test.ts).
//
//            start                opened
//   idle ───────────► connecting ─────────► open ──┐ drain, use: a candidate opens beside it, then takes over
//                      ▲  │  ▲                │ ◄──┘
//        wake, visible,│  │  └────────────────┤ closed, or silent after a ping
//        online, timer │  ▼ failed            │
//                      └ waiting ◄────────────┘
//                          │ offline, hidden            close, giveUpAfter, a refusal that another try cannot change
//                          └─► paused                   ─► closed (from anywhere, for good)
import { MillraceError } from './errors.js';
import type { State, TransportName } from './types.js';

export interface MachineOptions {
  /** Best first; never empty. */
  readonly order: readonly TransportName[];
  /** Uniform in [0, 1). */
  readonly random: () => number;
  readonly retry?: { readonly min?: number; readonly max?: number; readonly factor?: number; readonly jitter?: 'full' | 'none'; readonly giveUpAfter?: number } | undefined;
  readonly pauseHidden?: boolean;
}

export type Input =
  | { readonly type: 'start' | 'online' | 'offline' | 'visible' | 'hidden' | 'wake' }
  | { readonly type: 'opened'; readonly link: number; readonly rtt: number }
  /** Something came in; the next sign of life is due within `withinMs`. */
  | { readonly type: 'alive'; readonly link: number; readonly withinMs: number }
  | { readonly type: 'closed'; readonly link: number; readonly error: MillraceError }
  | { readonly type: 'drain'; readonly link: number; readonly afterMs: number }
  /** Keep to these transports from now on. */
  | { readonly type: 'use'; readonly order: readonly TransportName[] }
  | { readonly type: 'close'; readonly cause?: MillraceError | undefined };

export type Output =
  | { readonly type: 'open'; readonly link: number; readonly transport: TransportName }
  | { readonly type: 'abort'; readonly link: number }
  /** This link carries the traffic from now on. */
  | { readonly type: 'active'; readonly link: number }
  /** Make the server say something. */
  | { readonly type: 'ping'; readonly link: number }
  /** What `use` asked for did not open; the active link stays. */
  | { readonly type: 'stayed'; readonly error: MillraceError }
  | { readonly type: 'state'; readonly state: State };

interface Link {
  readonly transport: TransportName;
  readonly since: number;
  readonly openBy: number;
}

/** All in ms. */
const RACE = 1_500;
const OPEN_WITHIN = 10_000;
const STABLE = 10_000;
const FIRST_RETRY = 300;
const WAKE_GRACE = 2_000;
const PING_GRACE = 10_000;
/** A timer that fires later than this tells of a sleep or a throttled page, not of a silent server. */
const LATE = 1_000;
const HIDDEN_GRACE = 10_000;
const HIDDEN_DRAIN_FACTOR = 5;

export class Machine {
  #state: State = { name: 'idle' };
  #outputs: Output[] = [];
  #order: readonly TransportName[];
  /** The order before `use`, until what it asked for is open. */
  #orderBefore: readonly TransportName[] | undefined;
  #ids = 0;
  /** Links that are being opened. */
  #candidates = new Map<number, Link>();
  #active: { id: number; transport: TransportName; since: number } | undefined;
  /** Transports of `order` not tried in this attempt. */
  #untried: TransportName[] = [];
  #cause: MillraceError | undefined;
  /** A candidate of this attempt failed in a way that another try may change. */
  #hope = false;
  #attempt = 0;
  #wasOpen = false;
  #offline = false;
  #hidden = false;
  /** Without a connection since. */
  #lostAt: number | undefined;

  // Deadlines.
  #raceAt = Infinity;
  #retryAt = Infinity;
  #aliveBy = Infinity;
  #pongBy = Infinity;
  /** The late-timer grace was given and nothing has come since. */
  #spared = false;
  #moveAt = Infinity;
  #pauseAt = Infinity;

  readonly #random: () => number;
  readonly #retry: { min: number; max: number; factor: number; jitter: 'full' | 'none'; giveUpAfter: number };
  readonly #pauseHidden: boolean;

  constructor(options: MachineOptions) {
    this.#order = options.order;
    this.#random = options.random;
    this.#retry = { min: 500, max: 20_000, factor: 2, jitter: 'full', giveUpAfter: Infinity, ...options.retry };
    this.#pauseHidden = options.pauseHidden ?? false;
  }

  get state(): State {
    return this.#state;
  }

  pollOutput(): Output | undefined {
    return this.#outputs.shift();
  }

  /** When `handleTimeout` is due; Infinity if nothing waits for time. */
  pollTimeout(): number {
    let next = Math.min(this.#raceAt, this.#retryAt, this.#aliveBy, this.#pongBy, this.#moveAt, this.#pauseAt);
    for (const link of this.#candidates.values()) next = Math.min(next, link.openBy);
    return next;
  }

  handleInput(now: number, input: Input): void {
    if (this.#state.name === 'closed') return;
    switch (input.type) {
      case 'start':
        if (this.#state.name === 'idle') this.#connect(now);
        return;
      case 'opened':
        return this.#opened(now, input.link, input.rtt);
      case 'alive':
        if (input.link !== this.#active?.id) return;
        this.#aliveBy = now + input.withinMs;
        this.#pongBy = Infinity;
        this.#spared = false;
        return;
      case 'closed':
        if (input.link === this.#active?.id) this.#lost(now, input.error);
        else this.#failed(now, input.link, input.error);
        return;
      case 'drain':
        if (input.link !== this.#active?.id || this.#moveAt < Infinity) return;
        this.#moveAt = now + this.#random() * input.afterMs * (this.#hidden ? HIDDEN_DRAIN_FACTOR : 1);
        return;
      case 'use':
        this.#abortCandidates();
        if (this.#active && this.#active.transport !== input.order[0]) {
          this.#orderBefore ??= this.#order;
          this.#open(now, input.order[0]!);
        }
        this.#order = input.order;
        if (!this.#active) this.#connect(now);
        return;
      case 'offline':
        this.#offline = true;
        // The browser's word is not proof: what is open must fail the test before it is given up.
        if (this.#active) this.#ping(now, WAKE_GRACE);
        else if (this.#retryAt < Infinity) this.#wait(now);
        return;
      case 'hidden':
        this.#hidden = true;
        if (this.#pauseHidden) this.#pauseAt = now + HIDDEN_GRACE;
        return;
      case 'visible':
        this.#hidden = false;
        this.#pauseAt = Infinity;
        return this.#wake(now);
      case 'online':
        this.#offline = false;
        if (this.#state.name === 'paused' && this.#state.reason === 'hidden') return;
        return this.#wake(now);
      case 'wake':
        return this.#wake(now);
      case 'close':
        return this.#close(input.cause);
    }
  }

  handleTimeout(now: number): void {
    if (this.#state.name === 'closed') return;
    for (const [id, link] of [...this.#candidates]) {
      if (now >= link.openBy && this.#candidates.has(id)) {
        this.#emit({ type: 'abort', link: id });
        this.#failed(now, id, new MillraceError('timeout', `${link.transport} did not open in time`, { transport: link.transport }));
      }
    }
    if (now >= this.#raceAt) {
      this.#raceAt = Infinity;
      this.#openNext(now);
    }
    if (now >= this.#pauseAt) {
      this.#pauseAt = Infinity;
      this.#drop();
      this.#set({ name: 'paused', reason: 'hidden' });
    }
    if (now >= this.#retryAt) this.#connect(now);
    if (now >= this.#moveAt) {
      this.#moveAt = Infinity;
      if (!this.#candidates.size) this.#open(now, this.#active!.transport);
    }
    if (now >= this.#pongBy) {
      // Overdue because this timer was late: what has arrived meanwhile gets one turn to be read first.
      if (now - this.#pongBy > LATE && !this.#spared) {
        this.#spared = true;
        this.#pongBy = now + LATE;
      } else this.#silent(now);
    } else if (now >= this.#aliveBy) {
      this.#ping(now, now - this.#aliveBy > LATE ? WAKE_GRACE : PING_GRACE);
    }
  }

  #emit(output: Output): void {
    this.#outputs.push(output);
  }

  #set(state: State): void {
    this.#state = state;
    this.#emit({ type: 'state', state });
  }

  /** Starts an attempt: the first transport now, the others as it fails or takes too long. */
  #connect(now: number): void {
    this.#retryAt = Infinity;
    this.#lostAt ??= now;
    this.#abortCandidates();
    this.#untried = [...this.#order];
    this.#hope = false;
    const cause = this.#cause && { cause: this.#cause };
    this.#set({ name: 'connecting', attempt: this.#attempt, transport: this.#order[0]!, ...cause });
    this.#openNext(now);
  }

  #openNext(now: number): void {
    const transport = this.#untried.shift();
    if (!transport) return;
    this.#open(now, transport);
    this.#raceAt = this.#untried.length ? now + RACE : Infinity;
  }

  #open(now: number, transport: TransportName): void {
    const id = ++this.#ids;
    this.#candidates.set(id, { transport, since: now, openBy: now + OPEN_WITHIN });
    this.#emit({ type: 'open', link: id, transport });
  }

  #opened(now: number, id: number, rtt: number): void {
    const link = this.#candidates.get(id);
    if (!link) return;
    this.#candidates.delete(id);
    this.#abortCandidates();
    const before = this.#active;
    this.#active = { id, transport: link.transport, since: now };
    this.#moveAt = Infinity;
    this.#aliveBy = now + OPEN_WITHIN;
    this.#pongBy = Infinity;
    this.#lostAt = this.#cause = this.#orderBefore = undefined;
    // What has just worked is tried first next time; a chosen order of one stays as it is.
    this.#order = [link.transport, ...this.#order.filter((name) => name !== link.transport)];
    if (before) this.#emit({ type: 'abort', link: before.id });
    this.#emit({ type: 'active', link: id });
    this.#set({ name: 'open', transport: link.transport, rtt, resumed: this.#wasOpen });
    this.#wasOpen = true;
  }

  /** A candidate failed. */
  #failed(now: number, id: number, error: MillraceError): void {
    if (!this.#candidates.delete(id)) return;
    if (this.#active) {
      this.#order = this.#orderBefore ?? this.#order;
      this.#orderBefore = undefined;
      return this.#emit({ type: 'stayed', error });
    }
    this.#cause = error;
    this.#hope ||= error.retryable;
    if (error.code === 'auth' && !error.retryable) return this.#close(error);
    if (this.#untried.length) return this.#openNext(now);
    if (this.#candidates.size) return;
    if (!this.#hope) return this.#close(error);
    this.#retryLater(now, error);
  }

  /** The active link is gone. */
  #lost(now: number, error: MillraceError): void {
    const { since } = this.#active!;
    const moveAt = this.#moveAt;
    this.#active = undefined;
    this.#aliveBy = this.#pongBy = this.#moveAt = Infinity;
    this.#cause = error;
    this.#lostAt = now;
    const stable = now - since >= STABLE;
    if (stable) this.#attempt = 0;
    if (!error.retryable) return this.#close(error);
    // A replacement (drain, use) is on its way already.
    if (this.#candidates.size) {
      this.#untried = [];
      return this.#set({ name: 'connecting', attempt: this.#attempt, transport: this.#order[0]!, cause: error });
    }
    if (moveAt < Infinity) this.#wait(Math.max(now, moveAt));
    else this.#retryLater(now, error, stable);
  }

  #retryLater(now: number, error: MillraceError, soon = false): void {
    if (now - (this.#lostAt ??= now) >= this.#retry.giveUpAfter) return this.#close(error);
    const { min, max, factor, jitter } = this.#retry;
    const spread = jitter === 'full' ? this.#random() : 1;
    const ceiling = soon ? Math.min(FIRST_RETRY, max) : Math.min(max, min * factor ** this.#attempt);
    // Everybody was told the same `retryAfter`: spread by a fifth so that they do not come back as one.
    const delay = error.retryAfter === undefined ? spread * ceiling : error.retryAfter * (1 + this.#random() / 5);
    this.#attempt++;
    this.#wait(Math.min(now + delay, this.#lostAt + this.#retry.giveUpAfter));
  }

  #wait(until: number): void {
    this.#abortCandidates();
    // Browsers are wrong about being offline at times, so it is tried all the same, if rarely.
    this.#retryAt = this.#offline ? until + this.#retry.max : until;
    if (this.#offline) return this.#set({ name: 'paused', reason: 'offline' });
    const cause = this.#cause && { cause: this.#cause };
    this.#set({ name: 'connecting', attempt: this.#attempt, transport: this.#order[0]!, retryAt: this.#retryAt, ...cause });
  }

  #wake(now: number): void {
    if (this.#active) return this.#ping(now, WAKE_GRACE);
    if (this.#state.name === 'idle') return;
    // An attempt that is older than a moment may hang on a network that is no more.
    const stale = [...this.#candidates.values()].some((link) => now - link.since > WAKE_GRACE);
    if (!this.#candidates.size || stale) this.#connect(now);
  }

  #ping(now: number, graceMs: number): void {
    this.#aliveBy = Infinity;
    this.#pongBy = Math.min(this.#pongBy, now + graceMs);
    this.#emit({ type: 'ping', link: this.#active!.id });
  }

  #silent(now: number): void {
    const { id, transport } = this.#active!;
    this.#emit({ type: 'abort', link: id });
    this.#lost(now, new MillraceError('timeout', `${transport} fell silent`, { transport }));
  }

  #abortCandidates(): void {
    for (const id of this.#candidates.keys()) this.#emit({ type: 'abort', link: id });
    this.#candidates.clear();
    this.#raceAt = Infinity;
  }

  /** Lets go of every link and every deadline. */
  #drop(): void {
    this.#abortCandidates();
    if (this.#active) this.#emit({ type: 'abort', link: this.#active.id });
    this.#active = undefined;
    this.#retryAt = this.#aliveBy = this.#pongBy = this.#moveAt = this.#pauseAt = Infinity;
  }

  #close(cause?: MillraceError): void {
    this.#drop();
    this.#set(cause ? { name: 'closed', cause } : { name: 'closed' });
  }
}
