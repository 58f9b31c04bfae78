// The race: seven lanes with links of their own, their impairments, the finish table and its link, and who may impair.
import { execFileSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, test, type Page } from '@playwright/test';
import { LANES, relayed, type LaneName } from '../src/pages/race/api.ts';
import { Figures } from '../src/pages/race/figures.ts';
import { fragmentOf, ranked, resultIn, type Place } from '../src/pages/race/share.ts';
import { BEST, LOOKS, violations } from './page.ts';
import { binary, serve, simulateTicker, type Server } from './server.ts';

let server: Server, ticker: { stop(): Promise<void> };

// The lanes belong to the server, so this file has a server of its own.
test.beforeAll(async () => {
  server = await serve();
  ticker = simulateTicker(server.url, '20ms');
});
test.afterAll(async () => {
  await ticker?.stop();
  await server?.stop();
});

const lane = (page: Page, name: LaneName) => page.locator(`[data-lane=${name}]`);
const button = (page: Page, name: LaneName, label: string) => lane(page, name).getByRole('button', { name: label });

/** Returns a figure of a lane; times in ms, bytes in B. */
async function figure(page: Page, name: LaneName, which: string): Promise<number> {
  const text = (await lane(page, name).locator(`[data-figure=${which}]`).textContent()) ?? '';
  const factor = / (s|kB)$/.test(text) ? 1000 : / µs$/.test(text) ? 0.001 : 1;
  return parseFloat(text.replace(',', '')) * factor;
}

async function open(page: Page): Promise<void> {
  await page.goto(`${server.url}/race`);
  for (const { name } of LANES) await expect.poll(() => figure(page, name, 'price'), { message: name }).toBeGreaterThan(0);
}

for (const { name, ...look } of LOOKS) {
  test.describe(name, () => {
    test.use(look);

    test('seven lanes race', async ({ page }, info) => {
      const errors: string[] = [];
      page.on('console', (message) => message.type() === 'error' && errors.push(message.text()));
      page.on('pageerror', (error) => errors.push(error.message));
      await open(page);
      await expect(page.getByRole('progressbar')).toHaveCount(7);
      expect(await violations(page, BEST)).toEqual([]);
      expect(await page.evaluate(() => document.documentElement.scrollWidth - innerWidth), 'no sideways scrolling').toBeLessThanOrEqual(0);
      await page.screenshot({ path: info.outputPath('race.png') });
      await expect(page.getByRole('heading', { name: 'Finish' })).toBeVisible({ timeout: 60_000 });
      expect(await violations(page, BEST)).toEqual([]);
      expect(await page.evaluate(() => document.documentElement.scrollWidth - innerWidth), 'no sideways scrolling').toBeLessThanOrEqual(0);
      await page.screenshot({ path: info.outputPath('finish.png'), fullPage: true });
      expect(errors, 'console errors').toEqual([]);
    });
  });
}

test('every tick reaches every lane, and polling needs more requests and time than a stream', async ({ page }) => {
  await open(page);
  await expect(page.getByRole('heading', { name: 'Finish' })).toBeVisible({ timeout: 60_000 });
  const result = resultIn(new URL((await page.getByRole('link', { name: 'Link to this table' }).getAttribute('href'))!).hash);
  if (!result || result === 'invalid') throw new Error('the link has no result');
  expect(result.places).toHaveLength(7);
  expect(result.places.map(({ lane, ticks, missed, reconnects }) => ({ lane, ticks, missed, reconnects }))).toEqual(LANES.map(({ name }) => ({ lane: name, ticks: 300, missed: 0, reconnects: 0 })));
  const of = (name: LaneName): Place => result.places.find((place) => place.lane === name)!;
  // The median: on a busy machine the slowest ticks of all lanes wait for the page.
  expect(of('polling').p50!).toBeGreaterThan(of('session').p50!);
  expect(of('polling').requests).toBeGreaterThanOrEqual(5);
  expect(of('sse').requests).toBe(1);
  // A bare WebSocket has the fewest bytes: the payload of about 64 B and two bytes of frame.
  expect(Math.min(...result.places.map((place) => place.bytesPerTick!))).toBe(of('websocket').bytesPerTick);
  expect(of('websocket').bytesPerTick!).toBeGreaterThan(55);
  expect(of('websocket').bytesPerTick!).toBeLessThan(110);
});

