/**
 * Colors that color-blind readers can distinguish (after Okabe and Ito, adjusted to a contrast of 3:1 on both
 * backgrounds), and a mark for each color.
 */
export type Mark = 'circle' | 'square' | 'triangle' | 'diamond' | 'down' | 'cross' | 'plus' | 'bar';

export interface Ink {
  readonly color: string;
  readonly mark: Mark;
}

const MARKS: readonly Mark[] = ['circle', 'square', 'triangle', 'diamond', 'down', 'cross', 'plus', 'bar'];

export const ink = (index: number): Ink => ({ color: `var(--series-${(index % 8) + 1})`, mark: MARKS[index % MARKS.length]! });

/** SVG paths of the marks, centered at 0, 0. */
export const MARK_PATHS: Readonly<Record<Mark, string>> = {
  circle: 'M-3.5 0a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0-7 0',
  square: 'M-3.2-3.2h6.4v6.4h-6.4z',
  triangle: 'M0-4.2L4.1 3H-4.1z',
  diamond: 'M0-4.4L4.4 0L0 4.4L-4.4 0z',
  down: 'M0 4.2L4.1-3H-4.1z',
  cross: 'M-3.6-2.2L-2.2-3.6L0-1.4L2.2-3.6L3.6-2.2L1.4 0L3.6 2.2L2.2 3.6L0 1.4L-2.2 3.6L-3.6 2.2L-1.4 0z',
  plus: 'M-1-4h2v3h3v2h-3v3h-2v-3h-3v-2h3z',
  bar: 'M-4-1.4h8v2.8h-8z',
};
