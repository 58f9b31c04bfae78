import { aborted } from './errors.js';

/** Calls `fn` for every event of that type; returns the way out. */
export function listen(target: EventTarget | undefined, type: string, fn: (event: globalThis.Event) => void): () => void {
  target?.addEventListener(type, fn);
  return () => target?.removeEventListener(type, fn);
}

/** `promise`, unless `signal` aborts first. */
export function orAborted<T>(promise: Promise<T>, signal: AbortSignal | undefined): Promise<T> {
  return new Promise((resolve, reject) => {
    const abort = (): void => reject(aborted(signal?.reason));
    const off = listen(signal, 'abort', abort);
    promise.then(resolve, reject).finally(off);
    if (signal?.aborted) abort();
  });
}
