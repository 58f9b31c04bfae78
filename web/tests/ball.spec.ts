// The lamps of a kit: a color picker in the browser, through server, serial connection, firmware and I2C bus, to the
// lamps on the page.
import { spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, type Page } from '@playwright/test';
import { StepDetector, troubleOf } from '../src/pages/ball/servo.ts';
import { areaColor, colorOf, kitOf, levelsOf } from '../src/pages/ball/state.ts';
import { BEST, LOOKS, test, url, violations } from './page.ts';
import { binary } from './server.ts';

const start = (...args: string[]): ChildProcess => spawn(binary(), [...args, '--to', url('/')], { stdio: 'ignore' });

/** Starts a simulated kit at the server of the tests. */
const startKit = (name: string): ChildProcess => start('simulate', 'earl', '--name', name);

async function end(kit: ChildProcess): Promise<void> {
  if (kit.exitCode !== null || kit.signalCode !== null) return;
  const gone = once(kit, 'exit');
  kit.kill('SIGTERM');
  await gone;
}

/** Reads the light sensor as the page shows it. */
const reading = async (page: Page): Promise<number> => Number(await page.getByRole('meter', { name: 'Light sensor' }).getAttribute('aria-valuenow'));
const status = (page: Page) => page.getByRole('status').first();
const figure = async (page: Page, name: string): Promise<number> => Number(await page.locator(`[data-figure=${name}]`).textContent());

test('colors become levels of the driver, and back', () => {
  expect(levelsOf('#ff8001')).toEqual([15, 8, 1]);
  expect(colorOf([15, 8, 0])).toBe('#ff8800');
  expect([kitOf(''), kitOf('?kit=earl/2')]).toEqual(['earl/1', 'earl/2']);
});

for (const { name, ...look } of LOOKS) {
  test.describe(name, () => {
    test.use(look);

    test('a page without a kit says how to start one', async ({ page, clean }, info) => {
      await page.goto(url(`/ball?kit=none/${name.replace(' ', '-')}`));
      await expect(status(page)).toHaveText('No kit yet');
      await expect(page.getByText('millrace simulate earl')).toBeVisible();
      expect(await violations(page, BEST)).toEqual([]);
      await page.screenshot({ path: info.outputPath('ball-empty.png'), fullPage: true });
    });

    test('a color picked on the page lights the lamp', async ({ page, clean }, info) => {
      const channel = `earl/${name.replace(' ', '-')}`;
      const kit = startKit(channel);
      try {
        await page.goto(url(`/ball?kit=${channel}`));
        await expect(status(page)).toHaveText('Connected');
        await expect.poll(() => reading(page)).toBeGreaterThan(0);
        const dark = await reading(page);

        await page.getByLabel('Color').first().fill('#ff8800');
        await expect(page.getByRole('img', { name: 'LED A is lit, red 15, green 8, blue 0' })).toBeVisible();
        await expect(page.getByRole('img', { name: 'LED B is dark' })).toBeVisible();
        await expect.poll(() => reading(page)).toBeGreaterThan(dark + 100);

        // Six levels between off and on are more than the driver has.
        await page.getByLabel('Color').first().fill('#112266');
        await page.getByLabel('Color').nth(1).fill('#77ddee');
        await expect(page.getByText('three brightness levels')).toBeVisible();

        await page.getByLabel('Blinks and fades').nth(1).check();
        await expect(page.getByRole('img', { name: 'LED B is dark' })).toBeVisible();
        await expect(page.getByRole('img', { name: 'LED B is lit' })).toBeVisible();
        expect(await violations(page, BEST)).toEqual([]);
        expect(await page.evaluate(() => document.documentElement.scrollWidth - innerWidth), 'no sideways scrolling').toBeLessThanOrEqual(0);
        await page.screenshot({ path: info.outputPath('ball.png'), fullPage: true });
      } finally {
        await end(kit);
      }
    });
  });
}

test('a color reaches the lamps over a gateway and a serial connection', async ({ page, clean }) => {
  const folder = mkdtempSync(join(tmpdir(), 'earl-'));
  const link = join(folder, 'serial');
  const startModule = (): ChildProcess => start('simulate', 'earl', '--name', 'earl/serial', '--serial-link', link);
  let module = startModule();
  const gateway = start('gateway', '--serial', link, '--kit', 'earl/serial');
  try {
    await page.goto(url('/ball?kit=earl/serial'));
    await expect(status(page)).toHaveText('Connected');
    await expect.poll(() => reading(page)).toBeGreaterThan(0);
    const dark = await reading(page);
    await page.getByLabel('Color').first().fill('#ff8800');
    // The simulated module measures its lamps beside the serial connection.
    const lamp = page.getByRole('img', { name: 'LED A is lit, red 15, green 8, blue 0' });
    await expect(lamp).toBeVisible();
    await expect(lamp).toHaveAttribute('data-measured', 'true');
    await expect.poll(() => reading(page)).toBeGreaterThan(dark + 100);

    await end(module);
    await expect(page.getByRole('alert')).toContainText('serial device');
    await expect(status(page)).toHaveText('Trouble');
    // A command without a module is shown when it is back.
    await page.getByLabel('Color').nth(1).fill('#0000ff');
    module = startModule();
    await expect(status(page)).toHaveText('Connected');
    await expect(page.getByRole('img', { name: 'LED B is lit, red 0, green 0, blue 15' })).toHaveAttribute('data-measured', 'true');
    await expect(lamp).toBeVisible();
  } finally {
    await end(gateway);
    await end(module);
    rmSync(folder, { recursive: true });
  }
});

