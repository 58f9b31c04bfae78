/**
 * The map: MapLibre draws the ground, and two canvases above it draw names and cars. Loaded only where a map is shown.
 */
import { Map, setWorkerUrl, type GeoJSONSource, type PaddingOptions } from 'maplibre-gl';
// A bundled worker needs its own URL. Without it, the map stays empty.
import workerUrl from 'maplibre-gl/dist/maplibre-gl-worker.mjs?worker&url';
import worldUrl from 'world-atlas/countries-110m.json?url';
import type { FeatureCollection } from 'geojson';
import type { Topology } from 'topojson-specification';
import type { Car } from '../fleet';
import type { CarId } from '../telemetry';
import { placeAt } from '../motion';
import { drawCars, type Scene, type View } from './cars';
import { drawGeofences } from './geofences';
import { drawLabels, labelsOf } from './labels';
import { palette, scheme } from './palette';
import { mapStyle, paints, WORLD_ZOOM } from './style';
import { layer, projection } from './view';
import './map.css';

setWorkerUrl(workerUrl);

export interface MapEvents {
  /** Reports a tap on a car. */
  select(id: CarId): void;
  /** Reports that the reader has moved the map. */
  moved(): void;
}

/** Radius of a tap, in CSS pixels. */
const TAP_RADIUS = 26;
const STREET_ZOOM = 16;

export class FleetMap {
  readonly #map: Map;
  readonly #names: ReturnType<typeof layer>;
  readonly #cars: ReturnType<typeof layer>;
  readonly #labels: ReturnType<typeof labelsOf>;
  readonly #fontFamily = getComputedStyle(document.body).fontFamily;
  readonly #onScheme = () => this.#recolour();
  #padding: PaddingOptions = { top: 0, bottom: 0, left: 0, right: 0 };
  #namesStale = true;
  #worldAsked = false;
  #scene: Scene | undefined;

