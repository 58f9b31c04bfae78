// The lamps of a kit: a color picker in the browser, through server, serial connection, firmware and I2C bus, to the
// lamps on the page.
import { spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { expect } from '@playwright/test';
import { colorOf, kitOf, levelsOf } from '../src/pages/ball/state.ts';
import { BEST, LOOKS, test, url, violations } from './page.ts';
import { binary } from './server.ts';

/** Starts a simulated kit at the server of the tests. */
function startKit(name: string): ChildProcess {
  return spawn(binary(), ['simulate', 'earl', '--name', name, '--to', url('/')], { stdio: 'ignore' });
}

async function end(kit: ChildProcess): Promise<void> {
  if (kit.exitCode !== null || kit.signalCode !== null) return;
  const gone = once(kit, 'exit');
  kit.kill('SIGTERM');
  await gone;
}

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
      await expect(page.getByRole('status').first()).toHaveText('No kit yet');
      await expect(page.getByText('millrace simulate earl')).toBeVisible();
      expect(await violations(page, BEST)).toEqual([]);
      await page.screenshot({ path: info.outputPath('ball-empty.png'), fullPage: true });
    });

    test('a color picked on the page lights the lamp', async ({ page, clean }, info) => {
      const channel = `earl/${name.replace(' ', '-')}`;
      const kit = startKit(channel);
      try {
        await page.goto(url(`/ball?kit=${channel}`));
        await expect(page.getByRole('status').first()).toHaveText('Connected');
        const sensor = page.getByRole('meter', { name: 'Light sensor' });
        const reading = async (): Promise<number> => Number(await sensor.getAttribute('aria-valuenow'));
        await expect.poll(reading).toBeGreaterThan(0);
        const dark = await reading();

        await page.getByLabel('Color').first().fill('#ff8800');
        await expect(page.getByRole('img', { name: 'LED A is lit, red 15, green 8, blue 0' })).toBeVisible();
        await expect(page.getByRole('img', { name: 'LED B is dark' })).toBeVisible();
        await expect.poll(reading).toBeGreaterThan(dark + 100);

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
