// The public types. What each option means on the wire is in docs/protocol.md.
import type { MillraceError } from './errors.js';

export type TransportName = 'websocket' | 'http-stream' | 'sse' | 'long-poll' | 'poll' | 'data-channel';

/** Everything after `from` up to and including `to` is missing for this reader. Both are positions. */
export interface Gap {
  readonly from: string;
  readonly to: string;
}

/** One publication, as a consumer sees it. */
export interface Event<T = unknown, Channel extends string = string> {
  /** A JSON value, a string for other text, a `Uint8Array` for binary. */
  readonly data: T;
  readonly offset: bigint;
  /** `epoch:offset`. Keep it to go on later with `from: { position }`. */
  readonly position: string;
  readonly channel: Channel;
  /** Milliseconds since 1970 by the server's clock. */
  readonly publishedAt: number;
  /** Milliseconds since 1970 by this machine's clock. */
  readonly receivedAt: number;
  /** It was published before the connection that brought it, so it came out of history. */
  readonly replayed: boolean;
  /** Conflation key: of one key only the newest matters. */
  readonly key?: string | undefined;
}

export type State =
  | { readonly name: 'idle' }
  | {
      readonly name: 'connecting';
      /** 0 is the first attempt since the last stable connection. */
      readonly attempt: number;
      readonly transport: TransportName;
      /** When the next attempt starts; absent while one is under way. */
      readonly retryAt?: number;
      readonly cause?: MillraceError | undefined;
    }
  | { readonly name: 'open'; readonly transport: TransportName; readonly rtt: number; readonly resumed: boolean }
  | { readonly name: 'paused'; readonly reason: 'offline' | 'hidden' }
  | { readonly name: 'closed'; readonly cause?: MillraceError | undefined };

/** https://standardschema.dev, version 1; only synchronous schemas. */
export interface StandardSchema<T> {
  readonly '~standard': {
    readonly version: 1;
    readonly vendor: string;
    readonly types?: { readonly input: unknown; readonly output: T } | undefined;
    validate(value: unknown): unknown;
  };
}

/** Channel patterns to payload types: `{ 'cars/{id}/telemetry': Telemetry }`. */
// eslint-disable-next-line @typescript-eslint/consistent-indexed-object-style
export type Channels = { [pattern: string]: unknown };
export type Params<P extends string> = P extends `${infer Head}{${string}}${infer Rest}` ? `${Head}${string}${Params<Rest>}` : P;
export type Match<M, C extends string> = { [K in keyof M & string]: C extends Params<K> ? M[K] : never }[keyof M & string];
export type ChannelOf<M> = Params<keyof M & string>;

/**
 * Where a subscription starts. A position or an offset means "after it"; `latest` is the newest publication, then live;
 * `seconds` looks that far back. Wildcard subscriptions know `now`, `earliest` and `seconds`.
 */
export type From =
  | 'now'
  | 'latest'
  | 'earliest'
  | { readonly offset: bigint }
  | { readonly position: string }
  | { readonly seconds: number };

export interface SubscribeOptions<T = unknown> {
  readonly signal?: AbortSignal;
  /** Default `now`. */
  readonly from?: From;
  /** `latest`: while this reader is behind, the server sends only the newest per key. Default `every`. */
  readonly policy?: 'every' | 'latest';
  /** Events that wait to be read. Default 1024, `drop-oldest` (counted in `dropped`). */
  readonly buffer?: { readonly max?: number; readonly overflow?: 'drop-oldest' | 'latest-only' | 'error' };
  readonly schema?: StandardSchema<T>;
  /** `resync` (default) goes on after the gap and counts it; `error` ends the subscription with code `gap`. */
  readonly onGap?: 'error' | 'resync';
}

/** Iterate it, or attach listeners; leaving the loop or removing the last listener closes it. */
export interface Subscription<T = unknown> extends AsyncIterable<Event<T>>, AsyncDisposable {
  readonly channel: string;
  /** Settles before the first event: where the subscription starts, and whether history reached back to it. */
  readonly ready: Promise<{ readonly offset: bigint; readonly position: string; readonly recovered: boolean }>;
  /** Events received and not read yet. */
  readonly lag: number;
  readonly dropped: number;
  /** How many gaps this subscription went through. */
  readonly gaps: number;
  readonly lastGap: Gap | undefined;
  /** Calls `fn` for every event, and `end` once when the subscription is over. Returns the way out. */
  on(fn: (event: Event<T>) => void, end?: (cause?: MillraceError) => void): () => void;
  latest(): Event<T> | undefined;
  close(): Promise<void>;
}

