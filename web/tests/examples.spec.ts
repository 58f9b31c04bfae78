// The programs in examples/ that are pages: opened from another origin, as a developer would, with the server of the
// tests.
import { readFileSync } from 'node:fs';
import { createServer, type Server as HttpServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { expect, test, type Page } from '@playwright/test';
import { serve, simulateTicker, type Server } from './server.ts';

let server: Server, ticker: { stop(): Promise<void> }, folder: HttpServer;
test.beforeAll(async () => {
  server = await serve();
  ticker = simulateTicker(server.url);
  folder = createServer(({ url }, response) => {
    if (!url?.endsWith('.html')) return void response.writeHead(404).end();
    const page = readFileSync(new URL(`../../examples${url}`, import.meta.url), 'utf8');
    response.setHeader('content-type', 'text/html').end(page.replace('http://127.0.0.1:8080', server.url));
  });
  await new Promise<void>((resolve) => folder.listen(0, '127.0.0.1', resolve));
});
test.afterAll(async () => {
  folder?.close();
  await ticker?.stop();
  await server?.stop();
});

const open = (page: Page, path: string) => page.goto(`http://127.0.0.1:${(folder.address() as AddressInfo).port}/${path}`);

test('the ticker shows prices over each transport', async ({ page }) => {
  await open(page, 'ticker/ticker.html');
  const row = page.getByRole('row', { name: /^MILL/ });
  const price = () => row.getByRole('cell').nth(1).textContent();
  for (const name of ['Server-sent events', 'WebSocket', 'Long polling', 'Polling']) {
    await page.getByLabel('Transport').selectOption(name);
    await expect(page.getByRole('status')).toHaveText('connected');
    await expect(row).toBeVisible();
    const before = await price();
    await expect.poll(price, { message: name }).not.toBe(before);
  }
  await expect(page.locator('tbody tr')).toHaveCount(6);
});

test('the race cuts a lane', async ({ page }) => {
  await open(page, 'race/race.html');
  const age = async (name: string) => parseFloat((await page.getByRole('row', { name: new RegExp(`^${name} `) }).getByRole('cell').nth(2).textContent()) ?? '');
  for (const name of ['websocket', 'sse', 'polling']) await expect.poll(() => age(name), { message: name }).toBeGreaterThanOrEqual(0);
  await page.getByRole('row', { name: /^sse / }).getByRole('button', { name: 'Cut' }).click();
  await expect.poll(() => age('sse')).toBeGreaterThan(2_000);
  expect(await age('websocket')).toBeLessThan(1_000);
  await page.getByRole('row', { name: /^sse / }).getByRole('button', { name: 'Cut' }).click();
  await expect.poll(() => age('sse')).toBeLessThan(1_000);
});
