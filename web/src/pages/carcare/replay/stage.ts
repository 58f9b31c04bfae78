/** What the map shows instead of the present: set by the replay, read by the page's one animation loop. */
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
  /** All of it on the map. */
  places: readonly { readonly lat: number; readonly lon: number }[];
  fit(): void;
}
