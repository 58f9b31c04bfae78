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
  readonly cause?: unknown;
}

export class MillraceError extends Error {
  declare readonly code: ErrorCode;
  declare readonly retryable: boolean;
  declare readonly retryAfter?: number;
  declare readonly transport?: TransportName;
  declare readonly reason?: string;

  constructor(code: ErrorCode, message: string, details?: ErrorDetails) {
    super(message);
    Object.assign(this, { name: 'MillraceError', code, retryable: code === 'network' || code === 'timeout' }, details);
  }
}

/** The `error` of a session reply, or the members of problem details. */
export interface Refusal {
  readonly code?: string;
  readonly detail?: string;
  readonly title?: string;
  readonly retry?: boolean;
}

const CODES: Readonly<Record<string, ErrorCode>> = {
  timeout: 'timeout', unavailable: 'network', internal: 'network', bad_json: 'protocol', unauthorized: 'auth', forbidden: 'auth',
};

/** What the server refused, with its word on whether to try again. */
export function refused({ code = '', detail = code, retry = false }: Refusal): MillraceError {
  return new MillraceError(CODES[code] ?? 'rejected', detail, { retryable: retry, reason: code });
}

/**
 * What a WebSocket close code means here (docs/protocol.md, "WebSocket"). 1005 and 1006 are what a browser reports when the
 * link just went away, or the handshake was refused: worth another try, as is 4001, the end of a token, with the next one.
 */
export function closeError(code: number, reason: string): MillraceError {
  const kind: ErrorCode = /^10(0[2379]|10)$/.test(String(code))
    ? 'protocol'
    : code === 1008 || code === 4003
      ? 'auth'
      : code === 1000 || (code > 3999 && code !== 4001)
        ? 'rejected'
        : 'network';
  return new MillraceError(kind, `closed: ${code} ${reason}`, { transport: 'websocket' });
}

/** Anything thrown, as a MillraceError: what is not ours has `code`. */
export function toError(thrown: unknown, code: ErrorCode = 'network'): MillraceError {
  return thrown instanceof MillraceError ? thrown : new MillraceError(code, String(thrown), { cause: thrown });
}
