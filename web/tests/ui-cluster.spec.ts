// The operator pages of two real nodes on one Redis: round trips, drains of the other node, its connections, its death.
import { execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { createServer, type AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { createInterface } from 'node:readline';
import { expect, test, type Page } from '@playwright/test';
import { end, serve, type Server } from './server.ts';
import { expectEvent, inspect, read } from './ui-server.ts';

const REDIS = 'redis-server';
const isInstalled = (): boolean => {
  try {
    return execFileSync(REDIS, ['--version']).length > 0;
  } catch {
    return false;
  }
};
test.skip(!isInstalled(), `skipped: ${REDIS} is not installed, so no test saw a page of two nodes (scripts/setup.sh installs it)`);

async function redis(): Promise<{ url: string; stop(): Promise<void> }> {
  const probe = createServer().listen(0, '127.0.0.1');
  await once(probe, 'listening');
  const { port } = probe.address() as AddressInfo;
  await once(probe.close(), 'close');
  const child = spawn(REDIS, ['--port', String(port), '--bind', '127.0.0.1', '--save', '', '--appendonly', 'no'], { stdio: ['ignore', 'pipe', 'inherit'], cwd: tmpdir() });
  await new Promise<void>((resolve, reject) => {
    createInterface({ input: child.stdout }).on('line', (line) => line.includes('Ready to accept connections') && resolve());
    child.once('exit', (code) => reject(new Error(`${REDIS} ended with ${code}`)));
  });
  return { url: `redis://127.0.0.1:${port}`, stop: () => end(child) };
}

let engine: Awaited<ReturnType<typeof redis>>, own: Server, other: Server;

test.beforeAll(async () => {
  engine = await redis();
  const node = () => serve(undefined, ['--engine', engine.url, '--set', 'drain.announce=1h'], { MILLRACE_SERVER__SECRET: '0123456789abcdef0123456789abcdef' });
  [own, other] = await Promise.all([node(), node()]);
});

test.afterAll(async () => {
  // Without an orderly end: both would wait for `drain.announce`.
  await Promise.all([own?.kill(), other?.kill()]);
  await engine?.stop();
});

const cards = (page: Page) => page.locator('[data-node]');
const cardOfOther = (page: Page) => cards(page).filter({ hasNotText: 'this node' });
const status = (server: Server) => fetch(`${server.url}/readyz`).then((answer) => answer.status);

test('the other node is drained, and its drain is cancelled', async ({ page }, info) => {
  const readers = await Promise.all([1, 2, 3].map(() => read(other.url, 'cars/1')));
  try {
    await page.goto(`${own.url}/ui/cluster`);
    await expect(cards(page)).toHaveCount(2);
    await expect(cards(page).first()).toContainText('this node');
    const card = cardOfOther(page);
    const figure = (label: string) => card.locator('dl > div', { hasText: label }).locator('dd');
    await expect(figure('Connections')).toHaveText('3');
    await expect(figure('Engine (redis:')).toHaveText(/^[\d.]+ (µs|ms)$/);
    await expect(figure('Round trip')).toHaveText(/^[\d.]+ (µs|ms)$/);
    await inspect(page, info, 'two nodes');

    await card.getByRole('button', { name: /^Drain / }).click();
    const drain = page.getByRole('dialog', { name: /^Drain / });
    await expect(drain).toContainText('its 3 connections');
    await expect(drain).not.toContainText('There is no other node');
    await expect(drain).not.toContainText('This page is connected to this node');
    await drain.getByRole('button', { name: 'Drain', exact: true }).click();
    await expect.poll(() => status(other)).toBe(503);
    await expect(card).toContainText('draining');
    expect(await status(own)).toBe(200);
    await inspect(page, info, 'one drains');

    await card.getByRole('button', { name: /^Cancel the drain of / }).click();
    await page.getByRole('dialog', { name: /^Cancel the drain of / }).getByRole('button', { name: 'Cancel the drain' }).click();
    await expect.poll(() => status(other)).toBe(200);
    await expect(card).toContainText('ready');
    await expectEvent(page, own.url, 'drain cancelled');
  } finally {
    for (const reader of readers) reader.close();
  }
});

test('a connection of the other node is listed and disconnected', async ({ page }) => {
  const channel = `ui/${crypto.randomUUID()}`;
  const reader = await read(other.url, channel);
  await page.goto(`${own.url}/ui/cluster`);
  await expect(cards(page)).toHaveCount(2);
  const node = (await cardOfOther(page).getAttribute('data-node'))!;
  await page.goto(`${own.url}/ui/connections?channel=${channel}`);
  const row = page.locator('tbody tr');
  await expect(row).toHaveCount(1);
  await expect(row.locator('.open')).toHaveText(new RegExp(`^${node}-`));
  await row.locator('.open').click();
  await page.getByRole('dialog').getByRole('button', { name: 'Disconnect' }).click();
  await page.getByRole('dialog', { name: /^Disconnect/ }).getByRole('button', { name: 'Disconnect' }).click();
  await reader.ended;
});

test('a dead node is named as missing, and then left out', async ({ page }) => {
  await page.goto(`${own.url}/ui/cluster`);
  await expect(cards(page)).toHaveCount(2);
  const node = (await cardOfOther(page).getAttribute('data-node'))!;
  await other.kill();
  await expect(page.getByText(`No answer from node ${node}.`)).toBeVisible();
  await expect(cards(page)).toHaveCount(1);
  await expect(page.getByText('No answer from node')).toHaveCount(0);
  await expect(page.getByText('One node serves all clients.')).toBeVisible();
});