test('a cut lane stands still, and has every tick after it is restored', async ({ page }) => {
  await open(page);
  for (const name of ['sse', 'data-channel'] as const) {
    await button(page, name, 'Cut').click();
    await expect(button(page, name, 'Cut')).toHaveAttribute('aria-pressed', 'true');
    await expect.poll(() => figure(page, name, 'age')).toBeGreaterThan(2_000);
    expect(await figure(page, 'session', 'age')).toBeLessThan(1_000);
  }
  // Another page sees the same links.
  const other = await page.context().newPage();
  await other.goto(`${server.url}/race`);
  await expect(button(other, 'sse', 'Cut')).toHaveAttribute('aria-pressed', 'true');
  await other.close();
  await page.getByRole('button', { name: 'Restore all links' }).click();
  for (const name of ['sse', 'data-channel'] as const) {
    await expect(button(page, name, 'Cut')).toHaveAttribute('aria-pressed', 'false');
    await expect.poll(() => figure(page, name, 'age')).toBeLessThan(1_000);
  }
  await expect(page.getByRole('heading', { name: 'Finish' })).toBeVisible({ timeout: 60_000 });
  await expect(page.getByRole('row', { name: /SSE/ })).toContainText('cut');
  await expect(page.getByRole('row', { name: /SSE/ }).getByRole('cell', { name: '300', exact: true })).toBeVisible();
});

test('delay and throttle change one lane, and a reset makes it reconnect', async ({ page }) => {
  await open(page);
  await button(page, 'session', 'Delay').click();
  await expect(lane(page, 'session')).toContainText('+500 ms');
  await expect.poll(() => figure(page, 'session', 'p99')).toBeGreaterThanOrEqual(250);
  expect(await figure(page, 'stream', 'age')).toBeLessThan(250);
  await button(page, 'session', 'Delay').click();
  // 50 ticks per second need more than 16 kbit/s.
  await button(page, 'stream', 'Throttle').click();
  await expect(lane(page, 'stream')).toContainText('16 kbit/s');
  await expect.poll(() => figure(page, 'stream', 'age')).toBeGreaterThan(1_000);
  await button(page, 'stream', 'Throttle').click();
  await expect.poll(() => figure(page, 'stream', 'age')).toBeLessThan(500);
  for (const name of ['sse', 'session', 'websocket'] as const) {
    const before = await figure(page, name, 'reconnects');
    await button(page, name, 'Reset').click();
    await expect.poll(() => figure(page, name, 'reconnects'), { message: name }).toBeGreaterThan(before);
    await expect.poll(() => figure(page, name, 'age')).toBeLessThan(500);
  }
});

const PLACES: readonly Place[] = LANES.map(({ name }, i) => ({ lane: name, behindMs: i === 6 ? undefined : i * 10.5, ticks: 300 - i, missed: i, p50: 3, p99: undefined, bytesPerTick: 64.4, requests: i, reconnects: 0, link: i === 2 ? 'cut, +500 ms' : '' }));
const RESULT = { at: 1_795_600_000_000, ticks: 300, places: PLACES };

test('a shared table opens without any data of a server', async ({ page }, info) => {
  const asked: string[] = [];
  page.on('request', (request) => new URL(request.url()).pathname.startsWith('/v1/') && asked.push(request.url()));
  page.on('websocket', (socket) => asked.push(socket.url()));
  await page.goto(`${server.url}/race${fragmentOf(RESULT)}`);
  await expect(page.getByRole('heading', { name: 'A race that was shared' })).toBeVisible();
  const rows = page.getByRole('row');
  await expect(rows).toHaveCount(8);
  await expect(rows.nth(1)).toContainText('WebSocket, bare');
  await expect(rows.nth(3)).toContainText('cut, +500 ms');
  await expect(rows.nth(7)).toContainText('not finished');
  expect(await violations(page, BEST)).toEqual([]);
  await page.screenshot({ path: info.outputPath('shared.png') });
  expect(asked).toEqual([]);
  await page.getByRole('link', { name: 'Run a race on this server' }).click();
  await expect(lane(page, 'polling')).toBeVisible();
  await page.goto('about:blank');
  await page.goto(`${server.url}/race${fragmentOf(RESULT).slice(0, -9)}`);
  await expect(page.getByRole('alert')).toContainText('damaged');
});

test('a fragment is a complete table or invalid', () => {
  expect(resultIn(fragmentOf(RESULT))).toEqual(RESULT);
  expect([resultIn(''), resultIn('#token=a.b.c')]).toEqual([undefined, undefined]);
  const encode = (value: unknown): string => `#race=${btoa(JSON.stringify(value))}`;
  const row = ['sse', 0, 300, 0, 1, 2, 3, 4, 0, ''];
  expect(resultIn(encode([1, 1, 300, [row]]))).not.toBe('invalid');
  const bad = [
    [2, 1, 300, [row]], [1, 'now', 300, [row]], [1, 1, 300, []], [1, 1, 300, [row, row]], [1, 1, 300, [['<b>', ...row.slice(1)]]], [1, 1, 300, [[...row.slice(0, 9), 'x'.repeat(121)]]],
    [1, 1, 300, [['sse', -1, ...row.slice(2)]]], [1, 1, 300, [['sse']]], [1, 1e300, 300, [row]], {}, null,
  ];
  for (const value of bad) expect(resultIn(encode(value)), JSON.stringify(value)).toBe('invalid');
  expect(resultIn(`#race=${'A'.repeat(9_000)}`)).toBe('invalid');
  expect(ranked([PLACES[6]!, PLACES[1]!, PLACES[0]!]).map(({ lane }) => lane)).toEqual(['websocket', 'session', 'data-channel']);
});

