/** Messages of a kit: `crates/simulate/src/earl/kit.rs`. */

/** Red, green and blue, each 0 to 15. */
export type Levels = readonly [number, number, number];
export const LAMPS = ['a', 'b'] as const;
export type Lamp = (typeof LAMPS)[number];

export interface Blink {
  readonly a: boolean;
  readonly b: boolean;
  readonly fade_in_ms: number;
  readonly on_ms: number;
  readonly fade_out_ms: number;
  readonly off_ms: number;
}

export interface KitState {
  readonly commanded: { readonly id: string | null; readonly a: Levels; readonly b: Levels; readonly blink: Blink | null };
  /** Levels and times that the LED driver could give; null until the module has confirmed the command. */
  readonly given: { readonly a: Levels; readonly b: Levels; readonly blink: Blink | null; readonly note: string | null } | null;
  /** Light of the lamps now, `#rrggbb`. */
  readonly lit: { readonly a: string; readonly b: string };
  readonly error: string | null;
  readonly superseded: number;
  readonly restarts: number;
}

export interface Light {
  /** 0 to 1. */
  readonly light: number;
  readonly raw: number;
  readonly sensor: 'working' | 'dark' | 'saturated';
}

export const LEVEL_MAX = 15;
/** Blink of the page: all times are among those of the driver. */
export const BLINK = { fade_in_ms: 256, on_ms: 512, fade_out_ms: 256, off_ms: 512 } as const;

/** Name of the kit in the address, such as `?kit=earl/2`. */
export const kitOf = (search: string): string => new URLSearchParams(search).get('kit') || 'earl/1';

/** Returns a color of a page for levels of the driver. */
export const colorOf = (levels: Levels): string => `#${levels.map((level) => (level * 17).toString(16).padStart(2, '0')).join('')}`;

/** Returns the nearest levels of a color. A shade above 0 is never dark. */
export function levelsOf(color: string): Levels {
  const level = (at: number): number => {
    const shade = Number.parseInt(color.slice(at, at + 2), 16);
    return shade === 0 ? 0 : Math.max(1, Math.floor((shade + 8) / 17));
  };
  return [level(1), level(3), level(5)];
}

/** Returns the levels in words, such as `red 15, green 8, blue 0`. */
export const describe = ([red, green, blue]: Levels): string => `red ${red}, green ${green}, blue ${blue}`;

/** Returns true if nothing is lit. */
export const isDark = (color: string): boolean => color === '#000000';
