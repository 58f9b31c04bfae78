/** The settings that the page can change: their values as text, and the steps of their buttons. */
import type { Direction, LinkState } from './state';

export interface Knob {
  readonly key: string;
  readonly label: string;
  /** Value in the error about a text of another type, which has no example. */
  readonly example: string;
  /** Shown in an empty field. */
  readonly placeholder: string;
  /** Value that an empty field stands for. */
  readonly empty: string;
  /** Returns the next value above or below, or the same text at the end and for a text without a number. */
  step(text: string, up: boolean): string;
  /** Formats a value of the settings in force. */
  show?(text: string): string;
}

/** Returns the next number of the series 1, 2, 5, 10, 20, 50, ..; 0 below `min`. */
function next(value: number, up: boolean, min: number): number {
  if (value <= 0) return up ? min : 0;
  const power = Math.floor(Math.log10(value) + 1e-9);
  const series = [power - 1, power, power + 1].flatMap((power) => [1, 2, 5].map((digit) => Number(`${digit}e${power}`)));
  const found = up ? series.find((one) => one > value * 1.0001) : series.findLast((one) => one < value * 0.9999);
  return found === undefined || found < min * 0.9999 ? 0 : found;
}

const FACTORS: Readonly<Record<string, number>> = { G: 1e9, M: 1e6, k: 1e3, '': 1 };
const UNITS_MS: Readonly<Record<string, number>> = { h: 3_600_000, m: 60_000, s: 1000, ms: 1, us: 0.001, ns: 0.000_001 };

/** Returns the bits per second of a rate such as `1.6Mbit/s`. */
export function bitsOf(text: string): number | undefined {
  const found = /^([\d.]+)\s*([GMk]?)bit\/s$/.exec(text.trim());
  return found ? Number(found[1]) * FACTORS[found[2]!]! : undefined;
}

function rateText(bits: number): string {
  const [unit, factor] = Object.entries(FACTORS).find(([, factor]) => bits >= factor) ?? ['', 1];
  return `${Number((bits / factor).toPrecision(6))}${unit}bit/s`;
}

/** Reads times such as `17.5ms` and `17ms 500us`. */
function msOf(text: string): number | undefined {
  const parts = [...text.matchAll(/([\d.]+)\s*(ms|us|ns|h|m|s)\s*/g)];
  if (parts.length === 0 || parts.map(([part]) => part).join('') !== text.trimStart()) return undefined;
  return parts.reduce((ms, [, number, unit]) => ms + Number(number) * UNITS_MS[unit!]!, 0);
}

function timeText(ms: number): string {
  const number = (value: number): number => Number(value.toPrecision(6));
  if (ms >= 1000) return `${number(ms / 1000)}s`;
  return ms >= 1 || ms === 0 ? `${number(ms)}ms` : `${number(ms * 1000)}us`;
}

const showTime = (text: string): string => {
  const ms = msOf(text);
  return ms === undefined ? text : timeText(ms);
};

function stepTime(text: string, up: boolean): string {
  const ms = msOf(text || '0ms');
  return ms === undefined ? text : timeText(next(ms, up, 1));
}

const QUEUE_DEFAULT = '500ms';

export const KNOBS: readonly Knob[] = [
  {
    key: 'rate', label: 'Rate', example: '10Mbit/s', placeholder: 'unlimited', empty: 'none',
    step(text, up) {
      if (text === '') return up ? '' : '1Gbit/s';
      const bits = bitsOf(text);
      if (bits === undefined) return text;
      return up && bits >= 1e9 ? '' : rateText(next(bits, up, 1000) || 1000);
    },
  },
  {
    key: 'queue', label: 'Queue limit', example: '100 packets', placeholder: QUEUE_DEFAULT, empty: 'none', show: showTime,
    step(text, up) {
      const counted = /^(\d+)\s*(packets?|bytes?)$/.exec(text.trim());
      if (!counted) return stepTime(text || QUEUE_DEFAULT, up) === '0ms' ? '1ms' : stepTime(text || QUEUE_DEFAULT, up);
      return `${Math.round(next(Number(counted[1]), up, 1)) || 1} ${counted[2]!.startsWith('p') ? 'packets' : 'bytes'}`;
    },
  },
  { key: 'delay', label: 'Delay', example: '40ms', placeholder: '0ms', empty: '0ms', show: showTime, step: stepTime },
  { key: 'jitter', label: 'Jitter', example: '5ms', placeholder: '0ms', empty: '0ms', show: showTime, step: stepTime },
  {
    key: 'loss', label: 'Loss', example: '1%', placeholder: '0%', empty: '0%',
    step(text, up) {
      const found = /^([\d.]+)\s*%$/.exec(text.trim() || '0%');
      return found ? `${Math.min(100, next(Number(found[1]), up, 0.1))}%` : text;
    },
    show(text) {
      const found = /^([\d.]+)%$/.exec(text);
      return found ? `${Number(Number(found[1]).toPrecision(6))}%` : text;
    },
  },
  {
    key: 'loss_burst', label: 'Lost in a row', example: '3', placeholder: 'at random', empty: 'none',
    step(text, up) {
      const packets = next(Number(text || 1), up, 2);
      return packets > 1 ? String(packets) : '';
    },
  },
];

/** Returns the value in force as the text of a knob. Empty: the link has no such part. */
export function inForce({ settings }: LinkState, direction: Direction, { key, show }: Knob): string {
  const value = settings[direction][key];
  const text = value === undefined ? '' : String(value);
  return show ? show(text) : text;
}

const SHOWN = new Set(KNOBS.map(({ key }) => key));
const DEFAULTS: Readonly<Record<string, unknown>> = { distribution: 'uniform', reorder: false, duplicate: '0%', corrupt: '0%' };

/** Returns the settings in force that no knob shows and that differ from a link that changes nothing. */
export function otherSettings({ settings }: LinkState): readonly string[] {
  const found: string[] = [];
  const collect = (value: unknown, key: string): void => {
    const name = key.replace(/^(up|down)[.]/, '');
    if (typeof value === 'object' && value !== null && !Array.isArray(value)) {
      for (const [inner, part] of Object.entries(value)) collect(part, key ? `${key}.${inner}` : inner);
    } else if (name === key || (!SHOWN.has(name) && DEFAULTS[name] !== value)) {
      found.push(`${key} = ${Array.isArray(value) ? value.join(', ') : String(value)}`);
    }
  };
  collect(settings, '');
  return found;
}
