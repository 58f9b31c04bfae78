// Waiting and listening, with a way out.
import { toError } from './errors.js';

/** Milliseconds. A timer cannot be longer than 24 days: it would fire at once. */
export const TIMER_MAX = 1e9;

/** Calls `fn` when `signal` aborts, or now if it has; returns the way out. */
export function onAbort(signal: AbortSignal | undefined, fn: () => void): () => void {
  if (signal?.aborted) fn();
  signal?.addEventListener('abort', fn);
  return () => signal?.removeEventListener('abort', fn);
}

/** `promise`, unless `signal` aborts first. */
export function orAborted<T>(promise: Promise<T>, signal: AbortSignal | undefined): Promise<T> {
  return new Promise((resolve, reject) => {
    const off = onAbort(signal, () => reject(toError(signal!.reason, 'aborted')));
    promise.then(resolve, reject).finally(off);
  });
}

export const sleep = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms));

/** A caller's defect is its own: what `fn` throws surfaces as uncaught and stops nobody else. */
export function call<T>(fn: (value: T) => void, value: T): void {
  try {
    fn(value);
  } catch (thrown) {
    queueMicrotask(() => {
      throw thrown;
    });
  }
}
