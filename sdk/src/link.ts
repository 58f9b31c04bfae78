// The one interface behind which the transports live: a transport opens links, a link reports to its host.
import type { Hub } from './hub.js';
import type { LinkInput } from './machine.js';
import type { Message } from './subscription.js';
import type { ConnectOptions, Gap, LogEntry, TokenReason, TransportName } from './types.js';

/** A channel or pattern that should be read, from where. */
export interface Wanted {
  readonly channel: string;
  readonly policy: 'every' | 'latest';
  /** A position, or for a pattern a time; undefined means now. */
  readonly since: string | undefined;
  /** For a pattern: the last position of every channel heard. */
  readonly positions?: Readonly<Record<string, string>>;
}

export interface Draft {
  readonly channel: string;
  /** Bytes, or anything JSON can say. */
  readonly data: unknown;
  readonly key: string | undefined;
  readonly ttl: number | undefined;
  readonly idempotency_key: string;
}

/** A part of a channel's history: `gap`, if any, lies before `messages`. */
export interface Page {
  readonly position: string;
  readonly messages: readonly Message[];
  readonly gap?: Gap;
}

export interface LinkHost {
  /** The server's address, without a slash at the end. */
  readonly base: string;
  readonly options: ConnectOptions;
  /** What to read, and where it goes. */
  readonly hub: Hub;
  token(reason: TokenReason, signal: AbortSignal): Promise<string | undefined>;
  /** What happened to this link. `closed` is its last word. */
  say(what: LinkInput): void;
  /** Milliseconds. */
  rtt(ms: number): void;
  count(bytesIn: number, bytesOut: number): void;
  log(level: LogEntry['level'], msg: string): void;
}

/** Requests fail with a retryable error without `reason` when the link went away before the answer: ask the next link. */
export interface Link {
  /** `hub.wanted()` may differ from what this link reads. */
  changed(): void;
  /** Make the server say something. */
  ping(): void;
  /** Settles with the position. */
  publish(draft: Draft, signal?: AbortSignal): Promise<string>;
  page(channel: string, since: string, limit: number, signal?: AbortSignal): Promise<Page>;
  /** Open subscriptions of a channel. */
  presence(channel: string, signal?: AbortSignal): Promise<number>;
  /** Ends it at once; it reports nothing after this. */
  close(): void;
}

export interface Transport {
  readonly name: TransportName;
  /** Whether this runtime can do it. */
  usable(options: { readonly WebSocket?: unknown }): boolean;
  open(host: LinkHost): Link;
}
