import { scaleLinear, scaleLog } from 'd3-scale';

export interface Axis {
  readonly kind: 'linear' | 'log';
  readonly domain: readonly [number, number];
  /** Label with the unit. */
  readonly label: string;
  readonly format: (value: number) => string;
  /** Ticks. By default, round numbers are chosen. */
  readonly ticks?: readonly number[];
}

export interface Scale {
  (value: number): number;
  readonly ticks: readonly number[];
}

/** Returns powers of ten, with 2 and 5 between them if the axis has room. */
function powers([low, high]: readonly [number, number], most: number): number[] {
  const decades = Math.log10(high / low);
  const steps = decades * 3 <= most ? [1, 2, 5] : [1];
  const every = Math.max(1, Math.ceil(decades / most));
  const ticks: number[] = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++) {
    if (power % every !== 0) continue;
    for (const step of steps) {
      const tick = Number(`${step}e${power}`);
      if (tick >= low * 0.999 && tick <= high * 1.001) ticks.push(tick);
    }
  }
  return ticks;
}

export function scale(axis: Axis, range: readonly [number, number], most: number): Scale {
  const [low, high] = axis.domain;
  const of = axis.kind === 'log' ? scaleLog([low, high], range) : scaleLinear([low, high], range);
  const ticks = axis.ticks ?? (axis.kind === 'log' ? powers(axis.domain, most) : of.ticks(most));
  // A value outside the axis is drawn at its edge.
  return Object.assign((value: number) => of(Math.min(high, Math.max(low, value))), { ticks });
}

/** Returns a range from zero to a round number above all values. */
export function fromZero(values: Iterable<number>): [number, number] {
  const high = Math.max(0, ...finite(values));
  return scaleLinear([0, high > 0 ? high * 1.02 : 1], [0, 1]).nice(5).domain() as [number, number];
}

/** Returns a range of whole decades that contains all positive values. */
export function decades(values: Iterable<number>, orElse: [number, number] = [1, 10]): [number, number] {
  const above = finite(values).filter((value) => value > 0);
  if (above.length === 0) return orElse;
  const low = 10 ** Math.floor(Math.log10(Math.min(...above)) + 1e-9);
  const high = 10 ** Math.ceil(Math.log10(Math.max(...above)) - 1e-9);
  return [low, high > low ? high : low * 10];
}

function finite(values: Iterable<number>): number[] {
  return [...values].filter(Number.isFinite);
}
