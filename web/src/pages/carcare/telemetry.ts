import { UNKNOWN, number } from '../../lib/format';

/**
 * One record as cars send it (docs/reference/protocol.md, "CarCare aliases").
 * Units: degrees, m/s, revolutions per minute, degrees Celsius, `timestamp` in ms since 1970.
 */
export interface Telemetry {
  carId: number;
  timestamp: number;
  gpsLatitude: number;
  gpsLongitude: number;
  speed: number;
  rpm: number;
  coolantTemperature: number;
  heading?: number;
  gear?: number;
  seq?: number;
  event?: string;
  code?: string;
}

/**
 * Returns whether a record has a valid place in the fleet and on the map. Records come from outside; an invalid one is
 * ignored.
 */
export function isTelemetry(value: unknown): value is Telemetry {
  if (typeof value !== 'object' || value === null) return false;
  const r = value as Record<string, unknown>;
  return (
    Number.isInteger(r.carId) &&
    Number.isFinite(r.timestamp) &&
    Number.isFinite(r.gpsLatitude) &&
    Number.isFinite(r.gpsLongitude) &&
    Math.abs(r.gpsLatitude as number) <= 85 &&
    Math.abs(r.gpsLongitude as number) <= 180
  );
}

const EVENT_NAMES: Record<string, string> = {
  harsh_braking: 'Harsh braking',
  high_rpm: 'High rpm',
  trouble_code: 'Trouble code',
};

export function eventName(event: string, code?: string): string {
  const name = EVENT_NAMES[event] ?? event.replaceAll('_', ' ');
  return code ? `${name} ${code}` : name;
}

const COMPASS = ['N', 'NE', 'E', 'SE', 'S', 'SW', 'W', 'NW'];

export const compass = (heading: number | undefined): string =>
  heading === undefined ? UNKNOWN : `${COMPASS[Math.round(heading / 45) % 8]} ${number(heading)}°`;

export const kmh = (metresPerSecond: number | undefined): number | undefined =>
  metresPerSecond === undefined ? undefined : metresPerSecond * 3.6;
