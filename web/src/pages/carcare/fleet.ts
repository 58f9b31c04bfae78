/**
 * What is known of the fleet. Plain objects outside of Svelte's reactivity: records arrive at any rate, the page looks a few times a second.
 */
import { nextMotion, type Motion } from './motion';
import type { Telemetry } from './telemetry';

export type Status = 'live' | 'late' | 'off';

export interface CarEvent {
  readonly event: string;
  readonly code?: string;
  /** ms since 1970, by the clock of this page */
  readonly at: number;
}
export interface Car {
  readonly id: number;
  last: Telemetry;
  /** When the last record was new, ms since 1970 by the clock of this page. */
  fixAt: number;
  motion: Motion;
  /** The newest first, at most EVENTS_MAX. */
  events: readonly CarEvent[];
}
/** What a subscription says about the record beside its data. */
export interface Arrival {
  readonly publishedAt: number;
  readonly receivedAt: number;
  readonly replayed: boolean;
}

/** Two missed records of a car that reports every 5 s. */
export const LATE_AFTER_MS = 10_000;
export const OFF_AFTER_MS = 60_000;
const EVENTS_MAX = 4;

/** `connected`: without a connection nothing is known to be live. */
export function statusOf(ageMs: number, connected: boolean): Status {
  return ageMs < LATE_AFTER_MS && connected ? 'live' : ageMs < OFF_AFTER_MS ? 'late' : 'off';
}

export class Fleet {
  readonly cars = new Map<number, Car>();
  /** Server clock to page clock, ms: the smallest difference seen on a fresh record, so delay adds nothing once one came quickly. */
  #skew: number | undefined;

  /** Takes a record unless a newer one of that car is known (the two subscriptions overlap). `now`: monotonic clock of the map. */
  accept(record: Telemetry, arrival: Arrival, now: number): Car | undefined {
    const known = this.cars.get(record.carId);
    if (known && known.last.timestamp >= record.timestamp) return undefined;
    const at = this.pageTime(arrival);
    const fix = { lat: record.gpsLatitude, lon: record.gpsLongitude, speed: record.speed, heading: record.heading };
    const motion = nextMotion(known?.motion, fix, now);
    const heard = known?.events ?? [];
    const events = record.event
      ? [{ event: record.event, ...(record.code && { code: record.code }), at }, ...heard].slice(0, EVENTS_MAX)
      : heard;
    const car = Object.assign(known ?? {}, { id: record.carId, last: record, fixAt: at, motion, events });
    this.cars.set(car.id, car);
    return car;
  }

  /** When a publication was new, by the clock of this page: a phone's clock may be minutes off. */
  pageTime({ publishedAt, receivedAt, replayed }: Arrival): number {
    const difference = receivedAt - publishedAt;
    if (!replayed && (this.#skew === undefined || difference < this.#skew)) this.#skew = difference;
    return Math.min(receivedAt, publishedAt + (this.#skew ?? 0));
  }

  /** What the server's clock says at this moment of the page's; as far as one fresh record tells. */
  serverTime(pageTime: number): Date {
    return new Date(pageTime - (this.#skew ?? 0));
  }

  sorted(): Car[] {
    return [...this.cars.values()].sort((a, b) => a.id - b.id);
  }
}
