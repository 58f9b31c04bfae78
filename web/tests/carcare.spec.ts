import { readFileSync, statSync } from 'node:fs';
import { expect, type Page } from '@playwright/test';
import type {} from '../src/pages/carcare/window';
import { matches } from '../src/pages/carcare/search.ts';
import { openCar, test, url } from './page.ts';
import { serve, simulate } from './server.ts';

// The map is drawn once per second instead of at each frame: without a graphics card, drawing takes most of the
// processor time of a test. Tests of the map itself turn motion on.
test.use({ contextOptions: { reducedMotion: 'reduce' } });

const LABELS = { websocket: /WebSocket/, 'http-stream': /HTTP streaming/, sse: /Server-sent/, 'long-poll': /Long polling/, poll: /^Polling/, 'data-channel': /Data channel/ };
type Name = keyof typeof LABELS;
interface Received {
  readonly seq: number;
  readonly offset: number;
  readonly transport: string;
}

const received = (page: Page): Promise<Received[]> =>
  page.evaluate(() => window.carcare!.received.map(({ seq, offset, transport }) => ({ seq, offset: Number(offset), transport })));

async function switchTo(page: Page, name: Name): Promise<void> {
  await page.getByRole('button', { name: /^Transport/ }).click();
  await page.getByRole('radio', { name: LABELS[name] }).check();
  await page.keyboard.press('Escape');
}

/** Waits until `count` more records have arrived over transport `name`. */
async function receivedOver(page: Page, name: Name, count = 5): Promise<void> {
  const before = (await received(page)).filter((r) => r.transport === name).length;
  await expect.poll(async () => (await received(page)).filter((r) => r.transport === name).length, { timeout: 20_000 }).toBeGreaterThanOrEqual(before + count);
}

function expectNoGaps(all: Received[]): void {
  const first = all[0]!;
  expect(all.map((r) => r.seq)).toEqual(all.map((_, i) => first.seq + i));
  expect(all.map((r) => r.offset)).toEqual(all.map((_, i) => first.offset + i));
}

test('switching transports loses and duplicates no record', async ({ page, clean }) => {
  await openCar(page, '/carcare?car=1&via=websocket');
  await receivedOver(page, 'websocket');
  for (const name of ['http-stream', 'sse', 'long-poll', 'poll', 'websocket', 'data-channel', 'poll', 'sse', 'data-channel', 'websocket'] as const) {
    await switchTo(page, name);
    await receivedOver(page, name);
  }
  const all = await received(page);
  expectNoGaps(all);
  expect(new Set(all.map((r) => r.transport))).toEqual(new Set(Object.keys(LABELS)));
  await page.getByRole('button', { name: /^Transport/ }).click();
  await expect(page.locator('#transports dl div').filter({ hasText: 'Gaps' }).locator('dd')).toHaveText('0');
});

for (const name of Object.keys(LABELS) as Name[]) {
  test(`starts over ${name} if the address names it`, async ({ page, clean }) => {
    await openCar(page, `/carcare?car=2&via=${name}`);
    await receivedOver(page, name);
    expectNoGaps(await received(page));
  });
}

test('the transport menu works by keyboard', async ({ page, clean }) => {
  await openCar(page, '/carcare?car=1&via=websocket');
  const chip = page.getByRole('button', { name: /^Transport/ });
  for (let i = 0; i < 4 && !(await chip.evaluate((e) => e === document.activeElement)); i++) await page.keyboard.press('Tab');
  await expect(chip).toBeFocused();
  await page.keyboard.press('Enter');
  await expect(page.getByRole('radio', { name: /WebSocket/ })).toBeVisible();
  await page.keyboard.press('Tab');
  await expect(page.getByRole('radio', { name: /WebSocket/ })).toBeFocused();
  await page.keyboard.press('ArrowDown');
  await expect(page.getByRole('radio', { name: /HTTP streaming/ })).toBeChecked();
  await receivedOver(page, 'http-stream');
  await page.keyboard.press('Escape');
  await expect(chip).toBeFocused();
  await expect(chip).toHaveAccessibleName(/HTTP streaming, connected/);
});

