// Ticker and race in Firefox: prices arrive, and a lane is cut and restored.
import { expect } from '@playwright/test';
import { serve, simulateTicker } from '../server.ts';
import { resultIn } from '../../src/pages/race/share.ts';
import { click, reachable, test, textOf, type Page } from './fox.ts';

/** Lanes that Firefox opens on loopback; it opens no WebRTC connection there. */
const LANES = ['websocket', 'session', 'sse', 'stream', 'long-polling', 'polling'];

const ms = async (page: Page, lane: string): Promise<number> => {
  const text = await textOf(page, `[data-lane=${lane}] [data-figure=age]`);
  return parseFloat(text) * (/ s$/.test(text) ? 1000 : 1);
};

test('prices arrive in the ticker', async ({ open, server }) => {
  const ticker = simulateTicker(server);
  try {
    const page = await open('/ticker');
    await expect.poll(() => page.$$eval('[data-symbol]', (all) => all.length)).toBe(6);
    const before = await textOf(page, '[data-symbol=MILL] [data-figure=price]');
    await expect.poll(() => textOf(page, '[data-symbol=MILL] [data-figure=price]')).not.toBe(before);
  } finally {
    await ticker.stop();
  }
});

test('the finish table shows a delayed and a throttled lane', async ({ open }) => {
  const own = await serve(undefined, reachable());
  const ticker = simulateTicker(own.url, '20ms');
  try {
    const page = await open(`${own.url}/race`);
    for (const lane of LANES) await expect.poll(() => textOf(page, `[data-lane=${lane}] [data-figure=price]`), { message: lane }).toMatch(/^\d/);
    await click(page, '[data-lane=session] .controls button:nth-child(2)');
    await click(page, '[data-lane=stream] .controls button:nth-child(3)');
    await expect.poll(() => textOf(page, '[data-lane=session]')).toContain('+500 ms');
    await expect.poll(() => textOf(page, '[data-lane=stream]')).toContain('16 kbit/s');
    // A new race, with these links from its start.
    await click(page, '.start button.primary');
    await page.waitForSelector('#finish', { timeout: 60_000 });
    const link = await page.$eval('.finish .share a', (link) => (link as HTMLAnchorElement).hash);
    const result = resultIn(link);
    if (!result || result === 'invalid') throw new Error('the link has no result');
    const place = (name: string) => result.places.find(({ lane }) => lane === name)!;
    expect([place('session').link, place('stream').link, place('sse').link]).toEqual(['+500 ms', '16 kbit/s', '']);
    expect(place('session').behindMs!).toBeGreaterThan(250);
    expect(place('session').p50!).toBeGreaterThan(250);
    // 300 ticks need more than ten seconds on this link.
    expect(place('stream').behindMs ?? Infinity).toBeGreaterThan(1_000);
    await page.close();
  } finally {
    await ticker.stop();
    await own.stop();
  }
});

test('lanes race, and one is cut and restored', async ({ open }) => {
  const own = await serve(undefined, reachable());
  const ticker = simulateTicker(own.url, '20ms');
  try {
    const page = await open(`${own.url}/race`);
    for (const lane of LANES) await expect.poll(() => textOf(page, `[data-lane=${lane}] [data-figure=price]`), { message: lane }).toMatch(/^\d/);
    await click(page, '[data-lane=sse] .controls button:nth-child(1)');
    await expect.poll(() => ms(page, 'sse')).toBeGreaterThan(2_000);
    expect(await ms(page, 'session')).toBeLessThan(1_000);
    await click(page, '[data-lane=sse] .controls button:nth-child(1)');
    await expect.poll(() => ms(page, 'sse')).toBeLessThan(1_000);
    // Before the server stops, because Firefox logs each refused connection as an error.
    await page.close();
  } finally {
    await ticker.stop();
    await own.stop();
  }
});
