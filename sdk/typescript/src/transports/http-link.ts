// The common part of the four HTTP transports: one request for all channels, repeated when the set of channels changes.
import { pauseOf } from '../backoff.js';
import { MillraceError, toError } from '../errors.js';
import { onAbort, TIMER_MAX } from '../listen.js';
import type { Commands, Deletion, Draft, Link, LinkHost, Wanted } from '../link.js';
import type { TransportName } from '../types.js';
import { Http, type Query, type RequestOptions } from './http.js';

/** Maximum number of channels in one request, a limit of the server. */
const CHANNELS = 100;

/** Reads the channels of one request until the request is aborted or cut. The caller repeats the call at once. */
export type Read = (link: HttpLink, query: Query, signal: AbortSignal) => Promise<void>;

export class HttpLink implements Link {
  readonly http: Http;
  opened = false;
  #over = new AbortController();
  #reading = '';
  #round = new AbortController();
  /** Time at which the current request was sent. */
  #asked = 0;
  /** Functions that end the current pauses between retries. */
  #pauses = new Set<() => void>();
  /**
   * Last publication per channel. Publications of one channel are sent one after the other, so that they stay in order.
   */
  #turns = new Map<string, Promise<unknown>>();

  constructor(
    readonly name: TransportName,
    readonly host: LinkHost,
    readonly read: Read,
  ) {
    this.http = new Http(host);
    this.#run().catch((thrown) => {
      if (this.#over.signal.aborted) return;
      this.close();
      host.report('closed', toError(thrown));
    });
  }

  changed(): void {
    // Subscriptions made in one turn of the event loop share one request.
    queueMicrotask(() => {
      if (this.#key() !== this.#reading) this.#round.abort();
    });
  }

  ping(): void {
    this.#round.abort();
    for (const wake of [...this.#pauses]) wake();
  }

  close(): void {
    this.#over.abort();
    this.ping();
  }

  async ask<C extends keyof Commands>(command: C, body: Commands[C][0], signal?: AbortSignal): Promise<Commands[C][1]> {
    if (command === 'publish') return this.#publish(body as Draft & Partial<Deletion>, signal) as Promise<any>;
    const { channel, since, until, method = channel, params, timeout, ...query } = body as any;
    // The answer to `/v1/info` has the time of the server's clock.
    const at = command === 'ping' ? '/v1/info' : `/v1/${command}/${method}`;
    // A call is sent once. The caller's signal has the deadline.
    if (command === 'rpc') return this.#send(at, { body: JSON.stringify(params) ?? '', signal, timeoutMs: TIMER_MAX, headers: { 'Millrace-Timeout': timeout || undefined } });
    return this.#persist<any>((signal) => (command === 'history' ? this.http.page(channel, since, query.limit, signal, until) : this.#send(at, { signal }, { ...query, members: query.members && '' })), signal);
  }

  async #send(path: string, ask: RequestOptions, query = {}): Promise<any> {
    return (await this.http.json(path, Object.entries(query), ask)).body;
  }

  #publish({ channel, type, data: body, key, ttl, idempotency_key, if_match, trace, delete: deleted }: Draft & Partial<Deletion>, signal?: AbortSignal): Promise<Commands['publish'][1]> {
    const headers = {
      'Content-Type': type,
      'Idempotency-Key': idempotency_key,
      'Millrace-Key': deleted ? undefined : key,
      'Millrace-TTL': ttl,
      'If-Match': if_match,
      traceparent: trace,
    };
    const mine = Promise.resolve(this.#turns.get(channel))
      .catch(() => {})
      .then(() => this.#persist((signal) => this.#send(`/v1/channels/${channel}`, { method: deleted && 'DELETE', body, headers, signal }, deleted && { key }), signal));
    this.#turns.set(channel, mine);
    const done = (): void => void (this.#turns.get(channel) === mine && this.#turns.delete(channel));
    mine.then(done, done);
    return mine;
  }

  /** Repeats `ask` while a retry may help and this link is open. A refusal by the server ends the loop. */
  async #persist<T>(ask: (over: AbortSignal) => Promise<T>, signal?: AbortSignal): Promise<T> {
    const round = new AbortController();
    const over = this.#over.signal;
    const offs = [signal, over].map((source) => onAbort(source, () => round.abort()));
    try {
      for (let attempt = 0; ; attempt++) {
        if (signal?.aborted) throw toError('aborted', 'aborted');
        if (over.aborted) throw new MillraceError('network', 'the connection was lost');
        try {
          return await ask(round.signal);
        } catch (thrown) {
          const error = toError(thrown);
          if (round.signal.aborted) continue;
          if (!error.retryable || error.reason) throw error;
          await this.pause(pauseOf(error, attempt, this.host.retry), signal);
        }
      }
    } finally {
      for (const off of offs) off();
    }
  }

  /** Settles after `ms`, or earlier when `signal` aborts or the link is tested. */
  pause(ms: number, signal?: AbortSignal): Promise<void> {
    return new Promise((resolve) => {
      const done = (): void => {
        clearTimeout(timer);
        off();
        this.#pauses.delete(done);
        resolve();
      };
      const timer = setTimeout(done, ms);
      const off = onAbort(signal, done);
      this.#pauses.add(done);
    });
  }

  /**
   * Reports the start position of each channel when a response begins. Throws if a channel that was requested from now
   * on has a position by now.
   */
  begin(positions: Iterable<readonly [channel: string, position: string]>, query: Query, time: number): void {
    const { host } = this;
    const asked = new Set(query.map(([, value]) => value));
    if (host.hub.wanted().some(({ channel, since }) => since && asked.has(channel))) {
      this.#round.abort();
      throw toError('aborted', 'aborted');
    }
    this.open(Date.now() - this.#asked);
    for (const [channel, position] of positions) {
      host.hub.started(channel, { position, recovered: asked.has(channel) || asked.has(`${channel}@${position}`), time });
    }
  }

  open(rtt: number): void {
    if (!this.opened) this.host.report('opened', rtt);
    this.host.counts.rtt = rtt;
    this.opened = true;
  }

  #key(): string {
    return this.host.hub.wanted().map(({ channel, policy }) => `${policy} ${channel}`).join();
  }

  async #run(): Promise<void> {
    // Lets the owner store this link before the link reports anything.
    await null;
    while (!this.#over.signal.aborted) {
      const { host } = this;
      this.#round = new AbortController();
      const { signal } = this.#round;
      this.#reading = this.#key();
      const groups = this.#groups(host.hub.wanted());
      try {
        this.#asked = Date.now();
        if (groups.length) {
          await Promise.race(
            groups.map(async (query) => {
              while (!signal.aborted) await this.read(this, query, signal);
            }),
          );
        } else {
          // Nothing to read. Publishing needs only a server that responds, not an open connection.
          if (!this.opened) await this.http.json('/v1/info', [], { signal });
          this.open(Date.now() - this.#asked);
          host.report('alive', Infinity);
          await new Promise<void>((resolve) => onAbort(signal, resolve));
        }
      } catch (thrown) {
        // Only an aborted round is followed by the next round at once.
        if (!signal.aborted) throw thrown;
      } finally {
        this.#round.abort();
      }
    }
  }

  #groups(wanted: readonly Wanted[]): Query[] {
    const groups: [string, string][][] = [];
    for (const policy of ['every', 'latest'] as const) {
      const channels: [string, string][] = [];
      for (const { channel, since, positions, ...want } of wanted) {
        if (positions) {
          this.host.hub.refused(channel, new MillraceError('rejected', `${channel}: wildcards need websocket or data-channel`, { transport: this.name }));
        } else if (want.policy === policy) channels.push(['channel', since ? `${channel}@${since}` : channel]);
      }
      while (channels.length) groups.push([['since', 'now'], ['policy', policy], ...channels.splice(0, CHANNELS)]);
    }
    return groups;
  }
}
