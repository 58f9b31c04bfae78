// The one interface behind which the transports live: a transport opens links, a link reports to its host.
import { toError } from './errors.js';
import type { Hub } from './hub.js';
import type { LinkInput } from './machine.js';
import type { Message } from './subscription.js';
import type { ConnectOptions, Gap, Stats, TokenReason, TransportName } from './types.js';

/** A channel or pattern that should be read, from where: the body of a session's `subscribe`. */
export interface Wanted {
  readonly channel: string;
  readonly policy: 'every' | 'latest';
  /** A position, or for a pattern a time; undefined means now. */
  readonly since: string | undefined;
  /** For a pattern: the last position of every channel heard. */
  readonly positions?: Readonly<Record<string, string>>;
}

export interface Draft extends Payload {
  readonly channel: string;
  readonly key: string | undefined;
  readonly ttl: number | undefined;
  readonly idempotency_key: string;
}

/** An encoded payload. */
export interface Payload {
  readonly type: 'application/octet-stream' | 'text/plain' | 'application/json';
  readonly data: string | Uint8Array<ArrayBuffer>;
}

/** A part of a channel's history: `gap`, if any, lies before `messages`. */
export interface Page {
  readonly position: string;
  readonly messages: readonly Message[];
  readonly gap?: Gap;
  /** More of the range follows. */
  readonly more?: boolean;
}

/** What can be asked, and what is answered: the commands of a session (docs/protocol.md, "WebSocket"). */
export interface Commands {
  publish: [Draft, { readonly position: string }];
  history: [{ readonly channel: string; readonly since: string; readonly until?: string; readonly limit: number }, Page];
  presence: [{ readonly channel: string }, { readonly count: number }];
}

export type Ask = <C extends keyof Commands>(command: C, body: Commands[C][0], signal?: AbortSignal) => Promise<Commands[C][1]>;

/** The client as a link sees it; `WebSocket`, `fetch`, `retry` and the like are what the application gave. */
export interface LinkHost extends ConnectOptions {
  /** The server's address, without a slash at the end. */
  readonly base: string;
  /** What to read, and where it goes. */
  readonly hub: Hub;
  /** For the link to keep: `rtt`, `bytesIn`, `bytesOut`. */
  readonly counts: { -readonly [K in keyof Stats]: Stats[K] };
  /** What happened to this link. `closed` is its last word. */
  say<Type extends LinkInput[0]>(type: Type, value: Extract<LinkInput, readonly [Type, unknown]>[1]): void;
}

/** Requests fail with a retryable error without `reason` when the link went away before the answer: ask the next link. */
export interface Link {
  /** It is the one that carries the traffic, and `hub.wanted()` may differ from what it reads. */
  changed(): void;
  /** Make the server say something. Only asked of the link that carries the traffic. */
  ping(): void;
  readonly ask: Ask;
  /** Ends it at once; it reports nothing after this. */
  close(): void;
}

export interface Transport {
  readonly name: TransportName;
  /** Whether this runtime can do it; every one can if that is not said. */
  usable?(options: { readonly WebSocket?: unknown }): boolean;
  /** Left out of `auto`. */
  readonly byNameOnly?: true;
  open(host: LinkHost): Link;
}

export async function tokenOf({ token }: ConnectOptions, reason: TokenReason, signal: AbortSignal): Promise<string | undefined> {
  try {
    return typeof token === 'function' ? await token({ reason, signal }) : token;
  } catch (thrown) {
    // The token server may be unreachable for a while. To stop the retries, the application throws a MillraceError.
    throw toError(thrown, 'network');
  }
}
