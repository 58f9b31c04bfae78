// The client: gives the machine time and network, the links a hub to report to, and the application its promises.
import { MillraceError, aborted, toError } from './errors.js';
import { Http, type Query } from './http.js';
import { Hub } from './hub.js';
import type { Draft, Link, LinkHost, Transport } from './link.js';
import { Machine, type Input } from './machine.js';
import { checkChannel, parsePosition } from './position.js';
import { toEvent } from './subscription.js';
import type { Channels, Client, ConnectOptions, Event, History, LogEntry, PublishOptions, Published, State, Stats, SubscribeOptions, Subscription, TransportName } from './types.js';

/** How long the transport that won is tried first, ms. */
const WINNER_FOR = 30 * 60_000;

interface Waiter {
  /** Undefined: any. */
  readonly transport: TransportName | undefined;
  resolve(): void;
  reject(error: MillraceError): void;
}

export class MillraceClient implements Client<any> {
  readonly #options: ConnectOptions;
  readonly #transports: readonly Transport[];
  readonly #machine: Machine;
  readonly #hub: Hub;
  readonly #http: Http;
  #links = new Map<number, Link>();
  #active = 0;
  /** By `use`, not by racing. */
  #chosen = false;
  #transport: TransportName | undefined;
  #rtt = 0;
  #bytesIn = 0;
  #bytesOut = 0;
  #opens = 0;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #pumping = false;
  #now = 0;
  #skew = 0;
  #listeners = new Set<(state: State) => void>();
  #waiters = new Set<Waiter>();
  #naps = new Set<() => void>();
  /** HTTP publications of one channel go one after the other, so that they stay in order. */
  #turns = new Map<string, Promise<unknown>>();
  #unlisten: (() => void)[] = [];

