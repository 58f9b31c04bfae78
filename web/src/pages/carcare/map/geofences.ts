/** Draws the geofences below the cars: a circle or a polygon with its name. */
import type { Geofence, Place } from '../driving';
import type { View } from './cars';
import type { Palette } from './palette';

const METERS_PER_DEGREE = 111_195;
const CORNERS = 64;
/** Below this size in CSS pixels, a name would be larger than its area. */
const NAMED_FROM_PX = 36;

/** Returns the corners of the area of a geofence. */
export function cornersOf({ area: { circle, polygon } }: Geofence): readonly Place[] {
  if (!circle) return polygon ?? [];
  const { center, radiusM } = circle;
  const degrees = radiusM / METERS_PER_DEGREE;
  return Array.from({ length: CORNERS }, (_, i) => {
    const angle = (2 * Math.PI * i) / CORNERS;
    return {
      lat: center.lat + degrees * Math.sin(angle),
      lon: center.lon + (degrees * Math.cos(angle)) / Math.cos((center.lat * Math.PI) / 180),
    };
  });
}

export function drawGeofences(c: CanvasRenderingContext2D, view: View, p: Palette, geofences: Iterable<Geofence>): void {
  c.save();
  c.font = `600 13px ${view.fontFamily}`;
  c.textAlign = 'center';
  for (const geofence of geofences) {
    const corners = cornersOf(geofence).map(({ lat, lon }) => view.project(lon, lat));
    if (corners.length < 3) continue;
    c.beginPath();
    corners.forEach(([x, y], i) => (i === 0 ? c.moveTo(x, y) : c.lineTo(x, y)));
    c.closePath();
    c.fillStyle = p.accentSoft;
    c.fill();
    c.strokeStyle = p.accent;
    c.lineWidth = 2;
    c.setLineDash([8, 5]);
    c.stroke();
    c.setLineDash([]);
    const xs = corners.map(([x]) => x);
    const top = Math.min(...corners.map(([, y]) => y));
    const [left, right] = [Math.min(...xs), Math.max(...xs)];
    if (right - left < NAMED_FROM_PX) continue;
    c.lineWidth = 4;
    c.strokeStyle = p.halo;
    c.strokeText(geofence.name, (left + right) / 2, top - 6);
    c.fillStyle = p.accent;
    c.fillText(geofence.name, (left + right) / 2, top - 6);
  }
  c.restore();
}
