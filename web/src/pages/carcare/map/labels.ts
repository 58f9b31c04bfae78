/**
 * Names of places and streets, drawn by the page, because the base map has no glyph server. They are drawn only when
 * the view changes.
 */
import type { FeatureCollection, Position } from 'geojson';
import type { Palette } from './palette';
import type { View } from './cars';

type Label =
  | { readonly kind: 'place' | 'park'; readonly name: string; readonly at: Position }
  | { readonly kind: 'road'; readonly name: string; readonly avenue: boolean; readonly line: readonly Position[] };

const PLACES_FROM_ZOOM = 12.5;
const PARKS_FROM_ZOOM = 14.5;
const AVENUES_FROM_ZOOM = 14;
const STREETS_FROM_ZOOM = 15.2;
/** Radius of the circles along a label that reserve its space, in CSS pixels. */
const BEAD = 9;

export function labelsOf(town: FeatureCollection): Label[] {
  const found: Label[] = [];
  for (const { geometry, properties } of town.features) {
    const name: unknown = properties?.name;
    const kind: unknown = properties?.kind;
    if (typeof name !== 'string') continue;
    if (kind === 'place' && geometry.type === 'Point') found.push({ kind, name, at: geometry.coordinates });
    else if (kind === 'park' && geometry.type === 'Polygon') found.push({ kind, name, at: middle(geometry.coordinates[0] ?? []) });
    else if ((kind === 'street' || kind === 'avenue') && geometry.type === 'LineString')
      found.push({ kind: 'road', name, avenue: kind === 'avenue', line: geometry.coordinates });
  }
  const rank = (l: Label) => (l.kind === 'place' ? 0 : l.kind === 'road' && l.avenue ? 1 : l.kind === 'park' ? 2 : 3);
  return found.sort((a, b) => rank(a) - rank(b));
}

export function drawLabels(
  c: CanvasRenderingContext2D,
  labels: readonly Label[],
  view: View,
  p: Palette,
): void {
  const { project, zoom, fontFamily: family } = view;
  const taken: [x: number, y: number][] = [];
  c.textAlign = 'center';
  c.textBaseline = 'middle';
  c.lineJoin = 'round';
  c.strokeStyle = p.halo;
  c.lineWidth = 3.5;
  const set = (name: string, x: number, y: number, angle: number, font: string, colour: string): void => {
    c.font = font;
    const half = c.measureText(name).width / 2 + 6;
    if (x < -half || y < -20 || x > view.width + half || y > view.height + 20) return;
    const beads: [number, number][] = [];
    for (let d = -half; d <= half; d += BEAD) beads.push([x + d * Math.cos(angle), y + d * Math.sin(angle)]);
    if (beads.some((b) => taken.some((t) => Math.hypot(t[0] - b[0], t[1] - b[1]) < 2 * BEAD))) return;
    taken.push(...beads);
    c.save();
    c.translate(x, y);
    c.rotate(angle);
    c.strokeText(name, 0, 0);
    c.fillStyle = colour;
    c.fillText(name, 0, 0);
    c.restore();
  };
  for (const label of labels) {
    if (label.kind === 'road') {
      if (zoom < (label.avenue ? AVENUES_FROM_ZOOM : STREETS_FROM_ZOOM)) continue;
      c.font = `500 11px ${family}`;
      const spot = straight(label.line.map(([lon, lat]) => project(lon!, lat!)), c.measureText(label.name).width + 16, view);
      if (spot) set(label.name, spot.x, spot.y, spot.angle, `500 11px ${family}`, p.label);
    } else if (zoom >= (label.kind === 'place' ? PLACES_FROM_ZOOM : PARKS_FROM_ZOOM)) {
      const [x, y] = project(label.at[0]!, label.at[1]!);
      set(label.name, x, y, 0, label.kind === 'place' ? `600 13px ${family}` : `italic 500 11px ${family}`, p.label);
    }
  }
}

/** Returns the most central straight part of a line on screen that is long enough for `length` pixels of text. */
function straight(points: [number, number][], length: number, size: { width: number; height: number }) {
  let best: { x: number; y: number; angle: number; off: number } | undefined;
  for (let i = 0; i + 1 < points.length; i++) {
    const [x0, y0] = points[i]!;
    let path = 0;
    for (let k = i + 1; k < points.length; k++) {
      const [x1, y1] = points[k]!;
      path += Math.hypot(x1 - points[k - 1]![0], y1 - points[k - 1]![1]);
      const chord = Math.hypot(x1 - x0, y1 - y0);
      if (path > chord * 1.02 + 1) break;
      if (chord < length) continue;
      const [x, y] = [(x0 + x1) / 2, (y0 + y1) / 2];
      const off = Math.hypot(x - size.width / 2, y - size.height / 2);
      let angle = Math.atan2(y1 - y0, x1 - x0);
      if (Math.abs(angle) > Math.PI / 2) angle -= Math.sign(angle) * Math.PI;
      if (x > 0 && y > 0 && x < size.width && y < size.height && (!best || off < best.off)) best = { x, y, angle, off };
      break;
    }
  }
  return best;
}

function middle(ring: Position[]): Position {
  const sum = ring.reduce((s, [lon, lat]) => [s[0]! + lon!, s[1]! + lat!], [0, 0]);
  return [sum[0]! / ring.length, sum[1]! / ring.length];
}
