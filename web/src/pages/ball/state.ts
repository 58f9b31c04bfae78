/** Colors of the lamps and texts of the page. Uses no DOM. */
import type { Lamp, Levels } from '@millrace/client/kit';

export const LAMPS = ['a', 'b'] as const satisfies readonly Lamp[];
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

/** Colors of a rest area by the number of people in it: dark, then from blue to red. The last one is for all above. */
const AREA: readonly Levels[] = [[0, 0, 0], [0, 0, 15], [0, 8, 15], [0, 15, 15], [0, 15, 8], [0, 15, 0], [8, 15, 0], [15, 15, 0], [15, 8, 0], [15, 4, 0], [15, 0, 0]];

/** Returns the color that shows this number of people. */
export const areaColor = (people: number): Levels => AREA[Math.min(people, AREA.length - 1)]!;
