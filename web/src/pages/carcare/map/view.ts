/**
 * Projects degrees to CSS pixels of the current map. Without pitch the projection is affine, so three projected points
 * define it.
 */
import type { Map } from 'maplibre-gl';

export type Project = (lon: number, lat: number) => [x: number, y: number];

const mercatorX = (lon: number) => (lon + 180) / 360;
const mercatorY = (lat: number) => 0.5 - Math.log(Math.tan(Math.PI / 4 + (lat * Math.PI) / 360)) / (2 * Math.PI);

export function projection(map: Map): Project {
  const centre = map.getCenter();
  const step = 0.01;
  const origin = map.project(centre);
  const east = map.project([centre.lng + step, centre.lat]);
  const north = map.project([centre.lng, centre.lat + step]);
  const x0 = mercatorX(centre.lng);
  const y0 = mercatorY(centre.lat);
  const dx = mercatorX(centre.lng + step) - x0;
  const dy = mercatorY(centre.lat + step) - y0;
  const [ax, ay] = [(east.x - origin.x) / dx, (east.y - origin.y) / dx];
  const [bx, by] = [(north.x - origin.x) / dy, (north.y - origin.y) / dy];
  return (lon, lat) => {
    const u = mercatorX(lon) - x0;
    const v = mercatorY(lat) - y0;
    return [origin.x + u * ax + v * bx, origin.y + u * ay + v * by];
  };
}

/** Creates a canvas over the map that follows the size of its parent and the resolution of the screen. */
export function layer(parent: HTMLElement): { context: CanvasRenderingContext2D; clear(): { width: number; height: number } } {
  const canvas = document.createElement('canvas');
  canvas.style.cssText = 'position:absolute;inset:0;inline-size:100%;block-size:100%;pointer-events:none';
  canvas.setAttribute('aria-hidden', 'true');
  parent.append(canvas);
  const context = canvas.getContext('2d');
  if (!context) throw new Error('this browser draws no 2D canvas');
  const clear = () => {
    const ratio = Math.min(devicePixelRatio, 3);
    const width = parent.clientWidth;
    const height = parent.clientHeight;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
    }
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    return { width, height };
  };
  return { context, clear };
}
