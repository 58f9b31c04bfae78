/**
 * Content that the map shows during a replay in place of live data. The replay sets it, and the page's animation loop
 * reads it.
 */
import type { Car } from '../fleet';
import type { Palette } from '../map/palette';
import type { View } from '../map/cars';

export interface Played {
  readonly car: Car;
  /** Draws below the car. */
  readonly under: (c: CanvasRenderingContext2D, view: View, palette: Palette) => void;
}

export interface Stage {
  played: Played | undefined;
  /** All places of the drive, to fit the map. */
  places: readonly { readonly lat: number; readonly lon: number }[];
  fit(): void;
}
