/**
 * Data of the fleet, in plain objects outside Svelte's reactivity: records arrive at any rate, and the page reads them
 * a few times a second.
 */
import { nextMotion, type Motion } from './motion';
import { byId, type CarId, type Telemetry } from './telemetry';

export type Status = 'live' | 'late' | 'off';

export interface CarEvent {
  readonly event: string;
  readonly code?: string;
  /** Milliseconds since 1970, by the clock of this page. */
  readonly at: number;
}
export interface Car {
  readonly id: CarId;
  last: Telemetry;
  /** Time of the last record, ms since 1970 by the clock of this page. */
  fixAt: number;
  motion: Motion;
  /** Newest first, at most EVENTS_MAX. */
  events: readonly CarEvent[];
}
/** Metadata of a received record. */
export interface Arrival {
  readonly publishedAt: number;
  readonly receivedAt: number;
  readonly replayed: boolean;
}

/** Two missed records of a car that reports every 5 s. */
export const LATE_AFTER_MS = 10_000;
export const OFF_AFTER_MS = 60_000;
const EVENTS_MAX = 4;

/** Returns the status of a car. Without a connection (`connected`), no car is live. */
export function statusOf(ageMs: number, connected: boolean): Status {
  return ageMs < LATE_AFTER_MS && connected ? 'live' : ageMs < OFF_AFTER_MS ? 'late' : 'off';
}

export class Fleet {
  readonly cars = new Map<CarId, Car>();
  /**
   * Server clock to page clock, ms: the smallest difference seen on a live record, so that one fast record removes the
   * effect of delays.
   */
  #skew: number | undefined;

  /**
   * Applies a record unless a newer one of that car is known. The two subscriptions overlap. `now` is the monotonic
   * clock of the map.
   */
  accept(record: Telemetry, arrival: Arrival, now: number): Car | undefined {
    const known = this.cars.get(record.carId);
    if (known && known.last.timestamp >= record.timestamp) return undefined;
    const at = this.pageTime(arrival);
    const fix = { lat: record.gpsLatitude, lon: record.gpsLongitude, speed: record.speed, heading: record.heading };
    const motion = nextMotion(known?.motion, fix, now);
    const before = known?.events ?? [];
    const events = record.event
      ? [{ event: record.event, ...(record.code && { code: record.code }), at }, ...before].slice(0, EVENTS_MAX)
      : before;
    const car = Object.assign(known ?? {}, { id: record.carId, last: record, fixAt: at, motion, events });
    this.cars.set(car.id, car);
    return car;
  }

  /** Removes a car that has left the fleet: it has not reported for a day. */
  remove(id: CarId): void {
    this.cars.delete(id);
  }

  /** Returns the time of a publication by the clock of this page. A phone's clock may be off by minutes. */
  pageTime({ publishedAt, receivedAt, replayed }: Arrival): number {
    const difference = receivedAt - publishedAt;
    if (!replayed && (this.#skew === undefined || difference < this.#skew)) this.#skew = difference;
    return Math.min(receivedAt, publishedAt + (this.#skew ?? 0));
  }

  /** Converts a time of the page to the server's clock, as far as live records allow. */
  serverTime(pageTime: number): Date {
    return new Date(pageTime - (this.#skew ?? 0));
  }

  sorted(): Car[] {
    return [...this.cars.values()].sort((a, b) => byId(a.id, b.id));
  }
}