test('steps are detected once, from the time when they were due', () => {
  const readings = new Map([[0, 100], [5, 300], [15, 700]]);
  const detector = new StepDetector(readings, 0);
  detector.begin(15, 1_000);
  for (const [raw, at] of [[100, 1_050], [390, 1_100], [410, 1_120], [700, 1_140]] as const) detector.handle(raw, at);
  expect(detector.figures()).toMatchObject({ steps: 1, detected: 1, missed: 0, repeated: 0, p50: 120 });
  detector.begin(5, 2_000);
  detector.handle(600, 2_050);
  detector.begin(0, 3_000);
  expect(detector.figures()).toMatchObject({ steps: 3, detected: 1, missed: 1 });
  detector.handle(150, 3_200);
  detector.handle(250, 3_300);
  expect(detector.figures()).toMatchObject({ detected: 2, missed: 1, repeated: 1, max: 200 });
  expect(detector.figures().histogram.reduce((sum, count) => sum + count)).toBe(2);
  expect(troubleOf(readings)).toBe('');
  expect(troubleOf(new Map([[0, 0], [15, 0]]))).toContain('dark');
  expect(troubleOf(new Map([[0, 1023], [15, 1023]]))).toContain('saturated');
  expect(troubleOf(new Map([[0, 100], [15, 105]]))).toContain('does not see lamp A');
});

for (const { name, ...look } of LOOKS) {
  test.describe(name, () => {
    test.use(look);

    test('the servo loop detects each step of a lamp once', async ({ page, clean }, info) => {
      const channel = `servo/${name.replace(' ', '-')}`;
      const kit = startKit(channel);
      try {
        await page.goto(url(`/ball?kit=${channel}#servo`));
        await expect(status(page)).toHaveText('Connected');
        await page.getByLabel('Pattern').selectOption(look.hasTouch ? 'Steps' : 'Square wave');
        await page.getByRole('button', { name: 'Start the loop' }).click();
        await expect.poll(() => figure(page, 'detected'), { timeout: 60_000 }).toBeGreaterThanOrEqual(6);
        expect([await figure(page, 'missed'), await figure(page, 'repeated')]).toEqual([0, 0]);
        expect(await figure(page, 'p99')).toBeGreaterThan(20);
        await expect(page.getByRole('img', { name: /^Latency of \d+ steps/ })).toBeVisible();
        expect(await violations(page, BEST)).toEqual([]);
        await page.screenshot({ path: info.outputPath('servo.png'), fullPage: true });
        await page.getByRole('button', { name: 'Stop the loop' }).click();
        await expect(page.getByRole('button', { name: 'Start the loop' })).toBeVisible();
      } finally {
        await end(kit);
      }
    });
  });
}

test('the number of people in the rest area is the color of the ball', async ({ page, context, clean }) => {
  const kit = startKit('earl/area');
  try {
    await page.goto(url('/ball?kit=earl/area'));
    await expect(status(page)).toHaveText('Connected');
    await expect(page.getByText('1 person', { exact: true })).toBeVisible();
    await page.getByLabel('Show on LED A').check();
    await expect(page.getByRole('img', { name: 'LED A is lit, red 0, green 0, blue 15' })).toBeVisible();
    for (let i = 0; i < 3; i++) await page.getByRole('button', { name: 'Add a visitor' }).click();
    const other = await context.newPage();
    await other.goto(url('/ball?kit=earl/area'));
    await expect(page.getByText('5 people', { exact: true })).toBeVisible();
    await expect(page.getByRole('img', { name: 'LED A is lit, red 0, green 15, blue 0' })).toBeVisible();
    await other.close();
    await page.getByRole('button', { name: 'Remove a visitor' }).click();
    await expect(page.getByText('3 people', { exact: true })).toBeVisible();
    await expect(page.getByRole('img', { name: 'LED A is lit, red 0, green 15, blue 15' })).toBeVisible();
  } finally {
    await end(kit);
  }
  expect([areaColor(0), areaColor(10), areaColor(99)]).toEqual([[0, 0, 0], [15, 0, 0], [15, 0, 0]]);
});
