/**
 * Position of a car between two fixes: dead reckoning from the last fix, without a jump when the next fix arrives.
 *
 *   fix ──► ahead at its speed and heading for at most AHEAD_MS ──► stands still
 *     └──► the difference between the shown and the new position fades with FADE_MS
 *
 * Pure: time is an argument (ms, any monotonic clock).
 */
export interface Motion {
  readonly lat: number;
  readonly lon: number;
  /** Speed, m/s. */
  readonly speed: number;
  /** Degrees clockwise from north; undefined until the car has moved. */
  readonly heading: number | undefined;
  readonly at: number;
  readonly behind: { readonly lat: number; readonly lon: number; readonly heading: number };
}
export interface Place {
  lat: number;
  lon: number;
  heading: number | undefined;
}

/** Longer than the report interval of a typical car, shorter than the time to turn a corner. */
export const AHEAD_MS = 2_500;
const FADE_MS = 350;
/** A correction above this distance is a new position and is shown at once. */
const JUMP_M = 250;
/** Minimum distance between fixes for a heading. Below it, receiver noise dominates. */
const HEADING_FROM_M = 3;
const METRES_PER_DEGREE = 111_320;
const NONE = { lat: 0, lon: 0, heading: 0 } as const;

const cosLat = (lat: number) => Math.cos((lat * Math.PI) / 180);
/** Returns the smallest turn from one heading to another, -180..180. */
const turn = (from: number, to: number) => ((((to - from) % 360) + 540) % 360) - 180;

export function metresBetween(a: { lat: number; lon: number }, b: { lat: number; lon: number }): number {
  return Math.hypot(a.lat - b.lat, (a.lon - b.lon) * cosLat(a.lat)) * METRES_PER_DEGREE;
}

export function nextMotion(
  previous: Motion | undefined,
  fix: { lat: number; lon: number; speed: number; heading?: number | undefined },
  at: number,
): Motion {
  const speed = Number.isFinite(fix.speed) ? Math.max(0, fix.speed) : 0;
  const heading = fix.heading ?? (previous && travelled(previous, fix)) ?? previous?.heading;
  const next = { lat: fix.lat, lon: fix.lon, speed, heading, at };
  if (!previous) return { ...next, behind: NONE };
  const shown = placeAt(previous, at);
  if (metresBetween(shown, fix) > JUMP_M) return { ...next, behind: NONE };
  return {
    ...next,
    behind: {
      lat: shown.lat - fix.lat,
      lon: shown.lon - fix.lon,
      heading: heading === undefined || shown.heading === undefined ? 0 : turn(heading, shown.heading),
    },
  };
}

export function placeAt(m: Motion, now: number): Place {
  const elapsed = Math.max(0, now - m.at);
  const metres = (m.speed * Math.min(elapsed, AHEAD_MS)) / 1000;
  const fade = Math.exp(-elapsed / FADE_MS);
  const radians = ((m.heading ?? 0) * Math.PI) / 180;
  const ahead = m.heading === undefined ? 0 : metres / METRES_PER_DEGREE;
  return {
    lat: m.lat + ahead * Math.cos(radians) + m.behind.lat * fade,
    lon: m.lon + (ahead * Math.sin(radians)) / cosLat(m.lat) + m.behind.lon * fade,
    heading: m.heading === undefined ? undefined : (m.heading + m.behind.heading * fade + 360) % 360,
  };
}

function travelled(from: Motion, to: { lat: number; lon: number }): number | undefined {
  if (metresBetween(from, to) < HEADING_FROM_M) return undefined;
  const east = (to.lon - from.lon) * cosLat(from.lat);
  return ((Math.atan2(east, to.lat - from.lat) * 180) / Math.PI + 360) % 360;
}