export interface PublishOptions {
  readonly signal?: AbortSignal;
  /** Conflation key. */
  readonly key?: string;
  /** Seconds the publication stays in history. */
  readonly ttl?: number;
  /** Publishing again with the same key within 5 minutes publishes once. Default: a random one per call. */
  readonly idempotencyKey?: string;
}

export interface Published {
  readonly offset: bigint;
  readonly position: string;
}

/** A place in history: an offset, a position, a time (also as RFC 3339), `now`, or `earliest`. */
export type Place = bigint | string | Date;

/** A range: `until` ends one where `since` would begin one, so ranges join. */
export interface HistoryQuery {
  /** Default `earliest`. */
  since?: Place;
  until?: Place;
  /** Publications in one page, 1-1000. Default 100, of `pages` 1000. */
  limit?: number;
  signal?: AbortSignal;
}

/** Events, oldest first, with the position to go on from, whether more follows, and what history no longer holds. */
export type History<T> = readonly Event<T>[] & { readonly position: string; readonly more: boolean; readonly gap?: Gap | undefined };

export interface Stats {
  readonly transport: TransportName | undefined;
  /** Milliseconds. */
  readonly rtt: number;
  /** Body bytes; characters for WebSocket text. */
  readonly bytesIn: number;
  readonly bytesOut: number;
  readonly messages: number;
  readonly reconnects: number;
  readonly gaps: number;
  /** Messages of policy `latest` that a data channel has lost: they are not sent again. */
  readonly lost: number;
}

export type TokenReason = 'connect' | 'expired' | 'rejected';

export interface LogEntry {
  readonly level: 'debug' | 'info' | 'warn';
  readonly msg: string;
  readonly [detail: string]: unknown;
}

export interface ConnectOptions {
  /** Asked for every new connection (`connect`), before a session's token ends (`expired`), and once more when the server refuses what it gave. */
  readonly token?: string | ((context: { reason: TokenReason; signal: AbortSignal }) => string | Promise<string>);
  /** Which to try, in this order. `auto`: websocket, http-stream, sse, long-poll, poll. `data-channel` is used only where it is named, here or by `use`. */
  readonly transports?: readonly TransportName[] | 'auto';
  /** Milliseconds. `giveUpAfter`: without a connection for that long, the client closes. */
  readonly retry?: { readonly min?: number; readonly max?: number; readonly factor?: number; readonly jitter?: 'full' | 'none'; readonly giveUpAfter?: number };
  /** `pause`: no connection while the page is hidden for more than 10 s. Default `keep`. */
  readonly hidden?: 'keep' | 'pause';
  /** Milliseconds between two requests of the `poll` transport. Default 1000. */
  readonly pollMs?: number;
  /** Milliseconds of silence after which a WebSocket or stream is asked whether it still works. Longer spares a phone's battery, shorter notices sooner. Default: the server's, 25 s. */
  readonly heartbeatMs?: number;
  readonly signal?: AbortSignal;
  readonly fetch?: typeof fetch;
  /** Needed where there is none, as on Node 20: `import { WebSocket } from 'ws'`. */
  readonly WebSocket?: unknown;
  readonly log?: (entry: LogEntry) => void;
}

export interface Client<M = Channels> extends AsyncDisposable {
  readonly state: State;
  onState(fn: (state: State) => void): () => void;
  /** Settles once open. Connects if need be. */
  ready(options?: { signal?: AbortSignal; timeout?: number }): Promise<void>;
  subscribe<C extends string>(channel: C & ChannelOf<M>, options?: SubscribeOptions<Match<M, C>>): Subscription<Match<M, C>>;
  /** Settles when the server has it; sent again after every cut until then. */
  publish<C extends string>(channel: C & ChannelOf<M>, data: Match<M, C>, options?: PublishOptions): Promise<Published>;
  /** How many subscriptions are open: now, then whenever it has changed. Asks every `everyMs` (default 5000). */
  presence(channel: string, options?: { signal?: AbortSignal; everyMs?: number }): AsyncIterable<{ readonly count: number }>;
  /** One page of a range. */
  history<C extends string>(channel: C & ChannelOf<M>, query?: HistoryQuery): Promise<History<Match<M, C>>>;
  /** All pages of a range, each asked for when the loop comes to it. `until` is what is there now, unless it is given. */
  pages<C extends string>(channel: C & ChannelOf<M>, query?: HistoryQuery): AsyncIterable<History<Match<M, C>>>;
  stats(): Stats;
  /** Changes the transport while subscriptions go on: nothing is lost, nothing comes twice. */
  use(transport: TransportName | 'auto'): Promise<void>;
  /** Something may have changed (the network, a sleep): test the connection or retry now. */
  wake(): void;
  /** Final: nothing reconnects after it. */
  close(): Promise<void>;
}
