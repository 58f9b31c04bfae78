// The client. It supplies the state machine with time and network, supplies the links with a hub, and settles the
// promises of the application.
import { pauseOf } from './backoff.js';
import { MillraceError, toError } from './errors.js';
import { hub, type Hub } from './hub.js';
import type { Ask, Commands, Draft, LinkHost, Payload, Transport } from './link.js';
import { call, onAbort, orAborted, TIMER_MAX } from './listen.js';
import { machine, type Attempt, type Input } from './machine.js';
import { checkChannel, offsetOf } from './position.js';
import { baseOf } from './request.js';
import type { Channels, Client, ConnectOptions, State, Stats, TransportName } from './types.js';

/** A client without the functions of extras.ts, which use `ask`. */
export interface Core<M = Channels> extends Omit<Client<M>, 'history' | 'pages' | 'presence' | 'rpc'> {
  readonly ask: Ask;
}

/**
 * Creates a client with the given transports, best first. `widen` is `wildcards`, or absent. index.ts exports a client
 * with all features.
 */
export function client<M = Channels>(
  url: string | URL,
  transports: readonly Transport[],
  options: ConnectOptions = {},
  widen: (hub: Hub, changed: () => void) => Hub = (hub) => hub,
): Core<M> {
  const { signal, retry, hidden, transports: chosen = 'auto', log } = options;
  const usable = transports.filter((transport) => transport.usable?.(options) ?? true);
  const scope = globalThis as Partial<Window & typeof globalThis>;
  const base = baseOf(url);
  const counts = { rtt: 0, bytesIn: 0, bytesOut: 0, messages: 0, reconnects: 0, gaps: 0, lost: 0 } as LinkHost['counts'];
  const listeners = new Set<(state: State) => void>();
  /** Removes the listeners on the page when the client closes. */
  const over = new AbortController();
  let active: Attempt | undefined;
  let timer: ReturnType<typeof setTimeout> | undefined;
  let pumping = false;
  /** Last reading of the clock, and total time by which the clock was set back since the start, ms. */
  let last = 0;
  let setBack = 0;
  /** Rejects the pending call of `use`. */
  let rejectUse: (error: MillraceError) => void = () => {};

  const named = (name: TransportName): Transport => {
    const found = usable.find((transport) => transport.name === name);
    if (!found) throw new MillraceError('rejected', `the transport ${name} is not available here`);
    return found;
  };
  const orderOf = (names: 'auto' | readonly TransportName[]): TransportName[] =>
    (names === 'auto' ? usable.filter((transport) => !transport.byNameOnly) : names.map(named)).map(({ name }) => name);

  const decide = machine({ order: orderOf(chosen), random: Math.random, retry, pauseHidden: hidden === 'pause' });
  const changed = (): void => {
    input('start');
    active?.io?.changed();
  };
  const channels = widen(hub(counts, changed, (channel, since, limit, signal) => ask('history', { channel, since, limit }, signal)), changed);

  /** Returns the time of this machine. The result never decreases. */
  function now(): number {
    const time = Date.now();
    if (time < last) setBack += last - time;
    last = time;
    return time + setBack;
  }

  function input(...what: Input): void {
    decide.handleInput(now(), ...what);
    // A function called from here may call `input` again. The loop that is already running processes the outputs of
    // that input.
    if (pumping) return;
    pumping = true;
    for (let output; (output = decide.pollOutput()); ) perform[output[0]](output[1] as never);
    pumping = false;
    clearTimeout(timer);
    const dueMs = decide.pollTimeout() - now();
    if (dueMs < Infinity) timer = setTimeout(() => input('timeout'), Math.min(dueMs, TIMER_MAX));
  }

  const perform = {
    open(link: Attempt) {
      const { transport } = link;
      link.io = named(transport).open({
        ...options,
        base,
        hub: channels,
        counts,
        report(type, value) {
          if (type === 'closed') log?.({ level: 'info', msg: `${transport}: ${value}`, error: value });
          input(...([type, value, link] as Input));
        },
      });
    },
    abort: ({ io }: Attempt) => io?.close(),
    active(link: Attempt) {
      active = link;
      link.io?.changed();
    },
    ping: ({ io }: Attempt) => io?.ping(),
    stayed: (error: MillraceError) => rejectUse(error),
    state(state: State) {
      const { retryAt } = state as { retryAt?: number };
      log?.({ level: retryAt ? 'info' : 'debug', msg: state.name + (retryAt ? `: next try in ${Math.round(retryAt - now())} ms` : ''), state });
      if (state.name === 'open') {
        counts.transport = state.transport;
        counts.rtt = state.rtt;
        counts.reconnects += +state.resumed;
      } else active = undefined;
      if (state.name === 'closed') {
        over.abort();
        channels.end(state.cause);
      }
      listeners.forEach((fn) => call(fn, state));
    },
  };

  const ending = (): MillraceError => (decide.state as { cause?: MillraceError }).cause ?? toError('closed', 'aborted');

  function onState(fn: (state: State) => void): () => void {
    listeners.add(fn);
    return () => void listeners.delete(fn);
  }

  /** Settles when the client is open with `transport`, or with any transport if `transport` is undefined. */
  function until(transport?: TransportName, signal?: AbortSignal, timeout?: number): Promise<void> {
    let off!: () => void;
    let timer: ReturnType<typeof setTimeout> | undefined;
    const open = new Promise<void>((resolve, reject) => {
      const check = (state: State): void => {
        if (state.name === 'closed') reject(ending());
        else if (state.name === 'open' && (!transport || transport === state.transport)) resolve();
      };
      if (transport) rejectUse = reject;
      off = onState(check);
      if (timeout) timer = setTimeout(() => reject(new MillraceError('timeout', `not open after ${timeout} ms: ${(decide.state as { cause?: Error }).cause?.message}`)), timeout);
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

  /** Settles after `ms`, or when the state changes. */
  function pause(ms: number): Promise<void> {
    return new Promise((resolve) => {
      const done = (): void => {
        clearTimeout(timer);
        off();
        resolve();
      };
      const off = onState(done);
      const timer = setTimeout(done, ms);
    });
  }

  /**
   * Sends a command over the open link. After a retryable error the command is repeated: at once on a new link, because
   * the machine has paused before it opened that link, and after a pause on the same link. An `rpc` is not repeated.
   */
  async function ask<C extends keyof Commands>(command: C, body: Commands[C][0], signal?: AbortSignal): Promise<Commands[C][1]> {
    const { channel, method } = body as Partial<Draft & Commands['rpc'][0]>;
    checkChannel(channel ?? method!);
    for (let attempt = 0; ; attempt++) {
      await ready({ signal });
      const link = active;
      try {
        if (!link) throw new MillraceError('network', 'the connection was lost');
        return await orAborted(link.io!.ask(command, body, signal), signal);
      } catch (thrown) {
        const error = toError(thrown);
        if (!error.retryable || error.reason || method) throw error;
        if (link === active) await orAborted(pause(pauseOf(error, attempt, retry)), signal);
      }
    }
  }

  async function close(): Promise<void> {
    input('close');
  }

  onAbort(over.signal, onAbort(signal, close));
  if (scope.addEventListener) {
    // Events after which the network may have changed.
    const handleEvent = ({ type }: { type: string }): void => input(/line$/.test(type) ? (type as 'online' | 'offline') : scope.document?.hidden ? 'hidden' : 'visible');
    for (const type of ['online', 'offline', 'visibilitychange', 'resume', 'pageshow']) scope.addEventListener(type, handleEvent, over);
    handleEvent({ type: '' });
  }

  return {
    get state() {
      return decide.state;
    },
    onState,
    ready,
    subscribe(channel, options = {}) {
      if (decide.state.name === 'closed') throw ending();
      return channels.subscribe(channel, options);
    },
    async publish(channel, data, { signal, key, ttl, idempotencyKey = randomKey() } = {}) {
      const { position } = await ask('publish', { channel, ...payloadOf(data), key, ttl, idempotency_key: idempotencyKey }, signal);
      return { position, offset: offsetOf(position) };
    },
    ask,
    stats: (): Stats => ({ ...counts }),
    async use(name) {
      const order = orderOf(name === 'auto' ? name : [name]);
      rejectUse(toError(`replaced by ${name}`, 'aborted'));
      input('use', order);
      await until(order[0]);
    },
    wake: () => input('wake'),
    close,
    [Symbol.asyncDispose]: close,
  };
}

/** Returns a random idempotency key. `crypto.randomUUID` is missing on pages without TLS. */
export const randomKey = (): string => crypto.getRandomValues(new Uint32Array(4)).join('-');

/**
 * Encodes a payload. Throws `invalid` for a value that JSON cannot express: `undefined`, a function, a bigint, a
 * circular object.
 */
export function payloadOf(data: unknown): Payload {
  if (data instanceof ArrayBuffer) data = new Uint8Array(data);
  if (data instanceof Uint8Array) return { type: 'application/octet-stream', data: data as Uint8Array<ArrayBuffer> };
  if (typeof data === 'string') return { type: 'text/plain', data };
  try {
    const json = JSON.stringify(data) as string | undefined;
    if (json !== undefined) return { type: 'application/json', data: json };
    data = typeof data;
  } catch (thrown) {
    data = (thrown as Error).message;
  }
  throw new MillraceError('invalid', `data is not JSON: ${data}`);
}
