// CarCare in Firefox: cars that move on the map, all transports, and the return of the server.
import { expect } from '@playwright/test';
import { TRANSPORTS } from '../../src/lib/transports.ts';
import type {} from '../../src/pages/carcare/window';
import { serve, simulate } from '../server.ts';
import { click, isVisible, needsUdp, reachable, test, type Page } from './fox.ts';

const received = (page: Page) => page.evaluate(() => window.carcare!.received.map(({ seq, offset, transport }) => ({ seq, offset: Number(offset), transport })));
const isDrawn = (page: Page) => page.waitForSelector('[data-loaded=true]', { timeout: 60_000 });

/** Waits until `count` more records have arrived over `transport`. */
async function heardOver(page: Page, transport: string, count = 5): Promise<void> {
  const over = async () => (await received(page)).filter((one) => one.transport === transport).length;
  const before = await over();
  await expect.poll(over, { timeout: 40_000, message: `records over ${transport}` }).toBeGreaterThanOrEqual(before + count);
}

/** Positions of the pixels in the color of cars (src/pages/carcare/map/palette.ts), on the canvas above the map. */
const carPixels = (page: Page): Promise<number[]> =>
  page.evaluate(() => {
    const canvas = [...document.querySelectorAll<HTMLCanvasElement>('.map > canvas')].at(-1)!;
    const { data } = canvas.getContext('2d')!.getImageData(0, 0, canvas.width, canvas.height);
    const found: number[] = [];
    for (let i = 0; i < data.length; i += 4) if (data[i] === 0x24 && data[i + 1] === 0x38 && data[i + 2] === 0x3a && data[i + 3] === 0xff) found.push(i / 4);
    return found;
  });

/** Colors of land, parks and buildings (src/pages/carcare/map/palette.ts). */
const MAP = ['#eef1ec', '#d6e6cd', '#e3e5df'];

/** Returns those of the colors above that a screenshot shows. The canvas of WebGL cannot be read after its frame. */
async function colorsOfMap(page: Page): Promise<string[]> {
  const shot = await page.screenshot({ encoding: 'base64' });
  return page.evaluate(
    async (shot, wanted) => {
      const image = await createImageBitmap(new Blob([Uint8Array.from(atob(shot), (c) => c.charCodeAt(0))]));
      const pen = new OffscreenCanvas(image.width, image.height).getContext('2d')!;
      pen.drawImage(image, 0, 0);
      const found = new Set(new Uint32Array(pen.getImageData(0, 0, image.width, image.height).data.buffer));
      const hex = (color: number): string => `#${[0, 8, 16].map((shift) => ((color >> shift) & 0xff).toString(16).padStart(2, '0')).join('')}`;
      const colors = new Set([...found].map(hex));
      return wanted.filter((color) => colors.has(color));
    },
    shot,
    MAP,
  );
}

test('cars move on the map', async ({ open }) => {
  const page = await open('/carcare');
  await isDrawn(page);
  expect(await colorsOfMap(page)).toEqual(expect.arrayContaining(MAP));
  await expect.poll(async () => (await carPixels(page)).length).toBeGreaterThan(100);
  const before = new Set(await carPixels(page));
  const moved = async () => (await carPixels(page)).filter((pixel) => !before.has(pixel)).length;
  await expect.poll(moved).toBeGreaterThan(100);
});

test('a page switches through all transports: no record is lost or repeated', async ({ open }) => {
  needsUdp();
  const page = await open('/carcare?car=1&via=websocket');
  await heardOver(page, 'websocket');
  for (const { name } of [...TRANSPORTS.slice(1), TRANSPORTS[0]]) {
    await click(page, '[popovertarget=transports]');
    await click(page, `#transports label:has([value=${name}])`);
    await page.keyboard.press('Escape');
    await heardOver(page, name);
  }
  const all = await received(page);
  const first = all[0]!;
  expect(all.map(({ seq }) => seq)).toEqual(all.map((_, i) => first.seq + i));
  expect(all.map(({ offset }) => offset)).toEqual(all.map((_, i) => first.offset + i));
});

test.describe(() => {
  // Firefox logs each refused connection as an error.
  test.use({ mayComplain: true });

  test('a page connects again after the server has come back', async ({ open }) => {
    let own = await serve(undefined, reachable());
    let fleet = simulate(own.url, 2);
    try {
      const page = await open(`${own.url}/carcare?car=1&via=websocket`);
      await heardOver(page, 'websocket');
      await own.kill();
      await expect.poll(() => isVisible(page, '.banner'), { message: 'banner after the kill' }).toBe(true);
      await fleet.stop();
      own = await serve(new URL(own.url).host, reachable());
      fleet = simulate(own.url, 2);
      await expect.poll(() => isVisible(page, '.banner'), { timeout: 60_000, message: 'banner after the restart' }).toBe(false);
      await heardOver(page, 'websocket');
    } finally {
      await fleet.stop();
      await own.stop();
    }
  });
});
