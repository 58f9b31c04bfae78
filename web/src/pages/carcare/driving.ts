/**
 * Driving feedback of the server: drives with a score, alerts and geofences of the fleet, and the events and drives of
 * the selected car. The channels are in docs/how-to/driving-feedback.md.
 */
import type { Client, Subscription } from '@millrace/client';
import { state, type KeyedState } from '@millrace/client/state';
import type { CarId } from './telemetry';

export interface Place {
  readonly lat: number;
  readonly lon: number;
}
export interface DrivingEvent {
  readonly type: string;
  readonly severity: 'info' | 'warn' | 'severe';
  /** Milliseconds since 1970, by the clock of the device. */
  readonly time: number;
  readonly carId: string;
  readonly value?: number;
  readonly code?: string;
  readonly meaning?: string;
  readonly geofence?: string;
  readonly advice?: string;
  readonly groups?: readonly string[];
}
export interface Drive {
  readonly carId: string;
  readonly start: number;
  readonly end: number;
  readonly isOpen: boolean;
  readonly distanceM: number;
  readonly score: number;
  readonly events: Readonly<Record<string, number>>;
  readonly per100Km: { readonly points: number; readonly score: number };
  readonly groups?: readonly string[];
}
export interface Geofence {
  readonly name: string;
  readonly area: { readonly circle?: { readonly center: Place; readonly radiusM: number }; readonly polygon?: readonly Place[] };
  readonly groups?: readonly string[];
}

/** Time for which the events of a car are read when it is selected. */
const EVENTS_SECONDS = 600;
const EVENTS_MAX = 20;

const isObject = (value: unknown): value is Record<string, unknown> => typeof value === 'object' && value !== null;
const isEvent = (value: unknown): value is DrivingEvent =>
  isObject(value) && typeof value.type === 'string' && Number.isFinite(value.time) && typeof value.carId === 'string';
const isDrive = (value: unknown): value is Drive =>
  isObject(value) &&
  typeof value.carId === 'string' &&
  [value.start, value.end, value.distanceM, value.score].every(Number.isFinite) &&
  isObject(value.events) &&
  isObject(value.per100Km);

export function isGeofence(value: unknown): value is Geofence {
  if (!isObject(value) || typeof value.name !== 'string' || !isObject(value.area)) return false;
  const { circle, polygon } = value.area;
  const isPlace = (place: unknown) => isObject(place) && Number.isFinite(place.lat) && Number.isFinite(place.lon);
  if (isObject(circle)) return isPlace(circle.center) && Number.isFinite(circle.radiusM);
  return Array.isArray(polygon) && polygon.every(isPlace);
}

export class Driving {
  /** Newest drive of each car. */
  readonly drives = new Map<string, Drive>();
  readonly alerts = new Map<string, DrivingEvent>();
  readonly geofences = new Map<string, Geofence>();
  /** Events of the selected car, newest first, with the time of their arrival by the clock of this page. */
  events: readonly (DrivingEvent & { readonly at: number })[] = [];
  /** Ended drives of the selected car, by their keys. */
  readonly past = new Map<string, Drive>();

  readonly #client: Client;
  readonly #fences: KeyedState<unknown>;
  #events: Subscription<unknown> | undefined;
  #past: KeyedState<unknown> | undefined;

  constructor(client: Client) {
    this.#client = client;
    const keep = <T>(channel: string, map: Map<string, T>, fits: (value: unknown) => value is T): KeyedState<unknown> => {
      const kept = state<unknown>(client, channel, { policy: 'latest' });
      kept.on(({ key, entry }) => {
        if (entry && fits(entry.value)) map.set(key, entry.value);
        else map.delete(key);
      });
      // A page without the permission shows no feedback; the banner names the reason.
      kept.ready.catch(() => undefined);
      return kept;
    };
    keep('carcare/drives', this.drives, isDrive);
    keep('carcare/alerts', this.alerts, isEvent);
    this.#fences = keep('carcare/geofences', this.geofences, isGeofence);
  }

  select(id: CarId | undefined): void {
    void this.#events?.close();
    void this.#past?.close();
    this.#events = this.#past = undefined;
    this.events = [];
    this.past.clear();
    if (id === undefined) return;
    const events = this.#client.subscribe(`cars/${id}/events`, { from: { seconds: EVENTS_SECONDS } });
    this.#events = events;
    events.on((event) => {
      if (this.#events !== events || !isEvent(event.data)) return;
      this.events = [{ ...event.data, at: event.replayed ? event.publishedAt : event.receivedAt }, ...this.events].slice(0, EVENTS_MAX);
    });
    const past = state<unknown>(this.#client, `carcare/drives/${id}`);
    this.#past = past;
    past.ready.catch(() => undefined);
    past.on(({ key, entry }) => {
      if (this.#past !== past) return;
      if (entry && isDrive(entry.value)) this.past.set(key, entry.value);
      else this.past.delete(key);
    });
  }

  /** Settles when the server has stored the geofence. */
  async addGeofence(name: string, center: Place, radiusM: number): Promise<void> {
    await this.#fences.set(name, { name, area: { circle: { center, radiusM } } });
  }

  async deleteGeofence(name: string): Promise<void> {
    await this.#fences.delete(name);
  }
}
