// MillraceError and all its sources: problem details, session errors, close codes, errors of `fetch`, unknown errors.
// Only this file decides whether an error is retryable. Only errors that are known to be temporary are retryable.
import type { TransportName } from './types.js';

export type ErrorCode = 'auth' | 'network' | 'timeout' | 'gap' | 'slow-consumer' | 'rejected' | 'aborted' | 'protocol' | 'invalid';

export interface ErrorDetails {
  readonly retryable?: boolean | undefined;
  /** Time before the next attempt, ms. */
  readonly retryAfter?: number | undefined;
  readonly transport?: TransportName | undefined;
  /**
   * The server's own error code, for example `bad_channel` or `too_many`; if the application refused, the code of its
   * back end. See docs/reference/protocol.md, "Errors".
   */
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
  /** Code of the application's back end. */
  readonly reason?: string;
}

const CODES: Readonly<Record<string, ErrorCode>> = {
  timeout: 'timeout', unavailable: 'network', internal: 'network', bad_json: 'protocol', unauthorized: 'auth', forbidden: 'auth',
};

/** Returns the error for a response with an error status. */
export async function problem(response: Response): Promise<MillraceError> {
  const { status } = response;
  const retryAfter = +response.headers.get('Retry-After')! * 1000 || undefined;
  let refusal: Refusal = {};
  try {
    refusal = (await response.json()) as Refusal;
  } catch {
    // The body is not JSON: a proxy between this client and the server answered.
  }
  const { message, code, retryable, reason } = refused({ ...refusal, detail: refusal.detail ?? refusal.title ?? `HTTP ${status}` });
  if (reason) return new MillraceError(code, message, { retryable, reason, retryAfter });
  return new MillraceError(status === 401 || status === 403 ? 'auth' : status > 499 || status === 408 || status === 429 ? 'network' : 'rejected', message, { retryAfter });
}

/** Returns the error for a refusal by the server. The server decides whether the request may be retried. */
export function refused({ code = '', detail = code, retry = false, reason = code }: Refusal): MillraceError {
  return new MillraceError(CODES[code] ?? 'rejected', detail, { retryable: retry, reason });
}

/**
 * Returns the error for a WebSocket close code (docs/reference/protocol.md, "WebSocket"). Browsers report 1005 and 1006
 * when the connection was lost or the handshake was refused. Both are retryable, and so is 4001 (token expired),
 * because the next connection uses a new token.
 */
export function closeError(code: number, reason: string | undefined, address: string): MillraceError {
  // Close codes have four digits.
  const isOneOf = (codes: RegExp): boolean => codes.test(`${code}`);
  const kind: ErrorCode = isOneOf(/10(0[2379]|10)/) ? 'protocol' : isOneOf(/1008|4003/) ? 'auth' : isOneOf(/1000|^4(?!001)/) ? 'rejected' : 'network';
  return new MillraceError(kind, `${address} closed with ${code}: ${reason || 'no reason given'}`, { transport: 'websocket' });
}

/**
 * Returns the error for a failure of `fetch`, or of reading its body. Network errors are TypeErrors, DOMExceptions, or
 * errors of the operating system, which Node puts into `cause`. Source: Fetch Standard, "fetch method".
 */
export function unreachable(thrown: unknown, url: string | URL): MillraceError {
  const { name, message, code, cause } = Object(thrown);
  const isKnown = /^(Type|Abort|Timeout|Network|Fetch)Error$/.test(name) || /^(?!ERR_)/.test(code ?? 'ERR_');
  if (thrown instanceof MillraceError || !isKnown) return toError(thrown);
  return new MillraceError(name === 'TimeoutError' ? 'timeout' : 'network', `no connection to ${new URL(url).origin}: ${cause?.code ?? cause?.message ?? message}`, { cause: thrown });
}

/** Converts any thrown value to a MillraceError. An unknown error gets `code` and is not retryable by default. */
export function toError(thrown: unknown, code: ErrorCode = thrown instanceof SyntaxError ? 'protocol' : 'invalid'): MillraceError {
  return thrown instanceof MillraceError ? thrown : new MillraceError(code, String(thrown), { cause: thrown });
}