test('a number matches its car, not trouble codes', () => {
  const cars = ['Car 4 live Hop Row', 'Car 6 live Trouble code P0420', 'Car 14 live Mill Lane'];
  const found = (query: string): number[] => cars.flatMap((car, i) => (matches(car, query) ? [i] : []));
  expect(found('car 4')).toEqual([0]);
  expect(found('p0420')).toEqual([1]);
  expect(found(' LANE  car')).toEqual([2]);
  expect(found('7')).toEqual([]);
  expect(found('')).toEqual([0, 1, 2]);
});

test('search finds a car and the map follows', async ({ page, clean }) => {
  await page.emulateMedia({ reducedMotion: 'no-preference' });
  await openCar(page, '/carcare');
  await expect(page.getByText('6 of 6 live')).toBeVisible();
  await page.getByRole('searchbox').fill('car 4');
  await expect(page.getByRole('button', { name: /Car \d/ })).toHaveCount(1);
  await page.getByRole('button', { name: /Car 4/ }).click();
  await expect(page.getByRole('heading', { name: 'Car 4' })).toBeVisible();
  await expect(page).toHaveURL(/car=4/);
  await expect(page.getByRole('button', { name: 'Follow the selected car' })).toHaveAttribute('aria-pressed', 'true');
  await expect(page.getByRole('img', { name: /Speed over 2 minutes: now \d+ km\/h/ })).toBeVisible();
  await page.getByRole('searchbox').fill('nothing of that name');
  await expect(page.getByText('No car matches')).toBeVisible();
});

test('a click on the map selects a car', async ({ page, clean }) => {
  await page.emulateMedia({ colorScheme: 'light', reducedMotion: 'no-preference' });
  await openCar(page, '/carcare');
  await expect(page.getByText('6 of 6 live')).toBeVisible();
  // Position of a drawn car: the center of a patch in the color of cars (map/palette.ts).
  const spot = () =>
    page.locator('.map > canvas').last().evaluate((canvas: HTMLCanvasElement) => {
      const { width, height } = canvas;
      const { data } = canvas.getContext('2d')!.getImageData(0, 0, width, height);
      const box = canvas.getBoundingClientRect();
      const is = (x: number, y: number) => [0x24, 0x38, 0x3a, 0xff].every((c, i) => data[(y * width + x) * 4 + i] === c);
      for (let y = 90; y < height - 90; y++)
        for (let x = 480; x < width - 120; x++) if (is(x, y) && is(x, y + 6)) return { x: box.x + (x * box.width) / width, y: box.y + ((y + 6) * box.height) / height };
      return undefined;
    });
  await expect.poll(spot).toBeDefined();
  const { x, y } = (await spot())!;
  await page.mouse.click(x, y);
  await expect(page.getByRole('heading', { name: /^Car \d$/ })).toBeVisible();
  await expect(page).toHaveURL(/car=\d/);
});

test('a lost server is reported, then reconnected', async ({ page }) => {
  let server = await serve();
  let fleet = simulate(server.url, 2);
  try {
    await page.goto(`${server.url}/carcare?car=1`);
    await expect(page.getByRole('meter', { name: 'Speed' })).toHaveAttribute('aria-valuetext', /km\/h/);
    await server.stop();
    await expect(page.getByText('Connection lost.')).toBeVisible();
    await expect(page.getByRole('button', { name: 'Retry now' })).toBeVisible();
    await fleet.stop();
    server = await serve(new URL(server.url).host);
    fleet = simulate(server.url, 2);
    await page.getByRole('button', { name: 'Retry now' }).click({ timeout: 3_000 }).catch(() => undefined);
    await expect(page.getByText('Connection lost.')).toBeHidden({ timeout: 25_000 });
    await expect(page.getByText('2 of 2 live')).toBeVisible();
  } finally {
    await fleet.stop();
    await server.stop();
  }
});

test('the list has every car, however short the history is, until the car is deleted', async ({ page }) => {
  const server = await serve('127.0.0.1:0', ['--set', 'history.count_max=2']);
  const report = (carId: number, timestamp: number): Promise<Response> =>
    fetch(`${server.url}/rest/input`, { method: 'POST', body: JSON.stringify({ carId, timestamp, gpsLatitude: 47.53, gpsLongitude: 19.08, speed: 30, rpm: 2000, coolantTemperature: 90, heading: 0 }) });
  const cars = page.getByRole('button', { name: /Car \d/ });
  try {
    for (let n = 1; n <= 9; n++) await report(n < 4 ? n : 3, n);
    await page.goto(`${server.url}/carcare`);
    await expect(cars).toHaveCount(3);
    expect((await fetch(`${server.url}/v1/channels/fleet?key=2`, { method: 'DELETE' })).status).toBe(200);
    await expect(cars).toHaveCount(2);
    await expect(page.getByRole('button', { name: /Car 2/ })).toHaveCount(0);
    await report(4, 10);
    await expect(cars).toHaveCount(3);
  } finally {
    await server.stop();
  }
});

