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

/** What a link says of itself. */
export type LinkInput =
  | { readonly type: 'opened'; readonly rtt: number }
  /** Something came in; the next sign of life is due within `withinMs`. */
  | { readonly type: 'alive'; readonly withinMs: number }
  | { readonly type: 'closed'; readonly error: MillraceError }
  | { readonly type: 'drain'; readonly afterMs: number };

export type Input =
  | (LinkInput & { readonly link: number })
  | { readonly type: 'start' | 'online' | 'offline' | 'visible' | 'hidden' | 'wake' }
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

export interface Machine {
  readonly state: State;
  handleInput(now: number, input: Input): void;
  handleTimeout(now: number): void;
  /** When `handleTimeout` is due; Infinity if nothing waits for time. */
  pollTimeout(): number;
  /** To be carried out in this order, after every input, until there is none. */
  pollOutput(): Output | undefined;
}

/** The machine at rest; the state diagram above is what it does. */
export function machine({ order, random, pauseHidden = false, ...options }: MachineOptions): Machine {
  const retry = { min: 500, max: 20_000, factor: 2, jitter: 'full', giveUpAfter: Infinity, ...options.retry };
  let state: State = { name: 'idle' };
  const outputs: Output[] = [];
  /** The order before `use`, until what it asked for is open. */
  let orderBefore: readonly TransportName[] | undefined;
  let ids = 0;
  /** Links that are being opened. */
  const candidates = new Map<number, Link>();
  let active: { id: number; transport: TransportName; since: number } | undefined;
  /** Transports of `order` not tried in this attempt. */
  let untried: TransportName[] = [];
  let cause: MillraceError | undefined;
  /** A candidate of this attempt failed in a way that another try may change. */
  let hope = false;
  let attempt = 0;
  let wasOpen = false;
  let offline = false;
  let hidden = false;
  /** Without a connection since. */
  let lostAt: number | undefined;

  // Deadlines.
  let raceAt = Infinity;
  let retryAt = Infinity;
  let aliveBy = Infinity;
  let pongBy = Infinity;
  /** The late-timer grace was given and nothing has come since. */
  let spared = false;
  let moveAt = Infinity;
  let pauseAt = Infinity;

  function pollTimeout(): number {
    let next = Math.min(raceAt, retryAt, aliveBy, pongBy, moveAt, pauseAt);
    for (const link of candidates.values()) next = Math.min(next, link.openBy);
    return next;
  }

  function handleInput(now: number, input: Input): void {
    if (state.name === 'closed') return;
    switch (input.type) {
      case 'start':
        if (state.name === 'idle') connect(now);
        return;
      case 'opened':
        return opened(now, input.link, input.rtt);
      case 'alive':
        if (input.link !== active?.id) return;
        aliveBy = now + input.withinMs;
        pongBy = Infinity;
        spared = false;
        return;
      case 'closed':
        if (input.link === active?.id) lost(now, input.error);
        else failed(now, input.link, input.error);
        return;
      case 'drain':
        if (input.link !== active?.id || moveAt < Infinity) return;
        moveAt = now + random() * input.afterMs * (hidden ? HIDDEN_DRAIN_FACTOR : 1);
        return;
      case 'use':
        abortCandidates();
        if (active && active.transport !== input.order[0]) {
          orderBefore ??= order;
          open(now, input.order[0]!);
        }
        order = input.order;
        if (!active) connect(now);
        return;
      case 'offline':
        offline = true;
        // The browser's word is not proof: what is open must fail the test before it is given up.
        if (active) ping(now, WAKE_GRACE);
        else if (retryAt < Infinity) wait(now);
        return;
      case 'hidden':
        hidden = true;
        if (state.name !== 'idle') pauseLater(now);
        return;
      case 'visible':
        hidden = false;
        pauseAt = Infinity;
        return wake(now);
      case 'online':
        offline = false;
        if (state.name === 'paused' && state.reason === 'hidden') return;
        return wake(now);
      case 'wake':
        return wake(now);
      case 'close':
        return close(input.cause);
    }
  }

  function handleTimeout(now: number): void {
    if (state.name === 'closed') return;
    for (const [id, link] of [...candidates]) {
      if (now >= link.openBy && candidates.has(id)) {
        emit({ type: 'abort', link: id });
        failed(now, id, new MillraceError('timeout', `${link.transport} did not open in time`, { transport: link.transport }));
      }
    }
    if (now >= raceAt) {
      raceAt = Infinity;
      openNext(now);
    }
    if (now >= pauseAt) {
      pauseAt = Infinity;
      drop();
      set({ name: 'paused', reason: 'hidden' });
    }
    if (now >= retryAt) connect(now);
    if (now >= moveAt) {
      moveAt = Infinity;
      if (!candidates.size) open(now, active!.transport);
    }
    if (now >= pongBy) {
      // Overdue because this timer was late: what has arrived meanwhile gets one turn to be read first.
      if (now - pongBy > LATE && !spared) {
        spared = true;
        pongBy = now + LATE;
      } else silent(now);
    } else if (now >= aliveBy) {
      ping(now, now - aliveBy > LATE ? WAKE_GRACE : PING_GRACE);
    }
  }

  function emit(output: Output): void {
    outputs.push(output);
  }

  function set(next: State): void {
    state = next;
    emit({ type: 'state', state });
  }

  /** Starts an attempt: the first transport now, the others as it fails or takes too long. */
  function connect(now: number): void {
    retryAt = Infinity;
    lostAt ??= now;
    pauseLater(now);
    abortCandidates();
    untried = [...order];
    hope = false;
    connecting();
    openNext(now);
  }

  function pauseLater(now: number): void {
    if (hidden && pauseHidden) pauseAt = Math.min(pauseAt, now + HIDDEN_GRACE);
  }

  function openNext(now: number): void {
    const transport = untried.shift();
    if (!transport) return;
    open(now, transport);
    raceAt = untried.length ? now + RACE : Infinity;
  }

  function open(now: number, transport: TransportName): void {
    const id = ++ids;
    candidates.set(id, { transport, since: now, openBy: now + OPEN_WITHIN });
    emit({ type: 'open', link: id, transport });
  }

  function opened(now: number, id: number, rtt: number): void {
    const link = candidates.get(id);
    if (!link) return;
    candidates.delete(id);
    abortCandidates();
    const before = active;
    active = { id, transport: link.transport, since: now };
    moveAt = Infinity;
    aliveBy = now + OPEN_WITHIN;
    pongBy = Infinity;
    lostAt = cause = orderBefore = undefined;
    // What has just worked is tried first next time; a chosen order of one stays as it is.
    order = [link.transport, ...order.filter((name) => name !== link.transport)];
    if (before) emit({ type: 'abort', link: before.id });
    emit({ type: 'active', link: id });
    set({ name: 'open', transport: link.transport, rtt, resumed: wasOpen });
    wasOpen = true;
  }

  /** A candidate failed. */
  function failed(now: number, id: number, error: MillraceError): void {
    if (!candidates.delete(id)) return;
    if (active) {
      order = orderBefore ?? order;
      orderBefore = undefined;
      return emit({ type: 'stayed', error });
    }
    cause = error;
    hope ||= error.retryable;
    if (error.code === 'auth' && !error.retryable) return close(error);
    if (untried.length) return openNext(now);
    if (candidates.size) return;
    if (!hope) return close(error);
    retryLater(now, error);
  }

  /** The active link is gone. */
  function lost(now: number, error: MillraceError): void {
    const { since } = active!;
    const planned = moveAt;
    active = undefined;
    aliveBy = pongBy = moveAt = Infinity;
    cause = error;
    lostAt = now;
    const stable = now - since >= STABLE;
    if (stable) attempt = 0;
    if (!error.retryable) return close(error);
    // A replacement (drain, use) is on its way already.
    if (candidates.size) {
      untried = [];
      return connecting();
    }
    if (planned < Infinity) wait(Math.max(now, planned));
    else retryLater(now, error, stable);
  }

  function retryLater(now: number, error: MillraceError, soon = false): void {
    if (now - (lostAt ??= now) >= retry.giveUpAfter) return close(error);
    const { min, max, factor, jitter } = retry;
    const spread = jitter === 'full' ? random() : 1;
    const ceiling = soon ? Math.min(FIRST_RETRY, max) : Math.min(max, min * factor ** attempt);
    // Everybody was told the same `retryAfter`: spread by a fifth so that they do not come back as one.
    const delay = error.retryAfter === undefined ? spread * ceiling : error.retryAfter * (1 + random() / 5);
    attempt++;
    wait(Math.min(now + delay, lostAt + retry.giveUpAfter));
  }

  function wait(until: number): void {
    abortCandidates();
    // Browsers are wrong about being offline at times, so it is tried all the same, if rarely.
    retryAt = offline ? until + retry.max : until;
    if (offline) set({ name: 'paused', reason: 'offline' });
    else connecting({ retryAt: retryAt });
  }

  function connecting(again?: { retryAt: number }): void {
    set({ name: 'connecting', attempt, transport: order[0]!, ...again, ...(cause && { cause }) });
  }

  function wake(now: number): void {
    if (active) return ping(now, WAKE_GRACE);
    if (state.name === 'idle') return;
    // An attempt that is older than a moment may hang on a network that is no more.
    const stale = [...candidates.values()].some((link) => now - link.since > WAKE_GRACE);
    if (!candidates.size || stale) connect(now);
  }

  function ping(now: number, graceMs: number): void {
    aliveBy = Infinity;
    pongBy = Math.min(pongBy, now + graceMs);
    emit({ type: 'ping', link: active!.id });
  }

  function silent(now: number): void {
    const { id, transport } = active!;
    emit({ type: 'abort', link: id });
    lost(now, new MillraceError('timeout', `${transport} fell silent`, { transport }));
  }

  function abortCandidates(): void {
    for (const id of candidates.keys()) emit({ type: 'abort', link: id });
    candidates.clear();
    raceAt = Infinity;
  }

  /** Lets go of every link and every deadline. */
  function drop(): void {
    abortCandidates();
    if (active) emit({ type: 'abort', link: active.id });
    active = undefined;
    retryAt = aliveBy = pongBy = moveAt = pauseAt = Infinity;
  }

  function close(why?: MillraceError): void {
    drop();
    set(why ? { name: 'closed', cause: why } : { name: 'closed' });
  }

  return {
    get state() {
      return state;
    },
    handleInput,
    handleTimeout,
    pollTimeout,
    pollOutput: () => outputs.shift(),
  };
}
