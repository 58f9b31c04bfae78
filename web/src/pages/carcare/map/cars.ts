/**
 * Draws the cars: a disc with the number and an arrowhead in front. The status is shown by shape as well as color: live
 * = filled, late = dashed edge, off = struck through and without arrowhead.
 */
import type { Palette } from './palette';
import type { Project } from './view';
import type { Geofence } from '../driving';
import { statusOf, type Car, type Status } from '../fleet';
import type { History } from '../history';
import type { CarId } from '../telemetry';
import { placeAt } from '../motion';

export interface Scene {
  readonly cars: ReadonlyMap<CarId, Car>;
  readonly selected: CarId | undefined;
  readonly connected: boolean;
  readonly history: History;
  /** Milliseconds since 1970. */
  readonly time: number;
  /** Monotonic clock of the motions, ms. */
  readonly now: number;
  /** True for reduced motion: cars stay at their last known position. */
  readonly still: boolean;
  readonly geofences: Iterable<Geofence>;
  /** Draws below the cars, in place of the trail. */
  readonly under?: (c: CanvasRenderingContext2D, view: View, palette: Palette) => void;
}

export interface View {
  readonly project: Project;
  readonly zoom: number;
  readonly bearing: number;
  readonly width: number;
  readonly height: number;
  readonly fontFamily: string;
}

/** Zoom from which a car is a numbered disc. Below that, it is a small arrow. */
const NUMBERS_FROM_ZOOM = 12.5;
const RADIUS = { numbered: 12, small: 6, tiny: 3.5, selected: 16 };
/** Number of cars above which cars are drawn smaller, so that they do not hide the map. */
const CROWD = 60;

export function drawCars(c: CanvasRenderingContext2D, view: View, p: Palette, scene: Scene): void {
  if (scene.under) scene.under(c, view, p);
  else drawTrail(c, view.project, p, scene);
  for (const car of scene.cars.values()) if (car.id !== scene.selected) drawCar(c, view, p, scene, car);
  const selected = scene.selected === undefined ? undefined : scene.cars.get(scene.selected);
  if (selected) drawCar(c, view, p, scene, selected);
}

/** Draws the path of the last two minutes, fading with age. */
function drawTrail(c: CanvasRenderingContext2D, project: Project, p: Palette, scene: Scene): void {
  const points: [x: number, y: number, age: number][] = [];
  let last: [number, number] = [NaN, NaN];
  scene.history.each(scene.time, (at, _speed, lat, lon) => {
    const [x, y] = project(lon, lat);
    if (Math.hypot(x - last[0], y - last[1]) < 3) return;
    last = [x, y];
    points.push([x, y, scene.time - at]);
  });
  c.lineWidth = 4;
  c.lineCap = 'butt';
  c.strokeStyle = p.accent;
  for (let i = 1; i < points.length; i++) {
    const [x0, y0] = points[i - 1]!;
    const [x1, y1, age] = points[i]!;
    c.globalAlpha = 0.5 * Math.max(0, 1 - age / 120_000);
    c.beginPath();
    c.moveTo(x0, y0);
    c.lineTo(x1, y1);
    c.stroke();
  }
  c.globalAlpha = 1;
}

function drawCar(c: CanvasRenderingContext2D, view: View, p: Palette, scene: Scene, car: Car): void {
  const place = scene.still ? car.motion : placeAt(car.motion, scene.now);
  const [x, y] = view.project(place.lon, place.lat);
  if (x < -40 || y < -40 || x > view.width + 40 || y > view.height + 40) return;
  const chosen = car.id === scene.selected;
  const numbered = chosen || view.zoom >= NUMBERS_FROM_ZOOM;
  const radius = chosen ? RADIUS.selected : numbered ? RADIUS.numbered : scene.cars.size > CROWD ? RADIUS.tiny : RADIUS.small;
  const status = statusOf(scene.time - car.fixAt, scene.connected);
  const heading = place.heading === undefined ? undefined : ((place.heading - view.bearing) * Math.PI) / 180;

  c.save();
  c.translate(x, y);
  if (chosen) {
    c.fillStyle = p.accentSoft;
    c.beginPath();
    c.arc(0, 0, radius + 13, 0, 2 * Math.PI);
    c.fill();
  }
  c.beginPath();
  if (status !== 'off' && heading !== undefined) arrowhead(c, numbered ? radius + 2.5 : radius * 0.75, numbered ? 8 : radius * 1.25, heading);
  c.moveTo(radius, 0);
  c.arc(0, 0, radius, 0, 2 * Math.PI);
  c.lineWidth = radius > RADIUS.tiny ? 4 : 2.5;
  c.lineJoin = 'round';
  c.strokeStyle = p.carEdge;
  c.stroke();
  c.fillStyle = status === 'live' ? (chosen ? p.accent : p.car) : p.land;
  c.fill();
  mark(c, radius, status, chosen ? p.accent : p.quiet);
  if (numbered) {
    c.font = `600 ${chosen ? 14 : 12}px ${view.fontFamily}`;
    c.textAlign = 'center';
    c.textBaseline = 'middle';
    c.fillStyle = status === 'live' ? (chosen ? p.onAccent : p.carInk) : p.label;
    c.fillText(String(car.id), 0, 0.5, radius * 1.7);
  }
  c.restore();
}

/**
 * Draws an arrowhead. `from` is the distance of its base from the center; `length` from base to tip; `heading` in
 * radians clockwise from the top of the screen.
 */
function arrowhead(c: CanvasRenderingContext2D, from: number, length: number, heading: number): void {
  const ahead = heading - Math.PI / 2;
  const spread = 0.55;
  c.moveTo(Math.cos(ahead - spread) * from, Math.sin(ahead - spread) * from);
  c.lineTo(Math.cos(ahead) * (from + length), Math.sin(ahead) * (from + length));
  c.lineTo(Math.cos(ahead + spread) * from, Math.sin(ahead + spread) * from);
  c.arc(0, 0, from, ahead + spread, ahead - spread, true);
  c.closePath();
}

function mark(c: CanvasRenderingContext2D, radius: number, status: Status, colour: string): void {
  if (status === 'live') return;
  c.beginPath();
  c.arc(0, 0, radius, 0, 2 * Math.PI);
  c.lineWidth = 2;
  c.strokeStyle = colour;
  c.setLineDash(status === 'late' ? [4, 3] : []);
  c.stroke();
  c.setLineDash([]);
  if (status !== 'off') return;
  c.beginPath();
  c.moveTo(-radius * 0.7, radius * 0.7);
  c.lineTo(radius * 0.7, -radius * 0.7);
  c.globalAlpha = 0.5;
  c.stroke();
  c.globalAlpha = 1;
}
