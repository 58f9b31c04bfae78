// Takes the screenshots of the documentation from the real server with a simulated fleet: `npm run screenshots`.
import { mkdirSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { expect, test, type Page } from '@playwright/test';
import { openCar, url } from './page.ts';
import { serve, simulateTicker } from './server.ts';

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

test.describe('lab', () => {
  test.use({ viewport: { width: 1280, height: 800 }, colorScheme: 'light' });
  test('a run with the previous one behind it, and the reports', async ({ page }) => {
    test.setTimeout(180_000);
    const out = mkdtempSync(join(tmpdir(), 'millrace-lab-'));
    const server = await serve(undefined, ['--set', `lab.directory=${out}`]);
    const status = page.getByRole('heading', { level: 1 });
    const start = async (settings: string) => {
      await page.getByRole('button', { name: 'Options of thorsen-broadcast' }).click();
      await page.getByLabel('Parameters').fill(settings);
      await page.getByRole('button', { name: 'Start the run' }).click();
      await expect(status).not.toHaveText(/Finished|No run/);
    };
    try {
      await page.goto(`${server.url}/lab`);
      for (const clients of [5, 50]) {
        await start(`clients=${clients}\ntransports=sse,websocket\ntest=10s`);
        await expect(status).toHaveText('Finished', { timeout: 90_000 });
      }
      await start('clients=50\ntransports=sse,websocket\ntest=10s');
      await expect(status).toHaveText('Run 2 of 2', { timeout: 60_000 });
      await expect(page.getByRole('img', { name: /^Latency.*to .*seconds/ })).toBeVisible();
      await expect.poll(() => page.locator('figure .line').count()).toBeGreaterThan(8);
      await page.waitForFunction(() => document.querySelectorAll('figure .faint').length > 3);
      await page.screenshot({ path: `${images}lab-desktop.png` });
      await expect(status).toHaveText('Finished', { timeout: 60_000 });
      await page.setViewportSize({ width: 390, height: 844 });
      await page.emulateMedia({ colorScheme: 'dark' });
      await page.getByRole('heading', { name: 'Reports' }).scrollIntoViewIfNeeded();
      await page.evaluate(() => document.querySelector('#reports')?.scrollIntoView());
      await page.screenshot({ path: `${images}lab-phone.png` });
    } finally {
      await server.stop();
      rmSync(out, { recursive: true });
    }
  });
});
