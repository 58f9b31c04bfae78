// The public types. docs/reference/protocol.md describes the effect of each option on the wire.
import type { MillraceError } from './errors.js';

export type TransportName = 'websocket' | 'http-stream' | 'sse' | 'long-poll' | 'poll' | 'data-channel';

/** Publications that this reader did not receive: after position `from`, up to and including position `to`. */
export interface Gap {
  readonly from: string;
  readonly to: string;
}

/** One publication, as a consumer receives it. */
export interface Event<T = unknown, Channel extends string = string> {
  /** A JSON value; a string for other text; a `Uint8Array` for binary data. Undefined with `deleted` or `complete`. */
  readonly data: T;
  readonly offset: bigint;
  /** `epoch:offset`. Keep it to resume later with `from: { position }`. */
  readonly position: string;
  readonly channel: Channel;
  /** Milliseconds since 1970 by the server's clock. */
  readonly publishedAt: number;
  /** Milliseconds since 1970 by this machine's clock. */
  readonly receivedAt: number;
  /** True if the event was published before the current connection was opened, so that it comes from history. */
  readonly replayed: boolean;
  /** Conflation key: only the newest publication with a key is current. */
  readonly key?: string | undefined;
  /** Trace context of the publisher, the value of a `traceparent` header. `traced` publishes with one. */
  readonly trace?: string | undefined;
  /** True if the publication deletes its key from a keyed state. */
  readonly deleted?: true | undefined;
  /** True in the mark of a subscription from `state`, which is no publication: the whole state has arrived. */
  readonly complete?: true | undefined;
}

export type State =
  | { readonly name: 'idle' }
  | {
      readonly name: 'connecting';
      /** Retries since the last stable connection; 0 is the first attempt. */
      readonly attempt: number;
      readonly transport: TransportName;
      /** Time of the next attempt, ms since 1970; absent while an attempt is in progress. */
      readonly retryAt?: number;
      readonly cause?: MillraceError | undefined;
    }
  | {
      readonly name: 'open';
      readonly transport: TransportName;
      /** Round-trip time, ms. */
      readonly rtt: number;
      /** True if the client was open before. */
      readonly resumed: boolean;
    }
  | { readonly name: 'paused'; readonly reason: 'offline' | 'hidden' }
  | { readonly name: 'closed'; readonly cause?: MillraceError | undefined };

/** See https://standardschema.dev, version 1. Only synchronous schemas are supported. */
export interface StandardSchema<T> {
  readonly '~standard': {
    readonly version: 1;
    readonly vendor: string;
    readonly types?: { readonly input: unknown; readonly output: T } | undefined;
    validate(value: unknown): unknown;
  };
}

/** Maps channel patterns to payload types: `{ 'cars/{id}/telemetry': Telemetry }`. */
// eslint-disable-next-line @typescript-eslint/consistent-indexed-object-style
export type Channels = { [pattern: string]: unknown };
export type Params<P extends string> = P extends `${infer Head}{${string}}${infer Rest}` ? `${Head}${string}${Params<Rest>}` : P;
export type Match<M, C extends string> = { [K in keyof M & string]: C extends Params<K> ? M[K] : never }[keyof M & string];
export type ChannelOf<M> = Params<keyof M & string>;

/**
 * The channels of the application, for the bindings of React, Svelte and Vue. Declare them once:
 * `declare module '@millrace/client' { interface Register { channels: App } }`.
 */
// eslint-disable-next-line @typescript-eslint/no-empty-object-type
export interface Register {}

/**
 * Start of a subscription. It begins after the given position or offset. `latest` delivers the newest publication, then
 * live ones. `seconds` starts that far in the past. `state` delivers the newest publication of each key of a keyed
 * state, then an event `complete`, then all changes; after lost changes the subscription ends with code `gap`, because
 * its reader must begin again with an empty list. Wildcard subscriptions support only `now`, `earliest` and `seconds`.
 */
export type From =
  | 'now'
  | 'latest'
  | 'earliest'
  | 'state'
  | { readonly offset: bigint }
  | { readonly position: string }
  | { readonly seconds: number };

