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
    // The copy of the client beside the chat, as its README describes.
    const client = /^\/chat\/client\/([\w/-]+\.js)$/.exec(url ?? '')?.[1];
    if (client) return void response.setHeader('content-type', 'text/javascript').end(readFileSync(new URL(`../../sdk/typescript/dist/${client}`, import.meta.url)));
    if (!url?.endsWith('.html')) return void response.writeHead(404).end();
    const page = readFileSync(new URL(`../../examples${url}`, import.meta.url), 'utf8');
    response.setHeader('content-type', 'text/html; charset=utf-8').end(page.replace('http://127.0.0.1:8080', server.url));
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

test('two browsers chat in the example', async ({ browser }) => {
  const contexts = [await browser.newContext(), await browser.newContext()];
  try {
    const [ann, bob] = [await contexts[0]!.newPage(), await contexts[1]!.newPage()];
    const lines = (page: Page) => page.getByRole('log').getByRole('listitem').allInnerTexts();
    const write = async (page: Page, text: string): Promise<void> => {
      await page.getByLabel('Message', { exact: true }).fill(text);
      await page.getByRole('button', { name: 'Send' }).click();
    };
    for (const page of [ann, bob]) await open(page, 'chat/chat.html');
    await bob.getByLabel('Your name').fill('Bob');
    await write(ann, '<b>hello</b>');
    await expect.poll(() => lines(bob)).toEqual(['Ann: <b>hello</b> ']);
    await expect(ann.locator('#members')).toHaveText(/Ann/);
    for (const via of ['sse', 'long-poll', 'poll', 'http-stream', 'data-channel', 'websocket']) {
      await bob.getByLabel('Transport').selectOption(via);
      await expect(bob.getByRole('status')).toHaveText(`connected over ${via}`);
      await write(bob, via);
      await expect.poll(() => lines(ann)).toContain(`Bob: ${via} `);
    }
    // Written offline, and sent after a reload.
    await contexts[0]!.route(/\/v1\//, (route) => route.abort());
    await contexts[0]!.routeWebSocket(/\/v1\//, (socket) => void socket.close());
    await ann.reload();
    for (const text of ['one', 'two']) await write(ann, text);
    await expect.poll(() => lines(ann)).toEqual(['Ann: one (waiting) ', 'Ann: two (waiting) ']);
    await contexts[0]!.unrouteAll();
    await ann.close();
    const again = await contexts[0]!.newPage();
    await open(again, 'chat/chat.html');
    for (const page of [again, bob]) await expect.poll(async () => (await lines(page)).slice(-2).map((line) => line.split(' ').slice(0, 2).join(' '))).toEqual(['Ann: one', 'Ann: two']);
    await again.getByRole('listitem').last().getByRole('button', { name: 'Delete' }).click();
    await expect.poll(() => lines(bob)).toContain('Ann: (deleted)');
    expect(await lines(bob)).toHaveLength(9);
  } finally {
    for (const context of contexts) await context.close();
  }
});
