/**
 * The offline base map: countries at a low zoom, the town at a high zoom. It has no glyphs, sprites or tiles, so that
 * no request leaves the machine.
 */
import type { ExpressionSpecification, FilterSpecification, LayerSpecification, StyleSpecification } from 'maplibre-gl';
import type { FeatureCollection } from 'geojson';
import type { Palette } from './palette';

/** Zoom below which the world is shown, and above which the town is shown. */
export const WORLD_ZOOM = 9;

const kind = (...kinds: string[]): FilterSpecification => ['in', ['get', 'kind'], ['literal', kinds]];
const area: FilterSpecification = ['in', ['geometry-type'], ['literal', ['Polygon', 'MultiPolygon']]];
const line: FilterSpecification = ['in', ['geometry-type'], ['literal', ['LineString', 'MultiLineString']]];
const both = (...filters: FilterSpecification[]) => ['all', ...filters] as FilterSpecification;

/** Returns a line width that scales with the ground from zoom 14 on: `px` at zoom 16. */
const width = (px: number): ExpressionSpecification => [
  'interpolate', ['exponential', 1.75], ['zoom'], 11, Math.max(0.4, px * 0.08), 16, px, 19, px * 5,
];

const STREET = 7;
const AVENUE = 13;
const CASING = 2;

function layers(p: Palette): LayerSpecification[] {
  const road = (id: string, filter: FilterSpecification, colour: string, px: number): LayerSpecification => ({
    id,
    type: 'line',
    source: 'town',
    filter: both(line, filter),
    layout: { 'line-cap': 'round', 'line-join': 'round' },
    paint: { 'line-color': colour, 'line-width': width(px) },
  });
  const fill = (id: string, kinds: string, colour: string, edge: string): LayerSpecification => ({
    id,
    type: 'fill',
    source: 'town',
    filter: both(area, kind(kinds)),
    paint: { 'fill-color': colour, 'fill-outline-color': edge },
  });
  return [
    {
      id: 'ground',
      type: 'background',
      paint: { 'background-color': ['interpolate', ['linear'], ['zoom'], 5, p.sea, 6.5, p.land] },
    },
    { id: 'land', type: 'fill', source: 'world', maxzoom: WORLD_ZOOM, paint: { 'fill-color': p.land } },
    {
      id: 'borders',
      type: 'line',
      source: 'world',
      maxzoom: WORLD_ZOOM,
      paint: { 'line-color': p.border, 'line-width': 0.8 },
    },
    fill('park', 'park', p.park, p.park),
    fill('water', 'water', p.water, p.water),
    {
      id: 'river',
      type: 'line',
      source: 'town',
      filter: both(line, kind('water')),
      layout: { 'line-cap': 'round', 'line-join': 'round' },
      paint: { 'line-color': p.water, 'line-width': width(60) },
    },
    { ...fill('building', 'building', p.building, p.buildingEdge), minzoom: 13 } as LayerSpecification,
    road('street-edge', kind('street'), p.streetEdge, STREET + CASING),
    road('avenue-edge', kind('avenue', 'roundabout', 'bridge'), p.avenueEdge, AVENUE + CASING),
    road('street', kind('street'), p.street, STREET),
    road('avenue', kind('avenue', 'roundabout', 'bridge'), p.avenue, AVENUE),
  ];
}

export function mapStyle(town: FeatureCollection, p: Palette): StyleSpecification {
  return {
    version: 8,
    sources: {
      world: { type: 'geojson', data: { type: 'FeatureCollection', features: [] } },
      town: { type: 'geojson', data: town, maxzoom: 16, tolerance: 0.2 },
    },
    layers: layers(p),
  };
}

/** Returns every paint property of the style in another palette: `[layer, property, value]`. */
export function paints(p: Palette): [string, string, unknown][] {
  return layers(p).flatMap((layer) =>
    Object.entries(layer.paint ?? {}).map(([property, value]): [string, string, unknown] => [layer.id, property, value]),
  );
}
