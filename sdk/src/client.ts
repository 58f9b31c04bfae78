// The client: gives the machine time and network, the links a hub to report to, and the application its promises.
import { MillraceError, toError } from './errors.js';
import { Hub } from './hub.js';
import type { Draft, Link, Transport } from './link.js';
import { listen, orAborted } from './listen.js';
import { machine, type Input, type Machine } from './machine.js';
import { checkChannel, parsePosition } from './position.js';
import { toEvent } from './subscription.js';
import type { Channels, Client, ConnectOptions, Event, History, LogEntry, PublishOptions, Published, State, Stats, SubscribeOptions, Subscription, TransportName } from './types.js';

interface Waiter {
  /** Undefined: any. */
  readonly transport: TransportName | undefined;
  readonly resolve: () => void;
  readonly reject: (error: MillraceError) => void;
}

class MillraceClient implements Client<any> {
  readonly #options: ConnectOptions;
  readonly #transports = new Map<TransportName, Transport>();
  readonly #machine: Machine;
  readonly #hub: Hub;
  readonly #base: string;
  #links = new Map<number, Link>();
  #active = 0;
  #stats = { transport: undefined as TransportName | undefined, rtt: 0, bytesIn: 0, bytesOut: 0, reconnects: -1 };
  #timer: ReturnType<typeof setTimeout> | undefined;
  #timerAt = Infinity;
  #pumping = false;
  /** The clock's last reading, and how far it was set back since the start, ms. */
  #last = 0;
  #setBack = 0;
  #listeners = new Set<(state: State) => void>();
  #waiters = new Set<Waiter>();
  #offs: (() => void)[];

  constructor(url: string | URL, transports: readonly Transport[], options: ConnectOptions) {
    this.#options = options;
    for (const transport of transports) if (transport.usable(options)) this.#transports.set(transport.name, transport);
    const { transports: chosen = 'auto', signal, retry, hidden } = options;
    const order = chosen === 'auto' ? [...this.#transports.keys()] : chosen;
    for (const name of order) this.#named(name);
    const page = (globalThis as { location?: Location }).location?.href;
    this.#base = new URL(url, page).href.replace(/\/*([?#].*)?$/, '');
    this.#machine = machine({ order, random: Math.random, retry, pauseHidden: hidden === 'pause' });
    this.#hub = new Hub({
      changed: () => {
        this.#input({ type: 'start' });
        for (const link of this.#links.values()) link.changed();
      },
      page: (channel, since, limit, signal) => this.#ask((link) => link.page(channel, since, limit, signal), signal),
    });
    this.#offs = [listen(signal, 'abort', () => this.close())];
    this.#watch();
    if (signal?.aborted) void this.close();
  }

  get state(): State {
    return this.#machine.state;
  }

  onState(fn: (state: State) => void): () => void {
    this.#listeners.add(fn);
    return () => void this.#listeners.delete(fn);
  }

  ready({ signal, timeout }: { signal?: AbortSignal | undefined; timeout?: number } = {}): Promise<void> {
    this.#input({ type: 'start' });
    return this.#until(undefined, signal, timeout);
  }

  subscribe<T>(channel: string, options: SubscribeOptions<T> = {}): Subscription<T> {
    if (this.state.name === 'closed') throw this.#ending();
    return this.#hub.subscribe(channel, options);
  }

  async publish(channel: string, data: unknown, { signal, key, ttl, idempotencyKey }: PublishOptions = {}): Promise<Published> {
    checkChannel(channel);
    const draft: Draft = { channel, data: data instanceof ArrayBuffer ? new Uint8Array(data) : data, key, ttl, idempotency_key: idempotencyKey ?? randomId() };
    const position = await this.#ask((link) => link.publish(draft, signal), signal);
    return { position, offset: parsePosition(position).offset };
  }

  async *presence(channel: string, { signal, everyMs = 5000 }: { signal?: AbortSignal; everyMs?: number } = {}): AsyncGenerator<{ readonly count: number }> {
    checkChannel(channel);
    try {
      for (let last; ; ) {
        const count = await this.#ask((link) => link.presence(channel, signal), signal);
        if (count !== last) yield { count };
        last = count;
        await orAborted(new Promise((resolve) => setTimeout(resolve, everyMs)), signal);
      }
    } catch (thrown) {
      if (toError(thrown).code !== 'aborted') throw thrown;
    }
  }

  async history(channel: string, { since = 'earliest', limit = 100, signal }: { since?: bigint | string; limit?: number; signal?: AbortSignal } = {}): Promise<History<any>> {
    checkChannel(channel);
    const get = (from: string, most: number) => this.#ask((link) => link.page(channel, from, most, signal), signal);
    const from = typeof since === 'string' ? since : `${parsePosition((await get('now', 1)).position).epoch}:${since}`;
    const { messages, position, gap } = await get(from, limit);
    const events: Event[] = messages.map((message) => toEvent({ ...message, channel }, parsePosition(message.position), true));
    return Object.assign(events, { position, ...(gap && { gap }) });
  }

