// Live prices: over every transport, in every look, without a publisher, and with messages that are no ticks.
import { expect, type Page } from '@playwright/test';
import { Board, changeOf } from '../src/pages/ticker/board.ts';
import { Market, quantile, tickOf } from '../src/lib/ticks.ts';
import { TRANSPORTS, transportLabel } from '../src/lib/transports.ts';
import { BEST, LOOKS, test, url, violations } from './page.ts';
import { serve, simulateTicker, type Server } from './server.ts';
import { keys } from './ui-server.ts';

let server: Server;
test.beforeAll(async () => void (server = await serve()));
test.afterAll(() => server?.stop());

const quote = (page: Page, symbol: string) => page.locator(`[data-symbol="${symbol}"]`);
const price = async (page: Page, symbol: string): Promise<number> => Number((await quote(page, symbol).locator('[data-figure=price]').textContent())!.replace(',', ''));
const figure = async (page: Page, name: string): Promise<number> => parseFloat((await page.locator(`.figures [data-figure=${name}]`).textContent()) ?? '');

for (const { name, ...look } of LOOKS) {
  test.describe(name, () => {
    test.use(look);

    test('prices and their ages are shown', async ({ page, clean }, info) => {
      const ticker = simulateTicker(url('/'));
      try {
        await page.goto(url('/ticker'));
        await expect(page.getByRole('list', { name: 'Prices' }).getByRole('listitem')).toHaveCount(6);
        await expect(page.getByRole('status')).toHaveText('Connected over WebSocket');
        await expect(quote(page, 'MILL').locator('[data-figure=age]')).toHaveText(/^\d+\.\d s$/);
        const before = await price(page, 'MILL');
        await expect.poll(() => price(page, 'MILL')).not.toBe(before);
        await expect.poll(() => figure(page, 'rate')).toBeGreaterThan(5);
        await expect(page.getByRole('img', { name: /^MILL in the last minute: / })).toBeVisible();
        expect(await violations(page, BEST)).toEqual([]);
        expect(await page.evaluate(() => document.documentElement.scrollWidth - innerWidth), 'no sideways scrolling').toBeLessThanOrEqual(0);
        await page.screenshot({ path: info.outputPath('ticker.png'), fullPage: true });
      } finally {
        await ticker.stop();
      }
    });
  });
}

test('the transport is chosen and shown, and no tick is lost', async ({ page }) => {
  const ticker = simulateTicker(server.url);
  try {
    await page.goto(`${server.url}/ticker?via=poll`);
    await expect(page.getByRole('status')).toHaveText('Connected over Polling');
    for (const { name } of TRANSPORTS) {
      await page.getByLabel('Transport').selectOption(name);
      await expect(page.getByRole('status')).toHaveText(`Connected over ${transportLabel(name)}`);
      const before = await price(page, 'RACE');
      await expect.poll(() => price(page, 'RACE')).not.toBe(before);
    }
    expect(new URL(page.url()).searchParams.get('via')).toBe('data-channel');
    expect(await figure(page, 'gaps')).toBe(0);
  } finally {
    await ticker.stop();
  }
});

test('without a publisher the page shows the command, and simulates prices itself', async ({ page }) => {
  const own = await serve();
  try {
    await page.goto(`${own.url}/ticker`);
    await expect(page.getByText(`millrace simulate ticker --to ${own.url}`)).toBeVisible();
    await page.getByRole('button', { name: 'Simulate prices here' }).click();
    await expect(page.getByRole('list', { name: 'Prices' }).getByRole('listitem')).toHaveCount(6);
    await expect(page.getByText('No prices yet')).toHaveCount(0);
    await page.getByRole('button', { name: 'Stop' }).click();
    await expect(page.getByText('No prices yet')).toBeVisible();
  } finally {
    await own.stop();
  }
});

test('on a server with tokens the command creates one', async ({ page }) => {
  const key = keys();
  const own = await serve(undefined, key.args);
  try {
    await page.goto(`${own.url}/ticker#token=${key.token('--sub', 'ann', '--subscribe', 'ticker', '--history', 'ticker', '--expires', '1h')}`);
    await expect(page.getByText(/^MILLRACE_TOKEN=\$\(millrace token create .* --publish ticker\) millrace simulate ticker --to /)).toBeVisible();
  } finally {
    await own.stop();
    key.remove();
  }
});

test('messages that are no ticks are ignored, and symbols are text', async ({ page }) => {
  const own = await serve();
  try {
    await page.goto(`${own.url}/ticker`);
    await expect(page.getByText('No prices yet')).toBeVisible();
    const publish = (data: string) => page.request.post(`${own.url}/v1/channels/ticker`, { data, headers: { 'content-type': 'text/plain' } });
    for (const data of ['{}', 'text', '[1]', '{"symbol":"A","price":"1","time":1,"seq":1}', `{"symbol":"${'A'.repeat(13)}","price":1,"time":1,"seq":1}`]) expect((await publish(data)).ok()).toBe(true);
    expect((await page.request.post(`${own.url}/v1/channels/ticker`, { data: { symbol: '<b>x</b>', price: 1.5, time: 1, seq: 1 } })).ok()).toBe(true);
    await expect(page.getByRole('heading', { name: '<b>x</b>' })).toBeVisible();
    await expect(page.getByRole('list', { name: 'Prices' }).getByRole('listitem')).toHaveCount(1);
  } finally {
    await own.stop();
  }
});

test('the board keeps a minute, and corrects a clock that is off', () => {
  const event = (seq: number, publishedAt: number, receivedAt: number, price = 100 + seq) => ({ data: { symbol: 'MILL', price, time: publishedAt, seq }, publishedAt, receivedAt, replayed: false });
  const board = new Board();
  for (let seq = 0; seq <= 100; seq++) expect(board.accept(event(seq, seq * 1_000, seq * 1_000 + 5))).toBe(true);
  const [mill] = board.quotes();
  // 61 ticks of the minute, and the price at its left edge.
  expect([mill!.points.length, mill!.points[0]![1], mill!.price]).toEqual([62, 139, 200]);
  expect(changeOf(mill!)).toBeCloseTo(200 / 139 - 1);
  expect(board.delays()).toEqual({ p50: 5, p99: 5 });
  expect(board.rate(100_005)).toBe(1);
  // A phone whose clock is an hour ahead.
  const phone = new Board();
  for (let seq = 0; seq < 10; seq++) phone.accept(event(seq, seq * 1_000, seq * 1_000 + 3_600_000 + (seq % 2) * 20));
  expect(phone.delays()).toEqual({ p50: 20, p99: 20 });
  expect(phone.quotes()[0]!.at).toBe(9_000 + 3_600_000);
  expect(quantile([], 0.5)).toBeUndefined();
});

test('a simulated market numbers its ticks without gaps', () => {
  const market = new Market();
  const ticks = Array.from({ length: 500 }, (_, i) => market.next(i));
  expect(ticks.map(({ seq }) => seq)).toEqual(ticks.map((_, i) => i + 1));
  expect(new Set(ticks.slice(0, 6).map(({ symbol }) => symbol)).size).toBe(6);
  expect(ticks.every((tick) => tickOf(tick) !== undefined && tick.price > 10)).toBe(true);
});
