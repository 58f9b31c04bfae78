/**
 * A drive from history: the records of a range, and the position of the car at any time between them. Pure: time is an
 * argument.
 */
import { metresBetween } from '../motion';
import type { Telemetry } from '../telemetry';

export interface Fix {
  readonly record: Telemetry;
  /** `epoch:offset`. */
  readonly position: string;
  /** Milliseconds since 1970 by the car's clock, never decreasing: the time axis of the replay. */
  readonly at: number;
  /** Degrees clockwise from north; undefined until the car has moved. */
  readonly heading: number | undefined;
  /** Whether nothing is known about the time between the previous fix and this one. */
  readonly afterBreak: boolean;
}

/** Position to draw, and the last fix before it. */
export interface Moment {
  readonly fix: Fix;
  readonly lat: number;
  readonly lon: number;
  readonly heading: number | undefined;
  /** Speed, m/s. */
  readonly speed: number;
}

/** A longer pause breaks the line: the car was off or out of range. */
export const BREAK_MS = 60_000;
/** Minimum distance for a heading. Below it, receiver noise dominates. */
const HEADING_FROM_M = 3;

export class Drive {
  readonly fixes: Fix[] = [];
  /** Distance, m. */
  metres = 0;
  #gap = false;

  get start(): number {
    return this.fixes[0]?.at ?? 0;
  }
  get end(): number {
    return this.fixes.at(-1)?.at ?? 0;
  }

  push(record: Telemetry, position: string): void {
    const before = this.fixes.at(-1);
    const at = Math.max(record.timestamp, before?.at ?? -Infinity);
    const afterBreak = this.#gap || (before !== undefined && at - before.at > BREAK_MS);
    const moved = before ? metresBetween(place(before), { lat: record.gpsLatitude, lon: record.gpsLongitude }) : 0;
    if (!afterBreak) this.metres += moved;
    const heading = record.heading ?? (before && moved >= HEADING_FROM_M ? bearing(before.record, record) : before?.heading);
    this.#gap = false;
    this.fixes.push({ record, position, at, heading, afterBreak });
  }

  /** Marks a break before the next fix. */
  breakOff(): void {
    this.#gap = this.fixes.length > 0;
  }

  /** Returns the index of the last fix at or before `at`; 0 before the first. */
  indexAt(at: number): number {
    let [low, high] = [0, this.fixes.length - 1];
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.fixes[middle]!.at <= at) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  /**
   * Returns the state at a time. Between two fixes the car moves straight at constant speed; during a break it stands.
   */
  momentAt(at: number): Moment | undefined {
    const i = this.indexAt(at);
    const [fix, next] = [this.fixes[i], this.fixes[i + 1]];
    if (!fix) return undefined;
    const { gpsLatitude: lat, gpsLongitude: lon, speed } = fix.record;
    if (!next || next.afterBreak || next.at === fix.at) return { fix, lat, lon, heading: fix.heading, speed };
    const share = Math.max(0, Math.min(1, (at - fix.at) / (next.at - fix.at)));
    const turn = fix.heading === undefined || next.heading === undefined ? 0 : ((((next.heading - fix.heading) % 360) + 540) % 360) - 180;
    return {
      fix,
      lat: lat + share * (next.record.gpsLatitude - lat),
      lon: lon + share * (next.record.gpsLongitude - lon),
      heading: fix.heading === undefined ? undefined : (fix.heading + share * turn + 360) % 360,
      speed: speed + share * (next.record.speed - speed),
    };
  }
}

const place = ({ record }: Fix) => ({ lat: record.gpsLatitude, lon: record.gpsLongitude });

function bearing(from: Telemetry, to: Telemetry): number {
  const east = (to.gpsLongitude - from.gpsLongitude) * Math.cos((to.gpsLatitude * Math.PI) / 180);
  return ((Math.atan2(east, to.gpsLatitude - from.gpsLatitude) * 180) / Math.PI + 360) % 360;
}
