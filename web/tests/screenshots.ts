// Takes the screenshots of the documentation from the real server with a simulated fleet: `npm run screenshots`.
import { mkdirSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { expect, test, type Page } from '@playwright/test';
import { openCar, url } from './page.ts';
import { serve, simulate, simulateTicker } from './server.ts';
import { figure, publishMany, read } from './ui-server.ts';

const images = fileURLToPath(new URL('../../docs/images/', import.meta.url));
mkdirSync(images, { recursive: true });

/** Waits for a trace of 75 s at five records per second, long enough for a screenshot. */
async function driven(page: Page): Promise<void> {
  await expect.poll(() => page.evaluate(() => window.carcare?.received.length), { timeout: 110_000 }).toBeGreaterThan(375);
}

test.describe('phone', () => {
  test.use({ viewport: { width: 390, height: 844 }, deviceScaleFactor: 2, hasTouch: true, colorScheme: 'light' });
  test('CarCare on a phone', async ({ page }) => {
    test.setTimeout(150_000);
    await openCar(page);
    await driven(page);
    await page.screenshot({ path: `${images}carcare-phone.png` });
  });
});

test.describe('desktop', () => {
  test.use({ viewport: { width: 1280, height: 800 }, colorScheme: 'dark' });
  test('CarCare on a desktop', async ({ page }) => {
    test.setTimeout(150_000);
    await openCar(page);
    await driven(page);
    await page.screenshot({ path: `${images}carcare-desktop.png` });
  });
});

test.describe('prices', () => {
  test.use({ viewport: { width: 1280, height: 800 }, colorScheme: 'light' });
  test('the ticker and the race', async ({ page }) => {
    const ticker = simulateTicker(url('/'), '100ms');
    try {
      await page.goto(url('/race'));
      const progress = async () => Number(await page.locator('[data-lane=session] .track').getAttribute('aria-valuenow'));
      await expect.poll(progress, { timeout: 60_000 }).toBeGreaterThan(20);
      await page.locator('[data-lane=sse]').getByRole('button', { name: 'Cut' }).click();
      await page.locator('[data-lane=long-polling]').getByRole('button', { name: 'Throttle' }).click();
      await expect.poll(progress, { timeout: 60_000 }).toBeGreaterThan(55);
      await page.mouse.move(0, 0);
      await page.screenshot({ path: `${images}race-desktop.png` });
      await page.getByRole('button', { name: 'Restore all links' }).click();
      await page.goto(url('/ticker'));
      await expect(page.locator('[data-symbol]')).toHaveCount(6);
      await page.screenshot({ path: `${images}ticker-desktop.png` });
    } finally {
      await ticker.stop();
    }
  });
});

test.describe('operators', () => {
  for (const colorScheme of ['light', 'dark'] as const) {
    test.describe(colorScheme, () => {
      test.use({ viewport: { width: 1280, height: 800 }, colorScheme });
      test('the operator pages', async ({ page }) => {
        test.setTimeout(240_000);
        const own = await serve();
        const fleet = simulate(own.url, 40);
        const ticker = simulateTicker(own.url, '20ms');
        const readers = [];
        try {
          await page.goto(`${own.url}/ui?span=60`);
          // The number of readers grows while the charts fill.
          for (let i = 0; i < 480; i++) {
            const kind = (['text/event-stream', 'application/x-ndjson', 'websocket'] as const)[i % 5 < 2 ? 0 : i % 5 < 3 ? 1 : 2];
            readers.push(await read(own.url, `cars/${(i % 40) + 1}/telemetry`, { kind }));
            if (i % 8 === 0) await expect.poll(() => figure(page, 'Connections')).toBeGreaterThan(i);
          }
          for (let i = 0; i < 12; i++) readers.push(await read(own.url, 'bulk', { isSlow: true }));
          await page.mouse.move(0, 0);
          await page.screenshot({ path: `${images}ui-overview-${colorScheme}.png` });
          await page.goto(`${own.url}/ui/channels?channel=cars/1/telemetry`);
          await expect(page.locator('[data-offset]').nth(20)).toBeVisible();
          await page.screenshot({ path: `${images}ui-channel-${colorScheme}.png` });
          for (let i = 0; i < 20; i++) await publishMany(own.url, 'bulk', 10, 'x'.repeat(60_000));
          await page.goto(`${own.url}/ui/connections`);
          await expect(page.locator('tbody tr')).toHaveCount(100);
          await page.screenshot({ path: `${images}ui-connections-${colorScheme}.png` });
        } finally {
          for (const reader of readers) reader.close();
          await Promise.all([fleet.stop(), ticker.stop()]);
          await own.stop();
        }
      });
    });
  }
});

test.describe('start', () => {
  test.use({ viewport: { width: 1280, height: 800 }, colorScheme: 'light' });
  test('the start page', async ({ page }) => {
    await page.goto(url('/'));
    await expect(page.getByText('Connected over')).toBeVisible();
    for (let nr = 1; nr <= 3; nr++) {
      await page.getByRole('button', { name: 'Publish a message' }).click();
      await expect(page.getByRole('log')).toContainText(`"nr":${nr}`);
    }
    await page.screenshot({ path: `${images}start-desktop.png`, fullPage: true });
  });
});