test('list and instruments work without WebGL', async ({ page }) => {
  await page.addInitScript(() => {
    const original = HTMLCanvasElement.prototype.getContext;
    HTMLCanvasElement.prototype.getContext = function (this: HTMLCanvasElement, kind: string, ...rest: unknown[]) {
      return kind.startsWith('webgl') ? null : original.call(this, kind as '2d', ...(rest as []));
    } as typeof original;
  });
  await page.goto(url('/carcare?car=1'));
  await expect(page.getByText('The map cannot be drawn')).toBeVisible();
  await expect(page.getByRole('meter', { name: 'Speed' })).toHaveAttribute('aria-valuetext', /km\/h/);
  await expect(page.getByText('6 of 6 live')).toBeVisible();
});

test('offline is reported, and positions stay visible', async ({ page, context }) => {
  await openCar(page);
  await context.setOffline(true);
  await expect(page.getByText('You are offline.')).toBeVisible();
  await expect(page.getByRole('heading', { name: 'Car 1' })).toBeVisible();
  await context.setOffline(false);
  await expect(page.getByText('You are offline.')).toBeHidden({ timeout: 25_000 });
});

test('a visited page starts without a network', async ({ page, context }) => {
  await openCar(page);
  const keeps = (asset: RegExp) =>
    expect.poll(async () => (await page.evaluate(async () => (await (await caches.open('carcare-1')).keys()).map((r) => r.url))).filter((u) => asset.test(u)).length);
  // A second visit must not lose the files that the first visit cached.
  for (const visit of ['first', 'second']) {
    await keeps(/assets\/fleet-map.*js$/).toBe(1);
    await keeps(/maplibre-gl-worker/).toBe(1);
    if (visit === 'first') await page.reload();
    await page.locator('[data-loaded=true]').waitFor({ timeout: 30_000 });
  }
  await context.setOffline(true);
  await page.reload();
  await expect(page.getByRole('heading', { name: 'CarCare' })).toBeVisible();
  await page.locator('[data-loaded=true]').waitFor({ timeout: 30_000 });
});

test('the service worker does not intercept streams', async ({ page }) => {
  await openCar(page, '/carcare?car=1&via=sse');
  await expect.poll(() => page.evaluate(() => navigator.serviceWorker.controller !== null)).toBe(true);
  const shell = page.waitForResponse((r) => r.url().includes('/assets/'));
  const stream = page.waitForResponse((r) => (r.headers()['content-type'] ?? '').includes('event-stream'));
  await page.reload();
  expect((await shell).fromServiceWorker(), 'assets').toBe(true);
  expect((await stream).fromServiceWorker(), 'data').toBe(false);
});

test('first load stays within its size budget', async ({ page }) => {
  const BUDGET = 450 * 1024;
  const pack = new URL('../pack/', import.meta.url);
  const manifest = JSON.parse(readFileSync(new URL('manifest.json', pack), 'utf8')) as { path: string; file: string }[];
  const size = new Map(manifest.map(({ path, file }) => [path, statSync(new URL(file, pack)).size]));
  const asked = new Set<string>();
  page.on('request', (request) => asked.add(new URL(request.url()).pathname));
  await openCar(page);
  const parts = [...asked].filter((path) => size.has(path));
  expect(parts).toContain('/town.json');
  expect(parts.some((path) => path.includes('maplibre-gl-worker'))).toBe(true);
  const total = parts.reduce((sum, path) => sum + size.get(path)!, 0);
  console.log(`first load of CarCare: ${total} bytes (brotli), budget ${BUDGET}`);
  expect(total).toBeLessThanOrEqual(BUDGET);
  expect(await page.request.get(url('/manifest.webmanifest')).then((r) => r.headers()['content-type'])).toContain('manifest+json');
});
