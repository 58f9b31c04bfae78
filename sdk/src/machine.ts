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
import { pauseOf } from './backoff.js';
import { MillraceError } from './errors.js';
import type { Link } from './link.js';
import type { ConnectOptions, State, TransportName } from './types.js';

export interface MachineOptions {
  /** Best first; never empty. */
  readonly order: readonly TransportName[];
  /** Uniform in [0, 1). */
  readonly random: () => number;
  readonly retry?: ConnectOptions['retry'] | undefined;
  readonly pauseHidden?: boolean;
}

/** One link, from the attempt to open it to its end. */
export interface Attempt {
  readonly transport: TransportName;
  /** When it was begun; once it is open, since when it is. */
  since: number;
  /** The time by which it must have said something is over by `late` ms. */
  readonly overdue: (late: number) => void;
  /** Of no concern here: what the host keeps with it. */
  io?: Link;
}

/** What a link says of itself. */
export type LinkInput =
  | readonly ['opened', rtt: number]
  /** Something came in; the next sign of life is due within so many ms. */
  | readonly ['alive', withinMs: number]
  | readonly ['closed', error: MillraceError]
  | readonly ['drain', afterMs: number];

type Said<I> = I extends readonly [infer Type, infer Value] ? readonly [type: Type, value: Value, link: Attempt] : never;

export type Input =
  | Said<LinkInput>
  | readonly ['timeout' | 'start' | 'online' | 'offline' | 'visible' | 'hidden' | 'wake']
  /** Keep to these transports from now on. */
  | readonly ['use', order: readonly TransportName[]]
  | readonly ['close', cause?: MillraceError];

export type Output =
  | readonly ['open', Attempt]
  | readonly ['abort', Attempt]
  /** This link carries the traffic from now on. */
  | readonly ['active', Attempt]
  /** Make the server say something. */
  | readonly ['ping', Attempt]
  /** What `use` asked for did not open; the active link stays. */
  | readonly ['stayed', MillraceError]
  | readonly ['state', State];

/** All in ms. */
const RACE = 1_500;
/** For a link to open, to answer a ping, and to count as stable; for a page to be out of sight. */
const PATIENCE = 10_000;
const FIRST_RETRY = 300;
const WAKE_GRACE = 2_000;
/** A timer that fires later than this tells of a sleep or a throttled page, not of a silent server. */
const LATE = 1_000;
/** Minimum lifetime of a connection if the server asks to move. */
const STAY = 500;
const HIDDEN_DRAIN_FACTOR = 5;

export interface Machine {
  readonly state: State;
  handleInput(now: number, ...input: Input): void;
  /** When the input `timeout` is due; Infinity if nothing waits for time. */
  pollTimeout(): number;
  /** To be carried out in this order, after every input, until there is none. */
  pollOutput(): Output | undefined;
}

/** The machine at rest; the state diagram above is what it does. */
export function machine({ order, random, pauseHidden, retry }: MachineOptions): Machine {
  const { max = 20_000, giveUpAfter = Infinity } = retry ?? {};
  /** Time of the input that is being handled, ms. */
  let now = 0;
  let state: State = { name: 'idle' };
  const outputs: Output[] = [];
  /** What to do and when, ms. */
  const deadlines = new Map<(late: number) => void, number>();
  /** The order before `use`, until what it asked for is open. */
  let orderBefore: readonly TransportName[] | undefined;
  /** Links that are being opened. */
  const candidates = new Set<Attempt>();
  let active: Attempt | undefined;
  /** Transports of `order` not tried in this attempt. */
  let untried: TransportName[] = [];
  let cause: MillraceError | undefined;
  /** A candidate of this attempt failed in a way that another try may change. */
  let hope = false;
  let attempt = 0;
  let wasOpen = false;
  let offline = false;
  let hidden = false;
  /** The late-timer grace was given and nothing has come since. */
  let spared = false;
  /** Without a connection since. */
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
      // What has just worked is tried first next time; a chosen order of one stays as it is.
      order = [transport, ...order.filter((name) => name !== transport)];
      emit('active', link);
      set({ name: 'open', transport, rtt, resumed: wasOpen });
      wasOpen = true;
    },
    alive(withinMs: number, link) {
      if (link !== active) return;
      deadlines.set(quiet, now + withinMs);
      deadlines.delete(link.overdue);
      spared = false;
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
      // The browser's word is not proof: what is open must fail the test before it is given up.
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

  /** Starts an attempt: the first transport now, the others as it fails or takes too long. */
  function connect(): void {
    deadlines.delete(connect);
    lostAt ??= now;
    pauseLater();
    abortCandidates();
    untried = [...order];
    hope = false;
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
        if (late > LATE && !spared) {
          // The timer was late: what has arrived meanwhile gets one turn to be read first.
          spared = true;
          deadlines.set(link.overdue, now + LATE);
        } else {
          emit('abort', link);
          closed(new MillraceError('timeout', `no answer over ${transport}`, { transport }), link);
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

  /** No longer a candidate, nothing is due from it; false if it was none. */
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

  /** Lets go of every link and every deadline. */
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
    hope ||= error.retryable;
    if (error.code === 'auth' && !error.retryable) close(error);
    else if (untried.length) openNext();
    else if (!candidates.size) {
      if (hope) retryLater(error);
      else close(error);
    }
  }

  /** The active link is gone. */
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
      // A replacement (drain, use) is on its way already.
      untried = [];
      connecting();
    } else if (planned) wait(Math.max(now, planned));
    else retryLater(error, stable);
  }

  function retryLater(error: MillraceError, soon?: boolean): void {
    const giveUpAt = (lostAt ??= now) + giveUpAfter;
    if (now >= giveUpAt) return close(error);
    const pause = soon ? pauseOf(error, 0, { ...retry, min: FIRST_RETRY }, random()) : pauseOf(error, attempt, retry, random());
    attempt++;
    wait(Math.min(now + pause, giveUpAt));
  }

  function wait(until: number): void {
    abortCandidates();
    // Browsers are wrong about being offline at times, so it is tried all the same, if rarely.
    const retryAt = offline ? until + max : until;
    deadlines.set(connect, retryAt);
    if (offline) set({ name: 'paused', reason: 'offline' });
    else connecting({ retryAt });
  }

  function connecting(again?: { retryAt: number }): void {
    set({ name: 'connecting', attempt, transport: order[0]!, ...again, cause });
  }

  function wake(): void {
    // An attempt that is older than a moment may hang on a network that is no more.
    if (active) ping(WAKE_GRACE);
    else if (state.name !== 'idle' && (!candidates.size || [...candidates].some(({ since }) => now - since > WAKE_GRACE))) connect();
  }

  /** Nothing has come for too long. */
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
