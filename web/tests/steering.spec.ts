// Steering in a real Chromium: the own video becomes smaller on a narrow path, and large again afterwards.
import { expect, test, type Page } from '@playwright/test';
import { join, openBlankPage, quality, throttledRelay } from './room-page.ts';

test.describe.configure({ timeout: 180_000 });

/** Limits, ms: the video is smaller, and as chosen again. The test prints the times. */
const [DOWN_MAX, UP_MAX] = [5_000, 30_000];
/** Maximum wait for either, ms. */
const WAIT_MAX = 45_000;

test('video follows the bandwidth of the relay', async ({ browser }) => {
  const server = process.env.MILLRACE_URL!;
  const room = `steering-${process.pid}`;
  const context = await browser.newContext();
  const [sender, receiver] = [await openBlankPage(context, server), await openBlankPage(context, server)];
  const path = await throttledRelay(sender);
  await join(sender, room, { topology: 'relay', choice: { width: 320, height: 240, frameRate: 15, steer: true } });
  await join(receiver, room, { video: false });
  const sizes = () => sender.evaluate(() => window.pageState.sizes);
  const level = async (): Promise<number> => (await sizes()).at(-1)?.level ?? 0;
  /** Returns the time of the first change of size after `since` that satisfies `is`, as ms after `since`. */
  const changedAfter = async (since: number, is: (level: number) => boolean): Promise<number> => Math.round((await sizes()).find(({ at, level }) => at > since && is(level))!.at - since);
  const width = (page: Page): Promise<number> => page.evaluate(() => document.querySelector('video')?.videoWidth ?? 0);
  await expect.poll(() => width(receiver), { timeout: 40_000 }).toBe(320);
  // The browser searches for the bandwidth at first. The video stays as chosen.
  const settled = Date.now();
  await expect.poll(() => Date.now() - settled, { timeout: 20_000 }).toBeGreaterThan(12_000);
  expect(await level()).toBe(0);
  const rates = async (): Promise<{ sent: number; uplink: number | undefined; assigned: number }> => {
    const { links, uplink_kbps } = await quality(sender);
    const assigned = links[0]?.streams.find(({ direction, kind }) => direction === 'out' && kind === 'video')?.target_kbps;
    return { sent: Math.round(links[0]?.sent_kbps ?? 0), uplink: uplink_kbps, assigned: assigned ?? 0 };
  };
  const before = await rates();

  const narrowed = Date.now();
  path.carry(40);
  // The share of the browser: the time until it assigns less than half of the previous rate to its encoder.
  const assigned = expect.poll(async () => (await rates()).assigned, { timeout: WAIT_MAX, message: 'lower rate' }).toBeLessThan(before.assigned / 2);
  const [assigned_ms] = await Promise.all([assigned.then(() => Date.now() - narrowed), expect.poll(level, { timeout: WAIT_MAX, message: 'smaller' }).toBeGreaterThan(0)]);
  const down_ms = await changedAfter(narrowed, (level) => level > 0);
  await expect.poll(() => width(receiver), { timeout: 20_000, message: 'others receive the smaller video' }).toBeLessThan(320);
  await expect.poll(() => Date.now() - narrowed, { timeout: 30_000 }).toBeGreaterThan(20_000);
  const during = { ...(await rates()), changes: (await sizes()).length };
  expect(await level(), 'it stays smaller').toBeGreaterThan(0);

  const widened = Date.now();
  path.carry(Infinity);
  await expect.poll(level, { timeout: WAIT_MAX, message: 'as chosen again' }).toBe(0);
  const up_ms = await changedAfter(widened, (level) => level === 0);
  await expect.poll(() => width(receiver), { timeout: 20_000 }).toBe(320);
  const levels = (await sizes()).map(({ level }) => level);
  console.log(JSON.stringify({ steering: 'relay at 40 kbit/s', before, during, assigned_ms, down_ms, up_ms, levels }));
  expect(down_ms, 'time until it is smaller').toBeLessThanOrEqual(DOWN_MAX);
  expect(up_ms, 'time until it is as chosen again').toBeLessThanOrEqual(UP_MAX);
  const turns = levels.filter((level, i) => i > 1 && level > levels[i - 1]! !== levels[i - 1]! > levels[i - 2]!);
  expect(turns.length, 'changes of direction: down, then up').toBeLessThanOrEqual(1);
  path.stop();
  await context.close();
});
