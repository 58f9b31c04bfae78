// Decides when to connect, with which transport, when to test a connection, when to replace it and when to stop. The
// machine only decides: time, randomness and the network are inputs, so every behavior can be replayed with virtual
// time (tests/machine.test.ts).
//
//            start                opened
//   idle ───────────► connecting ─────────► open ──┐ drain, use: a candidate opens beside it, then replaces it
//                      ▲  │  ▲                │ ◄──┘
//        wake, visible,│  │  └────────────────┤ closed, or silent after a ping
//        online, timer │  ▼ failed            │
//                      └ waiting ◄────────────┘
//                          │ offline, hidden            close, giveUpAfter, an error that is not retryable
//                          └─► paused                   ─► closed (from any state, final)
import { pauseOf } from './backoff.js';
import { MillraceError } from './errors.js';
import type { Link } from './link.js';
import type { ConnectOptions, State, TransportName } from './types.js';

export interface MachineOptions {
  /** Transports, best first. Never empty. */
  readonly order: readonly TransportName[];
  /** Returns a random number, uniform in [0, 1). */
  readonly random: () => number;
  readonly retry?: ConnectOptions['retry'] | undefined;
  readonly pauseHidden?: boolean;
}

/** One link, from the attempt to open it until its end. */
export interface Attempt {
  readonly transport: TransportName;
  /** Time at which the attempt started; after `opened`, the time at which the link opened. */
  since: number;
  /** Called `late` ms after the deadline for the next sign of life. */
  readonly overdue: (late: number) => void;
  /** The host's link. The machine does not use it. */
  io?: Link;
}

/** An event reported by a link. */
export type LinkInput =
  | readonly ['opened', rtt: number]
  /** Data arrived. The next sign of life is due within `withinMs`. */
  | readonly ['alive', withinMs: number]
  | readonly ['closed', error: MillraceError]
  | readonly ['drain', afterMs: number];

type Reported<I> = I extends readonly [infer Type, infer Value] ? readonly [type: Type, value: Value, link: Attempt] : never;

export type Input =
  | Reported<LinkInput>
  | readonly ['timeout' | 'start' | 'online' | 'offline' | 'visible' | 'hidden' | 'wake']
  /** Uses only these transports from now on. */
  | readonly ['use', order: readonly TransportName[]]
  | readonly ['close', cause?: MillraceError];

export type Output =
  | readonly ['open', Attempt]
  | readonly ['abort', Attempt]
  /** This link carries the traffic from now on. */
  | readonly ['active', Attempt]
  /** Makes the server send a response. */
  | readonly ['ping', Attempt]
  /** The transport requested with `use` did not open. The active link stays. */
  | readonly ['stayed', MillraceError]
  | readonly ['state', State];

/** Delay before the next transport joins the race, ms. All times in this file are in ms. */
const RACE = 1_500;
/** Time limit to open or to answer a ping; minimum lifetime of a stable link; delay until a hidden page pauses. */
const PATIENCE = 10_000;
const FIRST_RETRY = 300;
const WAKE_GRACE = 2_000;
/** A timer that is later than this indicates a suspended machine or a throttled page, not a silent server. */
const LATE = 1_000;
/** Minimum lifetime of a connection if the server asks to move. */
const STAY = 500;
const HIDDEN_DRAIN_FACTOR = 5;

export interface Machine {
  readonly state: State;
  handleInput(now: number, ...input: Input): void;
  /** Returns when the input `timeout` is due, or Infinity if no deadline is set. */
  pollTimeout(): number;
  /** Returns the next output. After every input, the host carries out all outputs in this order, until none is left. */
  pollOutput(): Output | undefined;
}

