/**
 * Formats numbers in charts: three digits and a unit that keeps them short. An unknown value is an en dash, never 0.
 */
import { UNKNOWN } from '../format';

const three = new Intl.NumberFormat('en', { maximumSignificantDigits: 3, useGrouping: true });
const whole = new Intl.NumberFormat('en', { maximumFractionDigits: 0 });

export type Format = (value: number | null | undefined) => string;

const known = (value: number | null | undefined): value is number => value !== null && value !== undefined && Number.isFinite(value);
const digits = (value: number) => (Math.abs(value) >= 1000 ? whole : three).format(value);

export const plain: Format = (value) => (known(value) ? digits(value) : UNKNOWN);

/** Formats numbers as `1.2 M` or `40 k`, for axes. */
export const short: Format = (value) => {
  if (!known(value)) return UNKNOWN;
  for (const [step, unit] of [[1e9, ' G'], [1e6, ' M'], [1e3, ' k']] as const) if (Math.abs(value) >= step) return three.format(value / step) + unit;
  return three.format(value);
};

/** Formats microseconds in the shortest suitable unit. */
export const us: Format = (value) => {
  if (!known(value)) return UNKNOWN;
  if (value >= 999_500) return `${three.format(value / 1e6)} s`;
  if (value >= 999.5) return `${three.format(value / 1e3)} ms`;
  return `${three.format(value)} µs`;
};

/** Formats milliseconds in the shortest suitable unit. */
export const ms: Format = (value) => (value === 0 ? '0 ms' : us(known(value) ? value * 1000 : value));

export const bytes: Format = (value) => {
  if (!known(value)) return UNKNOWN;
  for (const [step, unit] of [[1e9, 'GB'], [1e6, 'MB'], [1e3, 'kB']] as const) if (Math.abs(value) >= step) return `${three.format(value / step)} ${unit}`;
  return `${three.format(value)} B`;
};

export const bitsPerS: Format = (value) => {
  if (!known(value)) return UNKNOWN;
  for (const [step, unit] of [[1e9, 'Gbit/s'], [1e6, 'Mbit/s'], [1e3, 'kbit/s']] as const) if (Math.abs(value) >= step * 0.9995) return `${three.format(value / step)} ${unit}`;
  return `${three.format(value)} bit/s`;
};

/** Formats a share as percent. */
export const percent: Format = (value) => (known(value) ? `${three.format(value * 100)} %` : UNKNOWN);

const tenths = new Intl.NumberFormat('en', { maximumFractionDigits: 1 });

/** Formats a change as percent with its sign; below ten, with one decimal. */
export const change: Format = (value) => {
  if (!known(value)) return UNKNOWN;
  const size = Math.abs(value) * 100;
  const text = (size < 10 ? tenths : whole).format(size);
  return text === '0' ? '0 %' : `${value > 0 ? '+' : '−'}${text} %`;
};

export const seconds: Format = (value) => (known(value) ? `${three.format(value)} s` : UNKNOWN);