export interface SubscribeOptions<T = unknown> {
  readonly signal?: AbortSignal;
  /** Default `now`. */
  readonly from?: From;
  /** `latest`: while this reader is behind, the server sends only the newest publication per key. Default `every`. */
  readonly policy?: 'every' | 'latest';
  /** Queue of unread events. Default 1024 events, `drop-oldest`; dropped events are counted in `dropped`. */
  readonly buffer?: { readonly max?: number; readonly overflow?: 'drop-oldest' | 'latest-only' | 'error' };
  /** Checks the data of each event. Data that it rejects ends the subscription with code `rejected`. */
  readonly schema?: StandardSchema<T>;
  /** `resync` (default, but not from `state`): count the gap and continue. `error`: end with code `gap`. */
  readonly onGap?: 'error' | 'resync';
}

/** A subscription, read by iteration or by listeners. Leaving the loop or removing the last listener closes it. */
export interface Subscription<T = unknown> extends AsyncIterable<Event<T>>, AsyncDisposable {
  readonly channel: string;
  /** Settles before the first event, with the start of the subscription and whether history reached back to it. */
  readonly ready: Promise<{ readonly offset: bigint; readonly position: string; readonly recovered: boolean }>;
  /** Number of events received but not yet read. */
  readonly lag: number;
  /** Number of events that the queue has dropped, because they were not read in time. */
  readonly dropped: number;
  /** Number of gaps so far. */
  readonly gaps: number;
  readonly lastGap: Gap | undefined;
  /** Calls `fn` for every event, and `end` once at the end. Returns a function that removes the listener. */
  on(fn: (event: Event<T>) => void, end?: (cause?: MillraceError) => void): () => void;
  /** Returns the newest event, also if it was read already; undefined before the first one. */
  latest(): Event<T> | undefined;
  close(): Promise<void>;
}

export interface PublishOptions {
  readonly signal?: AbortSignal;
  /** Conflation key. */
  readonly key?: string;
  /** Seconds for which the publication stays in history. */
  readonly ttl?: number;
  /** Calls with the same key within 5 minutes publish only once. Default: a random key per call. */
  readonly idempotencyKey?: string;
}

export interface Published {
  readonly offset: bigint;
  readonly position: string;
}

/** A place in history: an offset, a position, a time (also as RFC 3339), `now`, or `earliest`. */
export type Place = bigint | string | Date;

/**
 * A range of history. A range with `until: x` and a range with `since: x` are adjacent: no publication is missing or
 * repeated.
 */
export interface HistoryQuery {
  /** Default `earliest`. */
  since?: Place;
  until?: Place;
  /** Maximum number of publications in one page, 1-1000. Default 100, for `pages` 1000. */
  limit?: number;
  signal?: AbortSignal;
}

/**
 * Events, oldest first. `position` is where to resume, `more` is true if more events follow, and `gap` is the expired
 * part of the range.
 */
export type History<T> = readonly Event<T>[] & { readonly position: string; readonly more: boolean; readonly gap?: Gap | undefined };

export interface RpcOptions {
  /** Ends the call. The server withdraws it where the transport can report that. */
  readonly signal?: AbortSignal;
  /** Deadline, ms; then the call rejects as if it was aborted. The server has a limit of its own, 2 s by default. */
  readonly timeoutMs?: number;
}

export interface Stats {
  readonly transport: TransportName | undefined;
  /** Round-trip time, ms. */
  readonly rtt: number;
  /** Bytes of bodies received; characters for WebSocket text. */
  readonly bytesIn: number;
  readonly bytesOut: number;
  readonly messages: number;
  readonly reconnects: number;
  readonly gaps: number;
  /** Messages with policy `latest` that a data channel has lost. They are not retransmitted. */
  readonly lost: number;
}

export type TokenReason = 'connect' | 'expired' | 'rejected';

export interface LogEntry {
  readonly level: 'debug' | 'info' | 'warn';
  readonly msg: string;
  readonly [detail: string]: unknown;
}

