// The battery calculator: its model is that of `millrace lab battery`.
import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { expect } from '@playwright/test';
import { hoursOf, KARADOGAN_WH, powerOf, stated, type Duty } from '../src/pages/battery/model.ts';
import { BEST, LOOKS, test, url, violations } from './page.ts';
import { binary } from './server.ts';

const run = (...args: string[]): string => execFileSync(binary(), ['lab', 'battery', ...args], { encoding: 'utf8' });

test('the page computes what the command computes', () => {
  const usual: Duty = { forwarding: 'multiplexing', peers: 10, rate: 4, windowMs: 250, heartbeatS: 0 };
  const duties: Duty[] = [
    usual,
    { ...usual, peers: 49, heartbeatS: 25 },
    { ...usual, rate: 0.1 },
    { ...usual, windowMs: 1000, rate: 20, heartbeatS: 0.5 },
    { ...usual, forwarding: 'demultiplexing', peers: 40 },
    { ...usual, forwarding: 'demultiplexing', peers: 3, rate: 7.5, heartbeatS: 300 },
  ];
  for (const duty of duties) {
    const { forwarding, peers, rate, windowMs, heartbeatS } = duty;
    const by = forwarding === 'demultiplexing' ? ['--demultiplex'] : ['--window', `${windowMs}ms`];
    const beats = heartbeatS ? ['--heartbeat', `${heartbeatS * 1000}ms`] : [];
    const told = JSON.parse(run('--json', '--peers', String(peers), '--rate', String(rate), ...by, ...beats)) as Record<string, number>;
    const { powerMw, channels, messagesPerS } = powerOf(duty);
    expect(powerMw).toBeCloseTo(told.power_mw!, 6);
    expect([channels, messagesPerS]).toEqual([told.channels, expect.closeTo(told.messages_per_s!, 6)]);
    expect(hoursOf(8, powerMw)).toBeCloseTo(told.hours!, 6);
  }
});

test('the coefficients are those of the binary', () => {
  expect(readFileSync(new URL('../src/pages/battery/model.json', import.meta.url), 'utf8')).toBe(run('--model'));
});

test('the measured power gives the battery lives of the thesis', () => {
  // The thesis rounds, and one value down: 4.72 to 4.7, 5.14 to 5.1, 3.44 to 3.4, 6.06 to 6.1.
  for (const { measuredMw, hours } of stated) expect(Math.abs(hoursOf(KARADOGAN_WH, measuredMw) - hours)).toBeLessThanOrEqual(0.05);
  expect(stated.map(({ hours }) => hours)).toEqual([6.1, 4.7, 5.1, 3.4]);
});

for (const { name, ...look } of LOOKS) {
  test.describe(name, () => {
    test.use(look);

    test('the battery life follows the work', async ({ page, clean }, info) => {
      await page.goto(url('/battery'));
      const hours = page.getByRole('status');
      await expect(hours).toHaveText('6.1');
      for (const stated of ['6.1', '4.7', '5.1', '3.4']) await expect(page.getByRole('cell', { name: stated, exact: true }).first()).toBeVisible();
      await page.getByLabel('Forwarding').selectOption('demultiplexing');
      await page.getByLabel('Peers').fill('40');
      await expect(hours).toHaveText('3.7');
      expect(await violations(page, BEST)).toEqual([]);
      expect(await page.evaluate(() => document.documentElement.scrollWidth - innerWidth), 'no sideways scrolling').toBeLessThanOrEqual(0);
      await page.screenshot({ path: info.outputPath('battery.png'), fullPage: true });
      await page.getByLabel('Peers').fill('0');
      await expect(page.getByRole('alert')).toContainText('outside of its range');
      expect(await violations(page, BEST)).toEqual([]);
    });
  });
}