  constructor(container: HTMLElement, town: FeatureCollection, events: MapEvents) {
    const ground = document.createElement('div');
    ground.style.cssText = 'position:absolute;inset:0';
    container.append(ground);
    this.#map = new Map({
      container: ground,
      style: mapStyle(town, palette()),
      bounds: boundsOf(town),
      attributionControl: false,
      maxPitch: 0,
      minZoom: 1,
      maxZoom: 19,
      renderWorldCopies: false,
      fadeDuration: 0,
    });
    this.#map.getCanvas().setAttribute('aria-label', 'Map of the fleet. Arrow keys move it, plus and minus zoom.');
    this.#names = layer(container);
    this.#cars = layer(container);
    this.#labels = labelsOf(town);
    this.#map.on('move', () => {
      this.#namesStale = true;
      if (this.#map.getZoom() < WORLD_ZOOM) void this.#loadWorld();
    });
    this.#map.on('resize', () => (this.#namesStale = true));
    this.#map.on('click', ({ point }) => {
      const id = this.#carAt(point.x, point.y);
      if (id !== undefined) events.select(id);
    });
    this.#map.on('mousemove', ({ point }) => {
      this.#map.getCanvas().style.cursor = this.#carAt(point.x, point.y) === undefined ? '' : 'pointer';
    });
    this.#map.on('dragstart', () => events.moved());
    scheme.addEventListener('change', this.#onScheme);
  }

  /** Settles when the ground is drawn. */
  async loaded(): Promise<void> {
    if (!this.#map.loaded()) await this.#map.once('idle');
  }

  draw(scene: Scene): void {
    this.#scene = scene;
    const view: View = {
      project: projection(this.#map),
      zoom: this.#map.getZoom(),
      bearing: this.#map.getBearing(),
      fontFamily: this.#fontFamily,
      ...this.#cars.clear(),
    };
    if (this.#namesStale) {
      this.#namesStale = false;
      this.#names.clear();
      drawLabels(this.#names.context, this.#labels, view, palette());
    }
    drawGeofences(this.#cars.context, view, palette(), scene.geofences);
    drawCars(this.#cars.context, view, palette(), scene);
  }

  /** Sets the covered edges of the map, in CSS pixels. The map is centered in the remaining area. */
  cover(padding: PaddingOptions): void {
    this.#padding = padding;
  }

  /** Zooms to show all these places. */
  fit(places: Iterable<{ readonly lat: number; readonly lon: number }>, animate: boolean): void {
    const box = [180, 90, -180, -90] as [number, number, number, number];
    for (const { lat, lon } of places) {
      box[0] = Math.min(box[0], lon);
      box[1] = Math.min(box[1], lat);
      box[2] = Math.max(box[2], lon);
      box[3] = Math.max(box[3], lat);
    }
    if (box[0] > box[2]) return;
    this.#map.fitBounds(
      box,
      { padding: this.#around(48), maxZoom: STREET_ZOOM, duration: animate ? 700 : 0 },
    );
  }

  /** Centers the car when it leaves the middle third of the map. Otherwise the map does not move. */
  follow(car: Car, now: number, force = false): void {
    if (this.#map.isMoving() && !force) return;
    const place = placeAt(car.motion, now);
    const { x, y } = this.#map.project([place.lon, place.lat]);
    const { width, height } = this.#map.getContainer().getBoundingClientRect();
    const { top, bottom, left, right } = this.#padding as Required<PaddingOptions>;
    const [w, h] = [width - left - right, height - top - bottom];
    const [dx, dy] = [x - left - w / 2, y - top - h / 2];
    if (!force && Math.abs(dx) < w / 5 && Math.abs(dy) < h / 5) return;
    this.#map.easeTo({
      center: [place.lon, place.lat],
      offset: [(left - right) / 2, (top - bottom) / 2],
      zoom: force ? Math.max(this.#map.getZoom(), STREET_ZOOM - 0.5) : this.#map.getZoom(),
      duration: 900,
    });
  }

  /** Returns the place in the middle of the area that nothing covers. */
  middle(): { lat: number; lon: number } {
    const { width, height } = this.#map.getContainer().getBoundingClientRect();
    const { top, bottom, left, right } = this.#padding as Required<PaddingOptions>;
    const { lat, lng } = this.#map.unproject([(width + left - right) / 2, (height + top - bottom) / 2]);
    return { lat: Math.round(lat * 1e6) / 1e6, lon: Math.round(lng * 1e6) / 1e6 };
  }

  zoom(by: 1 | -1): void {
    this.#map.easeTo({ zoom: this.#map.getZoom() + by, duration: 250 });
  }

  destroy(): void {
    scheme.removeEventListener('change', this.#onScheme);
    this.#map.remove();
  }

  #around(extra: number): PaddingOptions {
    const { top, bottom, left, right } = this.#padding as Required<PaddingOptions>;
    return { top: top + extra, bottom: bottom + extra, left: left + extra, right: right + extra };
  }

  #carAt(x: number, y: number): CarId | undefined {
    const scene = this.#scene;
    if (!scene) return undefined;
    const project = projection(this.#map);
    let best: CarId | undefined;
    let distance = TAP_RADIUS;
    for (const car of scene.cars.values()) {
      const place = placeAt(car.motion, scene.now);
      const [cx, cy] = project(place.lon, place.lat);
      if (Math.hypot(cx - x, cy - y) >= distance) continue;
      distance = Math.hypot(cx - x, cy - y);
      best = car.id;
    }
    return best;
  }

  #recolour(): void {
    for (const [id, property, value] of paints(palette()))
      this.#map.setPaintProperty(id, property as Parameters<Map['setPaintProperty']>[1], value as never);
    this.#namesStale = true;
  }

  /** Loads the countries. They are needed only at a low zoom, so they are fetched on demand. */
  async #loadWorld(): Promise<void> {
    if (this.#worldAsked) return;
    this.#worldAsked = true;
    const [{ feature }, response] = await Promise.all([import('topojson-client'), fetch(worldUrl)]);
    const world = (await response.json()) as Topology;
    const countries = world.objects.countries;
    if (countries) this.#map.getSource<GeoJSONSource>('world')?.setData(feature(world, countries) as FeatureCollection);
  }
}

function boundsOf(town: FeatureCollection): [number, number, number, number] {
  const box: [number, number, number, number] = [180, 90, -180, -90];
  const visit = (value: unknown): void => {
    if (!Array.isArray(value)) return;
    const [lon, lat] = value as unknown[];
    if (typeof lon !== 'number' || typeof lat !== 'number') return value.forEach(visit);
    box[0] = Math.min(box[0], lon);
    box[1] = Math.min(box[1], lat);
    box[2] = Math.max(box[2], lon);
    box[3] = Math.max(box[3], lat);
  };
  for (const { geometry } of town.features) if ('coordinates' in geometry) visit(geometry.coordinates);
  return box[0] < box[2] ? box : [-12, 35, 32, 60];
}
