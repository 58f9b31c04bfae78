/** Finds the street of a position: the nearest named line of the town, for the instruments and for screen readers. */
import type { FeatureCollection } from 'geojson';

/** Maximum distance from a street, in meters. */
const NEAR_M = 40;
const METRES_PER_DEGREE = 111_320;
const ROADS = new Set(['street', 'avenue', 'roundabout', 'bridge']);

interface Segment {
  readonly name: string;
  readonly ax: number;
  readonly ay: number;
  readonly bx: number;
  readonly by: number;
}

export class Streets {
  readonly #segments: Segment[] = [];

  constructor(town: FeatureCollection) {
    for (const { geometry, properties } of town.features) {
      if (geometry.type !== 'LineString' || typeof properties?.name !== 'string' || !ROADS.has(properties.kind as string)) continue;
      const line = geometry.coordinates;
      for (let i = 1; i < line.length; i++) {
        const [ax, ay] = line[i - 1]!;
        const [bx, by] = line[i]!;
        this.#segments.push({ name: properties.name, ax: ax!, ay: ay!, bx: bx!, by: by! });
      }
    }
  }

  /** Returns the street at a position. Cost: one pass over all segments of the town. */
  at(lat: number, lon: number): string | undefined {
    const k = Math.cos((lat * Math.PI) / 180);
    let best = NEAR_M / METRES_PER_DEGREE;
    let name: string | undefined;
    for (const s of this.#segments) {
      const [ux, uy] = [(s.bx - s.ax) * k, s.by - s.ay];
      const [px, py] = [(lon - s.ax) * k, lat - s.ay];
      const length = ux * ux + uy * uy;
      const t = length === 0 ? 0 : Math.max(0, Math.min(1, (px * ux + py * uy) / length));
      const distance = Math.hypot(px - t * ux, py - t * uy);
      if (distance < best) {
        best = distance;
        name = s.name;
      }
    }
    return name;
  }
}