  stats(): Stats {
    const { messages, gaps } = this.#hub;
    return { ...this.#stats, messages, gaps, reconnects: Math.max(0, this.#stats.reconnects) };
  }

  async use(name: TransportName | 'auto'): Promise<void> {
    const order = name === 'auto' ? [...this.#transports.keys()] : [this.#named(name).name];
    this.#settle(new MillraceError('aborted', `${name} was asked for meanwhile`));
    this.#input({ type: 'use', order });
    await this.#until(order[0]);
  }

  wake(): void {
    this.#input({ type: 'wake' });
  }

  async close(): Promise<void> {
    this.#input({ type: 'close' });
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  #named(name: TransportName): Transport {
    const found = this.#transports.get(name);
    if (!found) throw new MillraceError('rejected', `no transport ${name} here`);
    return found;
  }

  /** The signs that the network may have changed. */
  #watch(): void {
    const scope = globalThis as Partial<EventTarget> & { document?: Document };
    if (!scope.addEventListener) return;
    const seen = ({ type }: { type: string }): void =>
      this.#input({ type: type === 'online' || type === 'offline' ? type : scope.document?.hidden ? 'hidden' : 'visible' });
    for (const type of ['online', 'offline', 'visibilitychange', 'resume', 'pageshow']) this.#offs.push(listen(scope as EventTarget, type, seen));
    seen({ type: '' });
  }

  /** This machine's clock, but never backwards. */
  #now(): number {
    const now = Date.now() + this.#setBack;
    if (now < this.#last) this.#setBack += this.#last - now;
    return (this.#last = Math.max(now, this.#last));
  }

  #input(input: Input): void {
    this.#machine.handleInput(this.#now(), input);
    this.#pump();
  }

  #pump(): void {
    // Whoever is called from here may come back with an input: its outputs are done by the loop that runs already.
    if (this.#pumping) return;
    this.#pumping = true;
    for (let output; (output = this.#machine.pollOutput()); ) {
      if (output.type === 'state') this.#changed(output.state);
      else if (output.type === 'stayed') this.#settle(output.error);
      else if (output.type === 'open') this.#open(output.link, output.transport);
      else if (output.type === 'active') {
        this.#active = output.link;
        this.#stats.reconnects++;
      } else {
        const link = this.#links.get(output.link);
        if (output.type === 'ping') link?.ping();
        else {
          this.#links.delete(output.link);
          link?.close();
        }
      }
    }
    this.#pumping = false;
    // Every message moves a deadline back: the timer stays, and is set anew when it fires too early.
    const due = this.#machine.pollTimeout();
    if (due >= this.#timerAt && due < Infinity) return;
    clearTimeout(this.#timer);
    this.#timerAt = due;
    if (due < Infinity) {
      // A timer cannot be longer than 24 days.
      this.#timer = setTimeout(() => {
        this.#timerAt = Infinity;
        this.#machine.handleTimeout(this.#now());
        this.#pump();
      }, Math.min(due - this.#now(), 1e9));
    }
  }

  #changed(state: State): void {
    this.#log('debug', state.name, { state });
    if (state.name === 'open') {
      this.#stats.transport = state.transport;
      this.#stats.rtt = state.rtt;
    }
    this.#settle();
    if (state.name === 'closed') {
      for (const off of this.#offs) off();
      this.#hub.end(state.cause);
    }
    for (const fn of this.#listeners) fn(state);
  }

  #open(id: number, name: TransportName): void {
    const { token } = this.#options;
    const stats = this.#stats;
    const link = this.#named(name).open({
      base: this.#base,
      options: this.#options,
      hub: this.#hub,
      token: async (reason, signal) => (typeof token === 'function' ? token({ reason, signal }) : token),
      say: (what) => {
        if (what.type === 'closed') {
          this.#links.delete(id);
          this.#log('info', `${name}: ${what.error.message}`, { error: what.error });
        }
        this.#input({ ...what, link: id });
      },
      rtt: (ms) => (stats.rtt = ms),
      count: (bytesIn, bytesOut) => {
        stats.bytesIn += bytesIn;
        stats.bytesOut += bytesOut;
      },
      log: (level, msg) => this.#log(level, msg),
    });
    this.#links.set(id, link);
  }

  /** Settles when open with `transport`, or with any. */
  #until(transport?: TransportName, signal?: AbortSignal, timeout?: number): Promise<void> {
    let waiter!: Waiter;
    const open = new Promise<void>((resolve, reject) => this.#waiters.add((waiter = { transport, resolve, reject })));
    const timer = timeout && setTimeout(() => waiter.reject(new MillraceError('timeout', `not open after ${timeout} ms`)), timeout);
    this.#settle();
    return orAborted(open, signal).finally(() => {
      clearTimeout(timer);
      this.#waiters.delete(waiter);
    });
  }

  /** Tells who waits what they wait for; `error` is why a certain transport will not come. */
  #settle(error?: MillraceError): void {
    const { state } = this;
    for (const { transport, resolve, reject } of this.#waiters) {
      if (state.name === 'closed') reject(this.#ending());
      else if (state.name === 'open' && (transport ?? state.transport) === state.transport) resolve();
      else if (error && transport) reject(error);
    }
  }

  /** Asks the link that is open, and the next one if that goes away before it answers. */
  async #ask<T>(ask: (link: Link) => Promise<T>, signal?: AbortSignal): Promise<T> {
    for (;;) {
      await this.ready({ signal });
      try {
        return await orAborted(ask(this.#links.get(this.#active)!), signal);
      } catch (thrown) {
        const error = toError(thrown);
        if (!error.retryable || error.reason) throw error;
      }
    }
  }

  #ending(): MillraceError {
    return (this.state as { cause?: MillraceError }).cause ?? new MillraceError('aborted', 'the client is closed');
  }

  #log(level: LogEntry['level'], msg: string, details?: object): void {
    this.#options.log?.({ level, msg, ...details });
  }
}

/** `crypto.randomUUID` is missing on pages without TLS. */
function randomId(): string {
  return crypto.getRandomValues(new Uint32Array(4)).join('-');
}

/** A client of the given transports, best first. See index.ts for one with all of them. */
export function client<M = Channels>(url: string | URL, transports: readonly Transport[], options: ConnectOptions = {}): Client<M> {
  return new MillraceClient(url, transports, options) as unknown as Client<M>;
}
