/**
 * The only animation loop of the page. Callbacks run once per frame while the page is visible, with reduced motion once
 * per second. The loop stops while no callback is registered or the page is hidden.
 */
type Callback = (now: number) => void;

const callbacks = new Set<Callback>();
const reduced = matchMedia('(prefers-reduced-motion: reduce)');
let frame = 0;
let timer: ReturnType<typeof setTimeout> | undefined;

export const motionReduced = (): boolean => reduced.matches;

export function onFrame(callback: Callback): () => void {
  callbacks.add(callback);
  schedule();
  return () => void callbacks.delete(callback);
}

function schedule(): void {
  if (frame || timer !== undefined || callbacks.size === 0 || document.hidden) return;
  if (reduced.matches) timer = setTimeout(() => run(performance.now()), 1000);
  else frame = requestAnimationFrame(run);
}

function run(now: number): void {
  frame = 0;
  timer = undefined;
  for (const callback of callbacks) callback(now);
  schedule();
}

function restart(): void {
  cancelAnimationFrame(frame);
  clearTimeout(timer);
  frame = 0;
  timer = undefined;
  schedule();
}

document.addEventListener('visibilitychange', restart);
reduced.addEventListener('change', restart);