test('figures count the ticks of the race only', () => {
  const tick = (seq: number, time: number) => ({ symbol: 'MILL', price: 1, time, seq });
  const open = { cut: false, delay_ms: 0, rate_kbit_s: 0 };
  const figures = new Figures();
  figures.handle(tick(1, 0), 5_000, 'MILL');
  figures.count({ bytes: 1_000, requests: 3, reconnects: 1 }, open);
  figures.start(1, 11);
  for (let seq = 2; seq <= 6; seq++) figures.handle(tick(seq, seq * 100), seq * 100 + seq, 'MILL');
  expect(figures.progress).toBe(0.5);
  figures.count({ bytes: 1_500, requests: 4, reconnects: 1 }, { ...open, delay_ms: 250 });
  // Ticks 7 to 10 are lost, 11 and 12 arrive.
  for (const seq of [11, 12]) figures.handle(tick(seq, seq * 100), seq * 100 + seq, 'MILL');
  expect([figures.finishedAt, figures.final]).toEqual([1_111, undefined]);
  figures.count({ bytes: 1_700, requests: 5, reconnects: 2 }, { ...open, cut: true });
  expect(figures.final).toEqual({ ticks: 6, missed: 4, p50: 5, p99: 11, bytesPerTick: 100, requests: 3, reconnects: 1, link: '+500 ms' });
  figures.count({ bytes: 9_999, requests: 9, reconnects: 9 }, open);
  expect(figures.final!.requests).toBe(3);
});

test('an SDP answer names the ports of the lane, and no candidate beside it', () => {
  const answer = ['v=0', 'a=candidate:1 1 udp 2130706431 127.0.0.1 4000 typ host', 'a=candidate:2 1 tcp 1671430143 127.0.0.1 4000 typ host tcptype passive', 'a=candidate:3 1 UDP 1 127.0.0.1 4001 typ host', 'a=candidate:4 1 udp 1 127.0.0.1 4002 typ host', ''].join('\r\n');
  expect(relayed(answer, [{ server: 4000, lane: 5000 }, { server: 4001, lane: 5001 }])).toBe(
    ['v=0', 'a=candidate:1 1 udp 2130706431 127.0.0.1 5000 typ host', 'a=candidate:3 1 UDP 1 127.0.0.1 5001 typ host', ''].join('\r\n'),
  );
});

test('a server without lanes says how to get them', async ({ page }) => {
  const own = await serve(undefined, ['--set', 'race.enabled=off']);
  try {
    await page.goto(`${own.url}/race`);
    await expect(page.getByRole('heading', { name: 'This server has no lanes' })).toBeVisible();
    expect(await violations(page, BEST)).toEqual([]);
    expect((await page.request.get(`${own.url}/race`)).headers()['content-security-policy']).not.toContain('*:');
  } finally {
    await own.stop();
  }
});

test('on a server with authentication only an operator impairs a lane', async ({ page, context }) => {
  const home = mkdtempSync(join(tmpdir(), 'millrace-race-'));
  const create = (...args: string[]): string => execFileSync(binary(), ['token', 'create', '--key', join(home, 'millrace.key'), ...args], { encoding: 'utf8' }).trim();
  execFileSync(binary(), ['token', 'key', '--out', join(home, 'millrace.key')]);
  const own = await serve(undefined, ['--race', '--set', `auth.keys=["${join(home, 'millrace.key.pub')}"]`]);
  const prices = simulateTicker(own.url, '50ms', { MILLRACE_TOKEN: create('--sub', 'prices', '--publish', 'ticker') });
  try {
    await page.goto(`${own.url}/race`);
    await expect(page.getByText('This server requires a token')).toBeVisible();
    const reader = create('--sub', 'ann', '--subscribe', 'ticker', '--history', 'ticker');
    await page.goto('about:blank');
    await page.goto(`${own.url}/race#token=${reader}`);
    for (const name of ['websocket', 'sse', 'polling'] as const) await expect.poll(() => figure(page, name, 'price'), { message: name }).toBeGreaterThan(0);
    await expect(button(page, 'sse', 'Cut')).toBeDisabled();
    const refused = await page.request.post(`${own.url}/v1/race/sse`, { data: { cut: true }, headers: { authorization: `Bearer ${reader}` } });
    expect(refused.status()).toBe(403);
    const other = await context.newPage();
    await other.goto(`${own.url}/race#token=${create('--sub', 'op', '--admin', '--subscribe', 'ticker', '--history', 'ticker')}`);
    await button(other, 'sse', 'Cut').click();
    await expect(button(page, 'sse', 'Cut')).toHaveAttribute('aria-pressed', 'true');
  } finally {
    await prices.stop();
    await own.stop();
    rmSync(home, { recursive: true });
  }
});
