// Values with their units for the operator pages. An unknown value is an en dash, never 0.
import { bytes, ms, plain, short, us, type Format } from '../../lib/chart/units';
import { UNKNOWN } from '../../lib/format';

export { bytes, ms, plain, short, us, UNKNOWN, type Format };

export const perS: Format = (value) => (value === undefined || value === null ? UNKNOWN : `${short(round(value)).replace(/^[^ ]*$/, '$& ')}/s`);
export const bytesPerS: Format = (value) => (value === undefined || value === null ? UNKNOWN : `${bytes(value)}/s`);
/** CPU time per time: `0.4 cores`. */
export const cores: Format = (value) => (value === undefined || value === null ? UNKNOWN : `${plain(Math.round(value * 100) / 100)} ${value === 1 ? 'core' : 'cores'}`);
export const percent: Format = (value) => (value === undefined || value === null ? UNKNOWN : `${plain(Math.round(value * 1000) / 10)} %`);
export const count: Format = (value) => (value === undefined || value === null ? UNKNOWN : whole.format(value));

const whole = new Intl.NumberFormat('en', { maximumFractionDigits: 0 });
/** Rates below ten keep one decimal. */
const round = (value: number): number => (Math.abs(value) < 10 ? Math.round(value * 10) / 10 : Math.round(value));

/** Splits a formatted value into its number and its unit, which is set in smaller type. */
export function parts(text: string): readonly [value: string, unit: string] {
  const space = text.indexOf(' ');
  return space < 0 ? [text, ''] : [text.slice(0, space), text.slice(space + 1)];
}

const STEPS = [[86_400_000, 'd', 24, 'h', 3_600_000], [3_600_000, 'h', 60, 'min', 60_000], [60_000, 'min', 60, 's', 1000]] as const;

/** Formats an age with two units: `3 h 12 min`, `42 s`, `180 ms`. */
export function age(value: number | null | undefined): string {
  if (value === undefined || value === null || !Number.isFinite(value)) return UNKNOWN;
  const total = Math.max(0, value);
  for (const [step, unit, per, smaller, size] of STEPS) {
    if (total < step) continue;
    const rest = Math.floor(total / size) % per;
    return `${Math.floor(total / step)} ${unit}${rest ? ` ${rest} ${smaller}` : ''}`;
  }
  return total < 1000 ? `${Math.round(total)} ms` : `${Math.floor(total / 1000)} s`;
}

/** Formats the local time of day: `14:03:21`. */
export const time = (value: number): string => hours.format(value);
const hours = new Intl.DateTimeFormat('en-GB', { hour: '2-digit', minute: '2-digit', second: '2-digit' });

const LABELS: Readonly<Record<string, string>> = {
  websocket: 'WebSocket',
  sse: 'SSE',
  stream: 'HTTP stream',
  'long-polling': 'Long polling',
  polling: 'Polling',
  'data-channel': 'Data channel',
  mqtt: 'MQTT',
};
export const transport = (name: string): string => LABELS[name] ?? name;
/** Transports as the server names them, in the order of charts. */
export const TRANSPORTS = ['websocket', 'sse', 'stream', 'long-polling', 'polling', 'data-channel', 'mqtt'] as const;
