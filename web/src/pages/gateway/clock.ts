/** Timers that stay accurate in a background tab. */
const worker = new Worker(new URL('./clock.worker.ts', import.meta.url), { type: 'module' });
const waiting = new Map<number, () => void>();
let serial = 0;

worker.onmessage = ({ data: id }: MessageEvent<number>) => {
  const fn = waiting.get(id);
  waiting.delete(id);
  fn?.();
};

/** Calls `fn` once after `ms`. Returns a function that cancels the call. */
export function after(ms: number, fn: () => void): () => void {
  const id = ++serial;
  waiting.set(id, fn);
  worker.postMessage([id, ms]);
  return () => void waiting.delete(id);
}