export interface ConnectOptions {
  /**
   * A token, or a function that returns one. The function is called for every new connection (`connect`), before the
   * token of a session expires (`expired`), and once more if the server refuses the token.
   */
  readonly token?: string | ((context: { reason: TokenReason; signal: AbortSignal }) => string | Promise<string>);
  /**
   * Transports to try, in this order. `auto`: websocket, http-stream, sse, long-poll, poll. `data-channel` is used only
   * if it is named here or in `use`.
   */
  readonly transports?: readonly TransportName[] | 'auto';
  /**
   * Pauses between attempts, ms: `min` (default 500) is multiplied by `factor` (default 2) after each attempt, up to
   * `max` (default 20,000). `jitter`: `full` (default) takes a random part of the pause. The client closes after
   * `giveUpAfter` ms without a connection (default: never).
   */
  readonly retry?: { readonly min?: number; readonly max?: number; readonly factor?: number; readonly jitter?: 'full' | 'none'; readonly giveUpAfter?: number };
  /** `pause`: disconnect while the page is hidden for more than 10 s. Default `keep`. */
  readonly hidden?: 'keep' | 'pause';
  /** Milliseconds between two requests of the `poll` transport. Default 1000. */
  readonly pollMs?: number;
  /**
   * Milliseconds of silence after which the connection of a WebSocket or stream is tested. A longer interval saves
   * battery; a shorter one detects failures sooner. Default: the server's, 25 s.
   */
  readonly heartbeatMs?: number;
  readonly signal?: AbortSignal;
  readonly fetch?: typeof fetch;
  /** Required on runtimes without a `WebSocket`, such as Node 20: `import { WebSocket } from 'ws'`. */
  readonly WebSocket?: unknown;
  readonly log?: (entry: LogEntry) => void;
}

export interface Client<M = Channels> extends AsyncDisposable {
  readonly state: State;
  onState(fn: (state: State) => void): () => void;
  /**
   * Settles when the client is open. Connects if necessary. Rejects with `timeout` after `timeout` ms (default: none),
   * with `aborted` by `signal`, and with the cause if the client is closed.
   */
  ready(options?: { signal?: AbortSignal; timeout?: number }): Promise<void>;
  /**
   * Reads a channel, or a pattern with wildcards. Throws `invalid` for a malformed name, and the cause if the client is
   * closed. A refusal by the server ends the subscription: `ready`, the loop and `end` of `on` have the error.
   */
  subscribe<C extends string>(channel: C & ChannelOf<M>, options?: SubscribeOptions<Match<M, C>>): Subscription<Match<M, C>>;
  /**
   * Settles when the server has stored the publication. Until then, it is repeated after every lost connection. Rejects
   * with `invalid` if JSON cannot express `data`, with `aborted` by `signal`, and with the refusal of the server.
   */
  publish<C extends string>(channel: C & ChannelOf<M>, data: Match<M, C>, options?: PublishOptions): Promise<Published>;
  /**
   * Yields the number of open subscriptions now, and whenever the number has changed. Polls the server every `everyMs`
   * (default 5000).
   */
  presence(channel: string, options?: { signal?: AbortSignal; everyMs?: number }): AsyncIterable<{ readonly count: number }>;
  /** Returns one page of a range. */
  history<C extends string>(channel: C & ChannelOf<M>, query?: HistoryQuery): Promise<History<Match<M, C>>>;
  /**
   * Yields all pages of a range. A page is requested when the loop reaches it. `until` defaults to the newest
   * publication at the first request.
   */
  pages<C extends string>(channel: C & ChannelOf<M>, query?: HistoryQuery): AsyncIterable<History<Match<M, C>>>;
  /**
   * Calls a procedure of the application's back end and returns its result. A call is sent once: if the connection is
   * lost before the answer, the call rejects, and the back end may have executed it. If the back end refuses, `reason`
   * is its own code.
   */
  rpc<T = unknown>(method: string, params?: unknown, options?: RpcOptions): Promise<T>;
  stats(): Stats;
  /**
   * Switches the transport. Subscriptions continue without loss or duplicates. Rejects if the transport does not open,
   * and the client keeps the previous one; rejects with `aborted` if another call replaces this one.
   */
  use(transport: TransportName | 'auto'): Promise<void>;
  /** Tests the connection or retries now, for example after a change of the network or a suspend. */
  wake(): void;
  /** Closes the client. A closed client never reconnects. */
  close(): Promise<void>;
}
