/**
 * Formats values for display. An unknown value is an en dash, never 0. Units are separate, so that they can be set in
 * smaller type.
 */
export const UNKNOWN = '–';

const decimal = (language: string, digits: number) =>
  new Intl.NumberFormat(language, { minimumFractionDigits: digits, maximumFractionDigits: digits });
let whole = decimal('en', 0);
let tenth = decimal('en', 1);

/** Formats the numbers that follow as a language does. Pages are in English unless they call this. */
export function formatIn(language: string): void {
  [whole, tenth] = [decimal(language, 0), decimal(language, 1)];
}

export function number(value: number | undefined, digits: 0 | 1 = 0): string {
  if (value === undefined || !Number.isFinite(value)) return UNKNOWN;
  return (digits === 0 ? whole : tenth).format(value);
}

/** Formats a duration in ms: `0.4 s`, `12 s`, `3 min`, `2 h`, `5 d`. */
export function duration(ms: number | undefined): string {
  if (ms === undefined || !Number.isFinite(ms)) return UNKNOWN;
  const s = Math.max(0, ms) / 1000;
  if (s < 10) return `${tenth.format(s)} s`;
  if (s < 120) return `${whole.format(s)} s`;
  if (s < 7200) return `${whole.format(s / 60)} min`;
  if (s < 172_800) return `${whole.format(s / 3600)} h`;
  return `${whole.format(s / 86_400)} d`;
}

/** Formats bytes with SI prefixes: `812 B`, `4.2 kB`, `1.3 MB`. */
export function bytes(value: number | undefined): string {
  if (value === undefined || !Number.isFinite(value)) return UNKNOWN;
  if (value < 1000) return `${whole.format(value)} B`;
  if (value < 1e6) return `${tenth.format(value / 1e3)} kB`;
  return `${tenth.format(value / 1e6)} MB`;
}

/** Returns the message of a thrown value, without a full stop, to be part of a sentence. */
export const reasonOf = (thrown: unknown): string => (thrown instanceof Error ? thrown.message : String(thrown)).replace(/[.]$/, '');

/** Formats the local time of day with milliseconds. */
export function clock(ms: number): string {
  const d = new Date(ms);
  const two = (n: number) => String(n).padStart(2, '0');
  return `${two(d.getHours())}:${two(d.getMinutes())}:${two(d.getSeconds())}.${String(d.getMilliseconds()).padStart(3, '0')}`;
}
