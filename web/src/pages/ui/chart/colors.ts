/** Colors of the page for a canvas, which does not know custom properties. */
export function colorOf(element: HTMLElement, name: string): string {
  const probe = document.createElement('span');
  probe.style.color = `var(${name})`;
  element.append(probe);
  const { color } = getComputedStyle(probe);
  probe.remove();
  return color;
}

const dark = matchMedia('(prefers-color-scheme: dark)');

/** Calls `fn` whenever the colors of the page have changed. Returns a function that ends this. */
export function onColors(fn: () => void): () => void {
  dark.addEventListener('change', fn);
  return () => dark.removeEventListener('change', fn);
}

/** Returns a computed color, such as `rgb(0, 103, 165)`, with an opacity from 0 to 1. */
export const faded = (color: string, opacity: number): string => `rgba(${color.match(/[\d.]+/g)?.slice(0, 3).join(', ') ?? '0, 0, 0'}, ${opacity})`;
