// The one interface behind which the transports live: a transport opens links, a link reports to its host.
import type { MillraceError } from './errors.js';
import type { Http } from './http.js';
import type { Message } from './subscription.js';
import type { Gap, LogEntry, TransportName } from './types.js';

/** A channel or pattern that should be read, from where. */
export interface Wanted {
  readonly channel: string;
  readonly policy: 'every' | 'latest';
  /** A position, or for a pattern a time; undefined means now. */
  readonly since: string | undefined;
  /** For a pattern: the last position of every channel heard. */
  readonly positions?: Readonly<Record<string, string>>;
}

/** The body of a publication, as a session takes it. */
export interface Draft {
  readonly channel: string;
  readonly data: unknown;
  readonly encoding?: 'base64';
  readonly key?: string;
  readonly ttl?: number;
  readonly idempotency_key: string;
}

export interface LinkHost {
  readonly http: Http;
  readonly WebSocket: typeof WebSocket | undefined;
  readonly pollMs: number;
  /** Read anew at every (re)opening: positions move on. */
  wanted(): readonly Wanted[];
  /** Milliseconds. */
  opened(rtt: number): void;
  rtt(ms: number): void;
  /** Something came in; the next sign of life is due within `withinMs`. */
  alive(withinMs: number): void;
  /** `time`: the server's clock, ms. */
  started(channel: string, position: string, recovered: boolean, time: number): void;
  message(message: Message): void;
  gap(channel: string, gap: Gap): void;
  /** The channel cannot be read, and trying again would not change that. */
  refused(channel: string, error: MillraceError): void;
  drain(afterMs: number): void;
  /** The last word of a link. */
  closed(error: MillraceError): void;
  count(bytesIn: number, bytesOut: number): void;
  log(level: LogEntry['level'], msg: string): void;
}

export interface Link {
  /** `host.wanted()` may differ from what this link reads. */
  changed(): void;
  /** Make the server say something. */
  ping(): void;
  /** Sessions only. Undefined if `draft` is larger than a message may be. */
  publish?(draft: Draft): Promise<string> | undefined;
  /** Ends it at once; it reports nothing after this. */
  close(): void;
}

export interface Transport {
  readonly name: TransportName;
  /** Whether this runtime can do it. */
  usable(options: { readonly WebSocket?: unknown }): boolean;
  open(host: LinkHost): Link;
}
