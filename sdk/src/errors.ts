// MillraceError and the ways into it: problem details, session errors, WebSocket close codes.
import type { TransportName } from './types.js';

export type ErrorCode = 'auth' | 'network' | 'timeout' | 'gap' | 'slow-consumer' | 'rejected' | 'aborted' | 'protocol';

export interface ErrorDetails {
  readonly retryable?: boolean | undefined;
  /** Milliseconds. */
  readonly retryAfter?: number | undefined;
  readonly transport?: TransportName | undefined;
  /** The server's own code (`bad_channel`, `too_many`), see docs/protocol.md, "Errors". */
  readonly reason?: string | undefined;
  readonly status?: number | undefined;
  readonly cause?: unknown;
}

export class MillraceError extends Error {
  override readonly name = 'MillraceError';
  readonly code: ErrorCode;
  readonly retryable: boolean;
  readonly retryAfter: number | undefined;
  readonly transport: TransportName | undefined;
  readonly reason: string | undefined;
  readonly status: number | undefined;

  constructor(code: ErrorCode, message: string, details: ErrorDetails = {}) {
    super(message, { cause: details.cause });
    this.code = code;
    this.retryable = details.retryable ?? (code === 'network' || code === 'timeout');
    this.retryAfter = details.retryAfter;
    this.transport = details.transport;
    this.reason = details.reason;
    this.status = details.status;
  }
}

/** The `error` of a session reply, or the members of problem details. */
export interface Refusal {
  readonly code?: string;
  readonly detail?: string;
  readonly title?: string;
  readonly retry?: boolean;
}

export function refused(refusal: Refusal, status?: number, retryAfter?: number): MillraceError {
  const code: ErrorCode =
    status === 401 || status === 403
      ? 'auth'
      : refusal.code === 'timeout'
        ? 'timeout'
        : refusal.code === 'unavailable' || refusal.code === 'internal' || (status ?? 0) > 499
          ? 'network'
          : refusal.code === 'bad_json'
            ? 'protocol'
            : 'rejected';
  return new MillraceError(code, refusal.detail ?? refusal.title ?? `refused (${refusal.code ?? status})`, {
    retryable: refusal.retry ?? (status === 429 || status === 408 || (status ?? 0) > 499),
    retryAfter,
    reason: refusal.code,
    status,
  });
}

/**
 * What a WebSocket close code means here (docs/protocol.md, "WebSocket"). 1005 and 1006 are what a browser reports when the
 * link just went away, or the handshake was refused: worth another try.
 */
export function closeError(code: number, reason: string): MillraceError {
  const detail = `WebSocket closed: ${code}${reason && ` ${reason}`}`;
  if (code === 1000) return new MillraceError('rejected', detail);
  if (code === 1002 || code === 1003 || code === 1007 || code === 1009 || code === 1010) return new MillraceError('protocol', detail);
  if (code === 1008) return new MillraceError('auth', detail);
  if (code > 3999) return new MillraceError('rejected', detail);
  return new MillraceError('network', detail);
}

/** Anything thrown, as a MillraceError: what is not ours already came from the network. */
export function toError(thrown: unknown, transport?: TransportName): MillraceError {
  if (thrown instanceof MillraceError) return thrown;
  const message = thrown instanceof Error ? thrown.message : String(thrown);
  return new MillraceError('network', message, { cause: thrown, transport });
}

export const aborted = (cause?: unknown): MillraceError => new MillraceError('aborted', 'aborted', { cause });
