/** The finish table as text in the fragment of a link, so that the link needs no server that stores it. */
import { LINK_CHARS_MAX, type Row } from './figures';
import { LANES, type LaneName } from './api';

export interface Place extends Row {
  readonly lane: LaneName;
  /** Time after the first lane, ms; `undefined` if the lane has not finished. */
  readonly behindMs: number | undefined;
}

export interface Result {
  /** End of the race, ms since 1970. */
  readonly at: number;
  /** Ticks of the race. */
  readonly ticks: number;
  readonly places: readonly Place[];
}

const PREFIX = '#race=';
const TEXT_MAX = 8_000;
const VERSION = 1;

/** Orders the lanes: first those that have finished, by time; then the others, by ticks. */
export const ranked = (places: readonly Place[]): Place[] =>
  [...places].sort((a, b) => (a.behindMs ?? Infinity) - (b.behindMs ?? Infinity) || b.ticks - a.ticks || 0);

const rounded = (value: number | undefined): number | null => (value === undefined ? null : Math.round(value * 10) / 10);

export function fragmentOf({ at, ticks, places }: Result): string {
  const rows = places.map((one) => [
    one.lane, rounded(one.behindMs), one.ticks, one.missed, rounded(one.p50), rounded(one.p99), rounded(one.bytesPerTick), one.requests, one.reconnects, one.link,
  ]);
  const bytes = new TextEncoder().encode(JSON.stringify([VERSION, at, ticks, rows]));
  return PREFIX + btoa(String.fromCharCode(...bytes)).replace(/\+/g, '-').replace(/\//g, '_').replace(/=+$/, '');
}

/** Returns the result in a fragment; `undefined` without one; `'invalid'` if the fragment is damaged. */
export function resultIn(fragment: string): Result | 'invalid' | undefined {
  if (!fragment.startsWith(PREFIX)) return undefined;
  if (fragment.length > TEXT_MAX) return 'invalid';
  try {
    const text = atob(fragment.slice(PREFIX.length).replace(/-/g, '+').replace(/_/g, '/'));
    const [version, at, ticks, rows] = JSON.parse(new TextDecoder().decode(Uint8Array.from(text, (char) => char.charCodeAt(0)))) as unknown[];
    if (version !== VERSION || !isAmount(at) || !isAmount(ticks) || !Array.isArray(rows) || rows.length === 0 || rows.length > LANES.length) return 'invalid';
    const places = rows.map(placeOf);
    if (new Set(places.map((place) => place.lane)).size !== places.length) return 'invalid';
    return { at, ticks, places };
  } catch {
    return 'invalid';
  }
}

const isAmount = (value: unknown): value is number => typeof value === 'number' && Number.isFinite(value) && value >= 0 && value < 8.64e15;

/** Throws if the row is no place of a race. */
function placeOf(row: unknown): Place {
  const [lane, behindMs, ticks, missed, p50, p99, bytesPerTick, requests, reconnects, link] = row as unknown[];
  const amount = (value: unknown): number => {
    if (!isAmount(value)) throw new RangeError();
    return value;
  };
  const optional = (value: unknown): number | undefined => (value === null ? undefined : amount(value));
  const known = LANES.find(({ name }) => name === lane);
  if (!known || typeof link !== 'string' || link.length > LINK_CHARS_MAX) throw new RangeError();
  return {
    lane: known.name, behindMs: optional(behindMs), ticks: amount(ticks), missed: amount(missed), p50: optional(p50), p99: optional(p99),
    bytesPerTick: optional(bytesPerTick), requests: amount(requests), reconnects: amount(reconnects), link,
  };
}