  constructor(url: string | URL, transports: readonly Transport[], options: ConnectOptions) {
    this.#options = options;
    const names = options.transports;
    this.#transports = (Array.isArray(names) ? names.map((name) => this.#named(transports, name)) : transports.filter((t) => t.usable(options)));
    if (!this.#transports.length) throw new MillraceError('rejected', 'no transport is usable here');
    this.#http = new Http(url, options, (bytesIn, bytesOut) => this.#count(bytesIn, bytesOut));
    this.#machine = new Machine({
      order: this.#order(),
      random: Math.random,
      retry: options.retry,
      pauseHidden: options.hidden === 'pause',
    });
    this.#hub = new Hub({
      changed: () => {
        this.#start();
        for (const link of this.#links.values()) link.changed();
      },
      page: (channel, since, limit, policy, signal) =>
        this.#persist(() => this.#http.page(channel, [['since', since], ['limit', limit], ['policy', policy]], signal), signal),
      nap: (ms) => this.#nap(ms),
    });
    const { signal } = options;
    if (signal?.aborted) void this.close();
    else if (signal) this.#listen(signal, 'abort', () => void this.close());
  }

  #named(transports: readonly Transport[], name: TransportName): Transport {
    const found = transports.find((transport) => transport.name === name);
    if (!found) throw new MillraceError('rejected', `the transport ${name} is not part of this client`);
    if (!found.usable(this.#options)) throw new MillraceError('rejected', `the transport ${name} is not usable here${name === 'websocket' ? ': pass the option WebSocket' : ''}`);
    return found;
  }

  get state(): State {
    return this.#machine.state;
  }

  onState(fn: (state: State) => void): () => void {
    this.#listeners.add(fn);
    return () => void this.#listeners.delete(fn);
  }

  ready({ signal, timeout }: { signal?: AbortSignal | undefined; timeout?: number } = {}): Promise<void> {
    this.#start();
    return this.#until(undefined, signal, timeout);
  }

  subscribe<T>(channel: string, options: SubscribeOptions<T> = {}): Subscription<T> {
    if (this.state.name === 'closed') throw this.#closedError();
    return this.#hub.subscribe(channel, options);
  }

  async publish(channel: string, data: unknown, options: PublishOptions = {}): Promise<Published> {
    checkChannel(channel, false);
    const { signal, key, ttl } = options;
    const bytes = toBytes(data);
    const draft: Draft = {
      channel,
      data: bytes ? toBase64(bytes) : data,
      ...(bytes && { encoding: 'base64' as const }),
      ...(key !== undefined && { key }),
      ...(ttl !== undefined && { ttl }),
      idempotency_key: options.idempotencyKey ?? randomId(),
    };
    for (;;) {
      await this.ready({ signal });
      const link = this.#links.get(this.#active);
      if (!link) continue;
      try {
        const sent = this.#turns.has(channel) ? undefined : link.publish?.(draft);
        const position = await (sent ? orAborted(sent, signal) : this.#inTurn(channel, () => this.#post(draft, bytes, signal)));
        return { position, offset: parsePosition(position).offset };
      } catch (thrown) {
        const error = toError(thrown);
        // The link went away before the answer came: the next one carries it again, the key keeps it single.
        if (!error.retryable || error.reason || this.state.name === 'closed') throw error;
      }
    }
  }

  async *presence(channel: string, { signal, everyMs = 5000 }: { signal?: AbortSignal; everyMs?: number } = {}): AsyncGenerator<{ readonly count: number }> {
    checkChannel(channel, false);
    let last: number | undefined;
    while (!signal?.aborted && this.state.name !== 'closed') {
      const count = await this.#persist(async () => (await this.#http.json<{ count: number }>(`/v1/presence/${channel}`, [], { signal })).body!.count, signal).catch((error: MillraceError) => {
        if (error.code !== 'aborted') throw error;
      });
      if (count === undefined) return;
      if (count !== last) yield { count };
      last = count;
      await this.#nap(everyMs, signal);
    }
  }

  async history(channel: string, { since = 'earliest', limit, signal }: { since?: bigint | string; limit?: number; signal?: AbortSignal } = {}): Promise<History<any>> {
    checkChannel(channel, false);
    const get = (from: string, most: number | undefined) => this.#persist(() => this.#http.page(channel, [['since', from], ['limit', most]], signal), signal);
    const from = typeof since === 'string' ? since : `${parsePosition((await get('now', 1)).position).epoch}:${since}`;
    const { messages, position, gap } = await get(from, limit);
    const events: Event[] = messages.map((message) => toEvent(message, parsePosition(message.position), true));
    return Object.assign(events, { position, ...(gap && { gap }) });
  }

  stats(): Stats {
    return {
      transport: this.#transport,
      rtt: this.#rtt,
      bytesIn: this.#bytesIn,
      bytesOut: this.#bytesOut,
      messages: this.#hub.messages,
      reconnects: Math.max(0, this.#opens - 1),
      gaps: this.#hub.gaps,
    };
  }

  async use(name: TransportName | 'auto'): Promise<void> {
    this.#chosen = name !== 'auto';
    const order = name === 'auto' ? this.#order() : [this.#named(this.#transports, name).name];
    this.#superseded();
    this.#start(() => this.#input({ type: 'use', order }));
    await this.#until(order[0]);
  }

  wake(): void {
    this.#input({ type: 'wake' });
    for (const resolve of [...this.#naps]) resolve();
  }

  close(): Promise<void> {
    this.#input({ type: 'close' });
    return Promise.resolve();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  /** Best first; what won the last time in this tab leads. */
  #order(): TransportName[] {
    const names = this.#transports.map(({ name }) => name);
    const [winner, time] = this.#cache()?.split(' ') ?? [];
    if (Date.now() - Number(time) > WINNER_FOR) return names;
    return names.sort((a, b) => Number(b === winner) - Number(a === winner));
  }

  #cache(value?: string): string | undefined {
    if (Array.isArray(this.#options.transports)) return undefined;
    try {
      const key = `millrace:${this.#http.base}`;
      if (value) sessionStorage.setItem(key, value);
      return sessionStorage.getItem(key) ?? undefined;
    } catch {
      return undefined; // Workers and Node have none; a page may be denied it.
    }
  }

  #start(how: () => void = () => this.#input({ type: 'start' })): void {
    if (this.state.name === 'idle') this.#watch();
    how();
  }

  /** The signs that the network may have changed. */
  #watch(): void {
    const scope = globalThis as Partial<EventTarget> & { document?: Document };
    const page = scope.document;
    if (scope.addEventListener) {
      for (const type of ['online', 'offline'] as const) {
        this.#listen(scope as EventTarget, type, () => {
          this.#input({ type });
          if (type === 'online') this.wake();
        });
      }
      this.#listen(scope as EventTarget, 'pageshow', (event) => (event as PageTransitionEvent).persisted && this.wake());
    }
    if (page) {
      const seen = (): void => this.#input({ type: page.visibilityState === 'hidden' ? 'hidden' : 'visible' });
      this.#listen(page, 'visibilitychange', seen);
      this.#listen(page, 'resume', () => this.wake());
      if (page.visibilityState === 'hidden') seen();
    }
  }

  #listen(target: EventTarget, type: string, fn: (event: globalThis.Event) => void): void {
    target.addEventListener(type, fn);
    this.#unlisten.push(() => target.removeEventListener(type, fn));
  }

  /** This machine's clock, but never backwards. */
  #clock(): number {
    const now = Date.now() + this.#skew;
    if (now < this.#now) this.#skew += this.#now - now;
    return (this.#now = Math.max(now, this.#now));
  }

  #input(input: Input): void {
    this.#machine.handleInput(this.#clock(), input);
    this.#pump();
  }

  #pump(): void {
    if (this.#pumping) return;
    this.#pumping = true;
    for (let output; (output = this.#machine.pollOutput()); ) {
      if (output.type === 'open') this.#open(output.link, output.transport);
      else if (output.type === 'abort') {
        this.#links.get(output.link)?.close();
        this.#links.delete(output.link);
      } else if (output.type === 'active') {
        this.#active = output.link;
        this.#opens++;
      } else if (output.type === 'ping') this.#links.get(output.link)?.ping();
      else if (output.type === 'stayed') this.#superseded(output.error);
      else this.#changed(output.state);
    }
    this.#pumping = false;
    clearTimeout(this.#timer);
    const due = this.#machine.pollTimeout();
    if (due < Infinity) {
      this.#timer = setTimeout(
        () => {
          this.#machine.handleTimeout(this.#clock());
          this.#pump();
        },
        Math.min(Math.max(0, due - this.#clock()), 1e9),
      );
    }
  }

  #changed(state: State): void {
    this.#log('debug', `state ${state.name}`, { state });
    if (state.name === 'open') {
      this.#transport = state.transport;
      this.#rtt = state.rtt;
      if (!this.#chosen) this.#cache(`${state.transport} ${Date.now()}`);
    }
    for (const waiter of [...this.#waiters]) {
      if (state.name === 'open' && (waiter.transport ?? state.transport) === state.transport) waiter.resolve();
      else if (state.name === 'closed') waiter.reject(this.#closedError());
    }
    if (state.name === 'closed') {
      this.#active = 0;
      for (const off of this.#unlisten.splice(0)) off();
      for (const resolve of [...this.#naps]) resolve();
      this.#hub.end(state.cause);
    }
    for (const fn of [...this.#listeners]) fn(state);
  }

  #open(id: number, name: TransportName): void {
    this.#http.renew();
    const active = (): boolean => id === this.#active;
    const hub = this.#hub;
    const host: LinkHost = {
      http: this.#http,
      WebSocket: (this.#options.WebSocket ?? globalThis.WebSocket) as typeof WebSocket | undefined,
      pollMs: this.#options.pollMs ?? 1000,
      wanted: () => hub.wanted(),
      opened: (rtt) => this.#input({ type: 'opened', link: id, rtt }),
      rtt: (ms) => void (active() && (this.#rtt = ms)),
      alive: (withinMs) => this.#input({ type: 'alive', link: id, withinMs }),
      started: (...start) => void (active() && hub.started(...start)),
      message: (message) => void (active() && hub.message(message)),
      gap: (channel, gap) => void (active() && hub.gap(channel, gap)),
      refused: (channel, error) => hub.refused(channel, error),
      drain: (afterMs) => this.#input({ type: 'drain', link: id, afterMs }),
      closed: (error) => {
        this.#links.delete(id);
        this.#log('info', `${name} closed: ${error.message}`, { error });
        this.#input({ type: 'closed', link: id, error });
      },
      count: (bytesIn, bytesOut) => this.#count(bytesIn, bytesOut),
      log: (level, msg) => this.#log(level, msg),
    };
    this.#links.set(id, this.#named(this.#transports, name).open(host));
  }

  /** Settles when open with `transport`, or with any. */
  #until(transport: TransportName | undefined, signal?: AbortSignal, timeout?: number): Promise<void> {
    const { state } = this;
    if (state.name === 'open' && (transport ?? state.transport) === state.transport) return Promise.resolve();
    if (state.name === 'closed') return Promise.reject(this.#closedError());
    if (signal?.aborted) return Promise.reject(aborted(signal.reason));
    return new Promise((resolve, reject) => {
      let timer: ReturnType<typeof setTimeout> | undefined;
      const over = (fn: () => void): void => {
        clearTimeout(timer);
        signal?.removeEventListener('abort', abort);
        this.#waiters.delete(waiter);
        fn();
      };
      const abort = (): void => waiter.reject(aborted(signal?.reason));
      const waiter: Waiter = { transport, resolve: () => over(resolve), reject: (error) => over(() => reject(error)) };
      this.#waiters.add(waiter);
      signal?.addEventListener('abort', abort);
      if (timeout !== undefined) timer = setTimeout(() => waiter.reject(new MillraceError('timeout', `not open after ${timeout} ms`)), timeout);
    });
  }

  /** Tells whoever waits for a certain transport that it will not come. */
  #superseded(error: MillraceError = aborted()): void {
    for (const waiter of [...this.#waiters]) if (waiter.transport) waiter.reject(error);
  }

  /** Repeats `ask` while another try may help; a refusal by the server is an answer. */
  async #persist<T>(ask: () => Promise<T>, signal?: AbortSignal): Promise<T> {
    const { min = 500, max = 20_000 } = this.#options.retry ?? {};
    for (let attempt = 0; ; attempt++) {
      try {
        return await ask();
      } catch (thrown) {
        const error = toError(thrown);
        if (!error.retryable || error.reason) throw error;
        await this.#nap(error.retryAfter ?? Math.random() * Math.min(max, min * 2 ** attempt), signal);
        if (signal?.aborted || this.state.name === 'closed') throw aborted(error);
      }
    }
  }

  #nap(ms: number, signal?: AbortSignal): Promise<void> {
    return new Promise((resolve) => {
      const done = (): void => {
        clearTimeout(timer);
        signal?.removeEventListener('abort', done);
        this.#naps.delete(done);
        resolve();
      };
      const timer = setTimeout(done, ms);
      signal?.addEventListener('abort', done);
      this.#naps.add(done);
    });
  }

  #inTurn<T>(channel: string, work: () => Promise<T>): Promise<T> {
    const mine = (this.#turns.get(channel) ?? Promise.resolve()).catch(() => {}).then(work);
    this.#turns.set(channel, mine);
    const over = (): void => void (this.#turns.get(channel) === mine && this.#turns.delete(channel));
    mine.then(over, over);
    return mine;
  }

  async #post({ channel, data, key, ttl, idempotency_key }: Draft, bytes: Uint8Array<ArrayBuffer> | undefined, signal?: AbortSignal): Promise<string> {
    const text = typeof data === 'string';
    const headers = {
      'Content-Type': bytes ? 'application/octet-stream' : text ? 'text/plain' : 'application/json',
      'Idempotency-Key': idempotency_key,
      ...(key !== undefined && { 'Millrace-Key': key }),
      ...(ttl !== undefined && { 'Millrace-TTL': String(ttl) }),
    };
    const body = bytes ?? (text ? data : JSON.stringify(data));
    const answer = await this.#persist(() => this.#http.json<{ position: string }>(`/v1/channels/${channel}`, [] as Query, { body, headers, signal }), signal);
    return answer.body!.position;
  }

  #closedError(): MillraceError {
    const { state } = this;
    return (state.name === 'closed' && state.cause) || new MillraceError('aborted', 'the client is closed');
  }

  #count(bytesIn: number, bytesOut: number): void {
    this.#bytesIn += bytesIn;
    this.#bytesOut += bytesOut;
  }

  #log(level: LogEntry['level'], msg: string, details?: object): void {
    this.#options.log?.({ level, msg, ...details });
  }
}

function toBytes(data: unknown): Uint8Array<ArrayBuffer> | undefined {
  if (data instanceof ArrayBuffer) return new Uint8Array(data);
  if (!ArrayBuffer.isView(data)) return undefined;
  return new Uint8Array(data.buffer as ArrayBuffer, data.byteOffset, data.byteLength);
}

function toBase64(bytes: Uint8Array): string {
  let text = '';
  for (let i = 0; i < bytes.length; i += 0x8000) text += String.fromCharCode(...bytes.subarray(i, i + 0x8000));
  return btoa(text);
}

/** `crypto.randomUUID` is missing on pages without TLS. */
function randomId(): string {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, '0')).join('');
}

function orAborted<T>(promise: Promise<T>, signal: AbortSignal | undefined): Promise<T> {
  if (!signal) return promise;
  return new Promise((resolve, reject) => {
    const abort = (): void => reject(aborted(signal.reason));
    signal.addEventListener('abort', abort);
    promise.then(resolve, reject).finally(() => signal.removeEventListener('abort', abort));
  });
}

/** A client of the given transports, best first. See index.ts for one with all of them. */
export function client<M = Channels>(url: string | URL, transports: readonly Transport[], options: ConnectOptions = {}): Client<M> {
  return new MillraceClient(url, transports, options) as unknown as Client<M>;
}
