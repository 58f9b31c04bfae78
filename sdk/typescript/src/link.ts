// The interface between the client and its transports: a transport opens links, and a link reports to its host.
import { toError } from './errors.js';
import type { Hub } from './hub.js';
import type { LinkInput } from './machine.js';
import type { Message } from './subscription.js';
import type { ConnectOptions, Gap, Stats, TokenReason, TransportName } from './types.js';

/** A channel or pattern to read, and the start position: the body of a session's `subscribe`. */
export interface Wanted {
  readonly channel: string;
  readonly policy: 'every' | 'latest';
  /** A position, or a time for a pattern. Undefined means now. */
  readonly since: string | undefined;
  /** For a pattern: the last position received from each channel. */
  readonly positions?: Readonly<Record<string, string>>;
}

export interface Draft extends Payload {
  readonly channel: string;
  readonly key: string | undefined;
  readonly ttl: number | undefined;
  readonly idempotency_key: string;
  /** Publishes only if this is the position of the newest publication of the key. Keyed states only. */
  readonly if_match?: string | undefined;
  /** Trace context, the value of a `traceparent` header. */
  readonly trace?: string | undefined;
}

/** Deletes a key of a keyed state. */
export interface Deletion extends Pick<Draft, 'channel' | 'key' | 'idempotency_key' | 'if_match'> {
  readonly delete: true;
}

/** An encoded payload. */
export interface Payload {
  readonly type: 'application/octet-stream' | 'text/plain' | 'application/json';
  readonly data: string | Uint8Array<ArrayBuffer>;
}

/** A part of a channel's history. `gap`, if present, lies before `messages`. */
export interface Page {
  readonly position: string;
  readonly messages: readonly Message[];
  readonly gap?: Gap;
  /** True if more of the range follows. */
  readonly more?: boolean;
}

/** Requests and their responses: the commands of a session (docs/reference/protocol.md, "WebSocket"). */
export interface Commands {
  publish: [Draft | Deletion, { readonly position: string }];
  history: [{ readonly channel: string; readonly since: string; readonly until?: string | undefined; readonly limit: number }, Page];
  presence: [{ readonly channel: string; readonly members?: boolean; readonly limit?: number; readonly after?: string }, { readonly count: number; readonly members?: readonly unknown[]; readonly next?: string }];
  /** Returns the server's clock, ms. A session answers all its commands in order. `channel` is not used. */
  ping: [{ readonly channel: 'ping' }, { readonly time: number }];
  /** Never repeated, because the back end may have executed it. `timeout` is in seconds. */
  rpc: [{ readonly method: string; readonly params?: unknown; readonly timeout?: number | undefined }, { readonly result: unknown }];
}

export type Ask = <C extends keyof Commands>(command: C, body: Commands[C][0], signal?: AbortSignal) => Promise<Commands[C][1]>;

/** The client as a link sees it. `WebSocket`, `fetch`, `retry` and similar options come from the application. */
export interface LinkHost extends ConnectOptions {
  /** The server's URL, without a slash at the end. */
  readonly base: string;
  /** Wanted channels, and receiver of messages. */
  readonly hub: Hub;
  /** Counters. The link updates `rtt`, `bytesIn` and `bytesOut`. */
  readonly counts: { -readonly [K in keyof Stats]: Stats[K] };
  /** Reports an event of this link. Nothing may follow `closed`. */
  report<Type extends LinkInput[0]>(type: Type, value: Extract<LinkInput, readonly [Type, unknown]>[1]): void;
}

/**
 * A link to the server. If a link is lost before the response, its requests fail with a retryable error without
 * `reason`. Such a request, unless it is an `rpc`, is repeated on the next link.
 */
export interface Link {
  /**
   * Reports that this link is the active one, and that `hub.wanted()` may differ from the channels that this link
   * reads.
   */
  changed(): void;
  /** Makes the server send a response. Called only on the active link. */
  ping(): void;
  readonly ask: Ask;
  /** Closes the link at once. A closed link reports nothing. */
  close(): void;
}

export interface Transport {
  readonly name: TransportName;
  /** Returns whether this runtime supports the transport. A transport without this function is always supported. */
  usable?(options: { readonly WebSocket?: unknown }): boolean;
  /** True if `auto` does not use the transport. */
  readonly byNameOnly?: true;
  open(host: LinkHost): Link;
}

export async function tokenOf({ token }: ConnectOptions, reason: TokenReason, signal: AbortSignal): Promise<string | undefined> {
  try {
    return typeof token === 'function' ? await token({ reason, signal }) : token;
  } catch (thrown) {
    // The token server may be temporarily unreachable. To stop the retries, the application throws a MillraceError.
    throw toError(thrown, 'network');
  }
}
