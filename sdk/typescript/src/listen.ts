// Helpers for waiting and listening that can be canceled.
import { toError } from './errors.js';

/** Maximum duration of a timer, ms. A timer of more than 24 days would fire at once. */
export const TIMER_MAX = 1e9;

/** Calls `fn` when `signal` aborts, or now if it has already aborted. Returns a function that removes the listener. */
export function onAbort(signal: AbortSignal | undefined, fn: () => void): () => void {
  if (signal?.aborted) fn();
  signal?.addEventListener('abort', fn);
  return () => signal?.removeEventListener('abort', fn);
}

/** Returns a signal that aborts when `signal` does, or after `timeoutMs`. */
export function signalOf(signal: AbortSignal | undefined, timeoutMs: number | undefined): AbortSignal | undefined {
  return timeoutMs ? AbortSignal.any([AbortSignal.timeout(timeoutMs), signal!].filter(Boolean)) : signal;
}

/** Settles as `promise` does, or rejects if `signal` aborts first. */
export function orAborted<T>(promise: Promise<T>, signal: AbortSignal | undefined): Promise<T> {
  return new Promise((resolve, reject) => {
    const off = onAbort(signal, () => reject(toError(signal!.reason, 'aborted')));
    promise.then(resolve, reject).finally(off);
  });
}

export const sleep = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms));

/**
 * Calls a callback of the application. An error thrown by `fn` is reported as uncaught and does not affect other
 * callbacks.
 */
export function call<T>(fn: (value: T) => void, value: T): void {
  try {
    fn(value);
  } catch (thrown) {
    queueMicrotask(() => {
      throw thrown;
    });
  }
}