/** Creates a machine in the state `idle`. The diagram above shows its transitions. */
export function machine({ order, random, pauseHidden, retry }: MachineOptions): Machine {
  const { max = 20_000, giveUpAfter = Infinity } = retry ?? {};
  /** Time of the current input, ms. */
  let now = 0;
  let state: State = { name: 'idle' };
  const outputs: Output[] = [];
  /** Actions and their deadlines, ms. */
  const deadlines = new Map<(late: number) => void, number>();
  /** The order before `use`, kept until the requested transport is open. */
  let orderBefore: readonly TransportName[] | undefined;
  /** Links that are being opened. */
  const candidates = new Set<Attempt>();
  let active: Attempt | undefined;
  /** Transports of `order` that were not tried yet in this attempt. */
  let untried: TransportName[] = [];
  let cause: MillraceError | undefined;
  /** Whether a candidate of this attempt failed with a retryable error. */
  let mayRetry = false;
  let attempt = 0;
  let wasOpen = false;
  let offline = false;
  let hidden = false;
  /** Whether a link was given extra time after a late timer, and has sent nothing since. */
  let graceGiven = false;
  /** Time since which no connection is open. */
  let lostAt: number | undefined;

  const inputs: Record<Input[0], (value: any, link: Attempt) => void> = {
    timeout() {
      for (const [act, at] of [...deadlines]) {
        if (now < at || deadlines.get(act) !== at) continue;
        deadlines.delete(act);
        act(now - at);
      }
    },
    start() {
      if (state.name === 'idle') connect();
    },
    opened(rtt: number, link) {
      if (!candidates.has(link)) return;
      settled(link);
      abortCandidates();
      if (active) abort(active);
      active = link;
      link.since = now;
      deadlines.delete(move);
      inputs.alive(PATIENCE, link);
      lostAt = cause = orderBefore = undefined;
      const { transport } = link;
      // The transport that has just opened is tried first next time. An order with one transport stays as it is.
      order = [...new Set([transport, ...order])];
      emit('active', link);
      set({ name: 'open', transport, rtt, resumed: wasOpen });
      wasOpen = true;
    },
    alive(withinMs: number, link) {
      if (link !== active) return;
      deadlines.set(quiet, now + withinMs);
      deadlines.delete(link.overdue);
      graceGiven = false;
    },
    closed,
    drain(afterMs: number, link) {
      if (link === active && !deadlines.has(move)) deadlines.set(move, Math.max(now + afterMs * (hidden ? HIDDEN_DRAIN_FACTOR : 1), link.since + STAY));
    },
    use(next: readonly TransportName[]) {
      abortCandidates();
      if (active && active.transport !== next[0]) {
        orderBefore ??= order;
        open(next[0]!);
      }
      order = next;
      if (!active) connect();
    },
    offline() {
      offline = true;
      // Browsers may report offline wrongly, so an open link is closed only if it fails the test.
      if (active) ping(WAKE_GRACE);
      else if (deadlines.has(connect)) wait(now);
    },
    hidden() {
      hidden = true;
      if (state.name !== 'idle') pauseLater();
    },
    visible() {
      hidden = false;
      deadlines.delete(pause);
      wake();
    },
    online() {
      offline = false;
      if (state.name !== 'paused' || state.reason === 'offline') wake();
    },
    wake,
    close,
  };

  function emit(...output: Output): void {
    outputs.push(output);
  }

  function set(next: State): void {
    state = next;
    emit('state', next);
  }

  /** Starts an attempt: opens the first transport now, and the next ones when it fails or takes too long. */
  function connect(): void {
    deadlines.delete(connect);
    lostAt ??= now;
    pauseLater();
    abortCandidates();
    untried = [...order];
    mayRetry = false;
    connecting();
    openNext();
  }

  function pauseLater(): void {
    if (hidden && pauseHidden && !deadlines.has(pause)) deadlines.set(pause, now + PATIENCE);
  }

  function pause(): void {
    drop();
    set({ name: 'paused', reason: 'hidden' });
  }

  function openNext(): void {
    const transport = untried.shift();
    deadlines.delete(openNext);
    if (transport) open(transport);
    if (untried.length) deadlines.set(openNext, now + RACE);
  }

  function open(transport: TransportName): void {
    const link: Attempt = {
      transport,
      since: now,
      overdue(late) {
        if (late > LATE && !graceGiven) {
          // The timer was late. Data that arrived meanwhile is read before the link is closed.
          graceGiven = true;
          deadlines.set(link.overdue, now + LATE);
        } else {
          emit('abort', link);
          closed(new MillraceError('timeout', `no response over ${transport}`, { transport }), link);
        }
      },
    };
    candidates.add(link);
    deadlines.set(link.overdue, now + PATIENCE);
    emit('open', link);
  }

  function move(): void {
    if (!candidates.size) open(active!.transport);
  }

  /** Removes a link from the candidates and clears its deadline. Returns false if the link was not a candidate. */
  function settled(link: Attempt): boolean {
    deadlines.delete(link.overdue);
    return candidates.delete(link);
  }

  function abort(link: Attempt): void {
    emit('abort', link);
    settled(link);
  }

  function abortCandidates(): void {
    candidates.forEach(abort);
    deadlines.delete(openNext);
  }

  /** Aborts every link and clears every deadline. */
  function drop(): void {
    abortCandidates();
    if (active) abort(active);
    active = undefined;
    deadlines.clear();
  }

  function closed(error: MillraceError, link: Attempt): void {
    const candidate = settled(link);
    if (link === active) return lost(error);
    if (!candidate) return;
    if (active) {
      order = orderBefore ?? order;
      orderBefore = undefined;
      return emit('stayed', error);
    }
    cause = error;
    mayRetry ||= error.retryable;
    if (error.code === 'auth' && !error.retryable) close(error);
    else if (untried.length) openNext();
    else if (!candidates.size) {
      if (mayRetry) retryLater(error);
      else close(error);
    }
  }

  /** Handles the loss of the active link. */
  function lost(error: MillraceError): void {
    const stable = now - active!.since >= PATIENCE;
    const planned = deadlines.get(move);
    active = undefined;
    deadlines.delete(quiet);
    deadlines.delete(move);
    cause = error;
    lostAt = now;
    if (stable) attempt = 0;
    if (!error.retryable) close(error);
    else if (candidates.size) {
      // A replacement (after drain or use) is already being opened.
      untried = [];
      connecting();
    } else if (planned) wait(Math.max(now, planned));
    else retryLater(error, stable);
  }

  function retryLater(error: MillraceError, soon?: boolean): void {
    const giveUpAt = (lostAt ??= now) + giveUpAfter;
    if (now >= giveUpAt) return close(error);
    const pause = pauseOf(error, attempt++, soon ? { ...retry, min: FIRST_RETRY } : retry, random());
    wait(Math.min(now + pause, giveUpAt));
  }

  function wait(until: number): void {
    abortCandidates();
    // Browsers may report offline wrongly, so the client retries even then, but rarely.
    const retryAt = offline ? until + max : until;
    deadlines.set(connect, retryAt);
    if (offline) set({ name: 'paused', reason: 'offline' });
    else connecting({ retryAt });
  }

  function connecting(again?: { retryAt: number }): void {
    set({ name: 'connecting', attempt, transport: order[0]!, ...again, cause });
  }

  function wake(): void {
    // An attempt that started some time ago may hang on a network that no longer exists.
    if (active) ping(WAKE_GRACE);
    else if (state.name !== 'idle' && (!candidates.size || [...candidates].some(({ since }) => now - since > WAKE_GRACE))) connect();
  }

  /** Tests the active link after the maximum silence. */
  function quiet(late: number): void {
    ping(late > LATE ? WAKE_GRACE : PATIENCE);
  }

  function ping(graceMs: number): void {
    const link = active!;
    deadlines.delete(quiet);
    deadlines.set(link.overdue, Math.min(deadlines.get(link.overdue) ?? Infinity, now + graceMs));
    emit('ping', link);
  }

  function close(why?: MillraceError): void {
    drop();
    set({ name: 'closed', cause: why });
  }

  return {
    get state() {
      return state;
    },
    handleInput(time, ...[type, value, link]: Input) {
      now = time;
      if (state.name !== 'closed') inputs[type](value, link!);
    },
    pollTimeout: () => Math.min(...deadlines.values()),
    pollOutput: () => outputs.shift(),
  };
}
