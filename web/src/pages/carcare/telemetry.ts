/** Id of a car: a number, or the text that a phone or tracker sends. */
export type CarId = number | string;

const ID_MAX = 128;

/** Returns the id of a car of a key or of an address; a text of digits is a number. */
export function carIdOf(text: string): CarId | undefined {
  if (/^[1-9]\d{0,14}$/.test(text) || text === '0') return Number(text);
  return text && text.length <= ID_MAX && !text.includes('/') ? text : undefined;
}

/** Compares two ids: numbers first, in their order, then texts. */
export function byId(a: CarId, b: CarId): number {
  if (typeof a === 'number' && typeof b === 'number') return a - b;
  return typeof a === typeof b ? String(a).localeCompare(String(b)) : typeof a === 'number' ? -1 : 1;
}

/**
 * One record as cars send it (docs/reference/protocol.md, "CarCare aliases").
 * Units: degrees, m/s, revolutions per minute, degrees Celsius, `timestamp` in ms since 1970.
 */
export interface Telemetry {
  carId: CarId;
  timestamp: number;
  gpsLatitude: number;
  gpsLongitude: number;
  speed: number;
  rpm: number;
  coolantTemperature: number;
  heading?: number;
  gear?: number;
  /** Percent of a tank, and kilopascals. */
  fuel?: number;
  oilPressure?: number;
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
    (Number.isInteger(r.carId) || (typeof r.carId === 'string' && carIdOf(r.carId) === r.carId)) &&
    Number.isFinite(r.timestamp) &&
    Number.isFinite(r.gpsLatitude) &&
    Number.isFinite(r.gpsLongitude) &&
    Math.abs(r.gpsLatitude as number) <= 85 &&
    Math.abs(r.gpsLongitude as number) <= 180
  );
}
