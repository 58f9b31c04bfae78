/** Draws the drive below the car: the driven part in color, the rest pale. */
import type { View } from '../map/cars';
import type { Palette } from '../map/palette';
import type { Drive } from './drive';

/** Points closer than this are merged, CSS pixels. */
const NEAR_PX = 2;

export function drawRoute(c: CanvasRenderingContext2D, { project }: View, p: Palette, drive: Drive, at: number): void {
  const now = drive.indexAt(at);
  c.lineJoin = c.lineCap = 'round';
  const line = (from: number, to: number, end?: { lat: number; lon: number }) => {
    c.beginPath();
    let last: [number, number] = [NaN, NaN];
    for (let i = from; i <= to; i++) {
      const { record, afterBreak } = drive.fixes[i]!;
      const [x, y] = project(record.gpsLongitude, record.gpsLatitude);
      if (afterBreak || i === from) c.moveTo(x, y);
      else if (Math.hypot(x - last[0], y - last[1]) < NEAR_PX && i < to) continue;
      else c.lineTo(x, y);
      last = [x, y];
    }
    if (end) c.lineTo(...project(end.lon, end.lat));
    c.stroke();
  };
  if (drive.fixes.length === 0) return;
  c.strokeStyle = p.carEdge;
  c.lineWidth = 7;
  line(0, drive.fixes.length - 1);
  c.strokeStyle = p.quiet;
  c.lineWidth = 3;
  c.globalAlpha = 0.6;
  line(now, drive.fixes.length - 1);
  c.globalAlpha = 1;
  c.strokeStyle = p.accent;
  c.lineWidth = 4;
  line(0, now, drive.momentAt(at));
}
