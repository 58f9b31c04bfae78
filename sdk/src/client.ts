// The client: gives the machine time and network, the links a hub to report to, and the application its promises.
import { MillraceError, aborted, toError } from './errors.js';
import { hub } from './hub.js';
import type { Commands, Link, Transport } from './link.js';
import { call, onAbort, orAborted } from './listen.js';
import { machine, type Attempt, type Input } from './machine.js';
import { checkChannel, parsePosition, withOffset } from './position.js';
import { toEvent } from './subscription.js';
import type { Channels, Client, ConnectOptions, State, Stats, TransportName } from './types.js';

/** A timer cannot be longer than 24 days, ms. */
const TIMER_MAX = 1e9;

/** A client of the given transports, best first. See index.ts for one with all of them. */
export function client<M = Channels>(url: string | URL, transports: readonly Transport[], options: ConnectOptions = {}): Client<M> {
  const { signal, retry, hidden, transports: chosen = 'auto', log } = options;
  const usable = transports.filter((transport) => transport.usable?.(options) ?? true);
  const scope = globalThis as Partial<Window & typeof globalThis>;
  const base = new URL(url, scope.location?.href).href.replace(/\/*([?#].*)?$/, '');
  const counts = { transport: undefined as TransportName | undefined, rtt: 0, bytesIn: 0, bytesOut: 0, messages: 0, reconnects: 0, gaps: 0 };
  const listeners = new Set<(state: State) => void>();
  /** Ends what listens to the page. */
  const over = new AbortController();
  let active: Attempt | undefined;
  let timer: ReturnType<typeof setTimeout> | undefined;
  let timerAt = Infinity;
  let pumping = false;
  /** The clock's last reading, and how far it was set back since the start, ms. */
  let last = 0;
  let setBack = 0;
  /** Rejects the `use` that waits. */
  let stayed: (error: MillraceError) => void = () => {};

  const named = (name: TransportName): Transport => {
    const found = usable.find((transport) => transport.name === name);
    if (!found) throw new MillraceError('rejected', `no transport ${name} here`);
    return found;
  };
  const orderOf = (names: 'auto' | readonly TransportName[]): TransportName[] => (names === 'auto' ? usable : names.map(named)).map(({ name }) => name);

  const decide = machine({ order: orderOf(chosen), random: Math.random, retry, pauseHidden: hidden === 'pause' });
  const channels = hub(
    counts,
    () => {
      input('start');
      ioOf(active)?.changed();
    },
    (channel, since, limit, signal) => ask('history', { channel, since, limit }, signal),
  );

  const ioOf = (link: Attempt | undefined): Link | undefined => link?.io as Link | undefined;

  /** This machine's clock, but never backwards. */
  function now(): number {
    const time = Date.now();
    if (time < last) setBack += last - time;
    last = time;
    return time + setBack;
  }

  function input(...input: Input): void {
    decide.handleInput(now(), ...input);
    pump();
  }

  function pump(): void {
    // Whoever is called from here may come back with an input: its outputs are done by the loop that runs already.
    if (pumping) return;
    pumping = true;
    for (let output; (output = decide.pollOutput()); ) carryOut[output[0]](output[1] as never);
    pumping = false;
    // Every message moves a deadline back: the timer stays, and is set anew when it fires too early.
    const due = decide.pollTimeout();
    if (due >= timerAt && due < Infinity) return;
    clearTimeout(timer);
    timerAt = due;
    if (due === Infinity) return;
    timer = setTimeout(() => {
      timerAt = Infinity;
      decide.handleTimeout(now());
      pump();
    }, Math.min(due - now(), TIMER_MAX));
  }

  const carryOut = {
    open(link: Attempt) {
      const { transport } = link;
      link.io = named(transport).open({
        ...options,
        base,
        hub: channels,
        counts,
        say(...[type, value]) {
          if (type === 'closed') log?.({ level: 'info', msg: `${transport}: ${value}`, error: value });
          input(...([type, value, link] as Input));
        },
      });
    },
    abort: (link: Attempt) => ioOf(link)?.close(),
    active(link: Attempt) {
      active = link;
      ioOf(link)?.changed();
    },
    ping: (link: Attempt) => ioOf(link)?.ping(),
    stayed: (error: MillraceError) => stayed(error),
    state(state: State) {
      log?.({ level: 'debug', msg: state.name, state });
      if (state.name === 'open') {
        counts.transport = state.transport;
        counts.rtt = state.rtt;
        counts.reconnects += +state.resumed;
      }
      if (state.name === 'closed') {
        over.abort();
        channels.end(state.cause);
      }
      listeners.forEach((fn) => call(fn, state));
    },
  };

  const ending = (): MillraceError => (decide.state as { cause?: MillraceError }).cause ?? aborted('the client is closed');

  function onState(fn: (state: State) => void): () => void {
    listeners.add(fn);
    return () => void listeners.delete(fn);
  }

  /** Settles when open with `transport`, or with any. */
  function until(transport?: TransportName, signal?: AbortSignal, timeout?: number): Promise<void> {
    let off!: () => void;
    let timer: ReturnType<typeof setTimeout> | undefined;
    const open = new Promise<void>((resolve, reject) => {
      const check = (state: State): void => {
        if (state.name === 'closed') reject(ending());
        else if (state.name === 'open' && (!transport || transport === state.transport)) resolve();
      };
      if (transport) stayed = reject;
      off = onState(check);
      timer = timeout ? setTimeout(() => reject(new MillraceError('timeout', `not open after ${timeout} ms`)), timeout) : undefined;
      check(decide.state);
    });
    return orAborted(open, signal).finally(() => {
      clearTimeout(timer);
      off();
    });
  }

  function ready({ signal, timeout }: { signal?: AbortSignal | undefined; timeout?: number } = {}): Promise<void> {
    input('start');
    return until(undefined, signal, timeout);
  }

  /** Asks the link that is open, and the next one if that goes away before it answers. */
  async function ask<C extends keyof Commands>(command: C, body: Commands[C][0], signal?: AbortSignal): Promise<Commands[C][1]> {
    checkChannel(body.channel);
    for (;;) {
      await ready({ signal });
      try {
        return await orAborted(ioOf(active)!.ask(command, body, signal), signal);
      } catch (thrown) {
        const error = toError(thrown);
        if (!error.retryable || error.reason) throw error;
      }
    }
  }

  async function close(): Promise<void> {
    input('close');
  }

  onAbort(over.signal, onAbort(signal, close));
  if (scope.addEventListener) {
    // The signs that the network may have changed.
    const seen = ({ type }: { type: string }): void => input(type === 'online' || type === 'offline' ? type : scope.document?.hidden ? 'hidden' : 'visible');
    for (const type of ['online', 'offline', 'visibilitychange', 'resume', 'pageshow']) scope.addEventListener(type, seen, over);
    seen({ type: '' });
  }

  const made: Client<any> = {
    get state() {
      return decide.state;
    },
    onState,
    ready,
    subscribe(channel, options = {}) {
      if (decide.state.name === 'closed') throw ending();
      return channels.subscribe(channel, options);
    },
    async publish(channel, data, { signal, key, ttl, idempotencyKey = randomId() } = {}) {
      const { position } = await ask('publish', { channel, data: (data as unknown) instanceof ArrayBuffer ? new Uint8Array(data) : data, key, ttl, idempotency_key: idempotencyKey }, signal);
      return { position, offset: parsePosition(position).offset };
    },
    async *presence(channel, { signal, everyMs = 5000 } = {}) {
      try {
        for (let last; ; ) {
          const { count } = await ask('presence', { channel }, signal);
          if (count !== last) yield { count };
          last = count;
          await orAborted(new Promise((resolve) => setTimeout(resolve, everyMs)), signal);
        }
      } catch (thrown) {
        if (toError(thrown).code !== 'aborted') throw thrown;
      }
    },
    async history(channel, { since = 'earliest', limit = 100, signal } = {}) {
      const get = (since: string, limit: number) => ask('history', { channel, since, limit }, signal);
      const { messages, position, gap } = await get(typeof since === 'string' ? since : withOffset((await get('now', 1)).position, since), limit);
      return Object.assign(messages.map((message) => toEvent({ ...message, channel }, true)), { position, ...(gap && { gap }) }) as any;
    },
    stats: (): Stats => ({ ...counts }),
    async use(name) {
      const order = orderOf(name === 'auto' ? name : [name]);
      stayed(aborted(`${name} was asked for meanwhile`));
      input('use', order);
      await until(order[0]);
    },
    wake: () => input('wake'),
    close,
    [Symbol.asyncDispose]: close,
  };
  return made;
}

/** `crypto.randomUUID` is missing on pages without TLS. */
function randomId(): string {
  return crypto.getRandomValues(new Uint32Array(4)).join('-');
}
