// A phone connects over the network to a server with TLS and tokens, set up as the README describes.
import { execFileSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { networkInterfaces, tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, test, type Page } from '@playwright/test';
import type {} from '../src/pages/carcare/window';
import { BEST, LOOKS, violations } from './page.ts';
import { binary, serve, simulate, type Server } from './server.ts';

const phone = LOOKS.find((look) => look.name === 'phone light')!;
test.use({ viewport: phone.viewport, hasTouch: phone.hasTouch, colorScheme: phone.colorScheme, ignoreHTTPSErrors: true });

// The address that a phone would use; loopback if this machine has no network.
const host = Object.values(networkInterfaces()).flat().find((a) => a && !a.internal && a.family === 'IPv4')?.address ?? '127.0.0.1';

let home: string, env: NodeJS.ProcessEnv, server: Server, fleet: { stop(): Promise<void> };
const create = (...args: string[]): string =>
  execFileSync(binary(), ['token', 'create', '--key', join(home, 'millrace.key'), ...args], { encoding: 'utf8', env: { ...process.env, ...env } }).trim();

test.beforeAll(async () => {
  home = mkdtempSync(join(tmpdir(), 'millrace-secured-'));
  env = { HOME: home, XDG_DATA_HOME: '' };
  execFileSync(binary(), ['token', 'key', '--out', join(home, 'millrace.key')]);
  server = await serve('0.0.0.0:0', ['--tls-dev', '--set', 'rtc.listen="0.0.0.0:0"', '--set', `auth.keys=["${join(home, 'millrace.key.pub')}"]`], env);
  fleet = simulate(`https://localhost:${new URL(server.url).port}`, 3, { ...env, MILLRACE_TOKEN: create('--sub', 'cars', '--publish', 'cars/#') });
});

test.afterAll(async () => {
  await fleet?.stop();
  await server?.stop();
  if (home) rmSync(home, { recursive: true });
});

for (const via of ['websocket', 'http-stream', 'sse', 'long-poll', 'poll', 'data-channel'] as const) {
  test(`a link with a token works over ${via}`, async ({ page }) => {
    const token = create('--sub', 'phone', '--subscribe', '#', '--history', '#', '--expires', '1day');
    const asked: string[] = [];
    page.on('request', (request) => asked.push(request.url()));
    page.on('websocket', (socket) => asked.push(socket.url()));
    await page.goto(`https://${host}:${new URL(server.url).port}/carcare?car=1&via=${via}#token=${token}`);
    await expect(page.getByRole('meter', { name: 'Speed' })).toHaveAttribute('aria-valuetext', /km\/h/, { timeout: 30_000 });
    await expect.poll(() => page.evaluate(() => window.carcare!.received.filter((r) => r.seq > 0).at(-1)?.transport), { timeout: 20_000 }).toBe(via);
    expect(new URL(page.url()).hash, 'the token is not passed on with the address').toBe('');
    expect(asked.filter((url) => !/^(https|wss|blob|data):/.test(url))).toEqual([]);
    if (via === 'websocket') await page.screenshot({ path: test.info().outputPath('phone.png'), timeout: 20_000 });
  });
}

test('CarCare asks for a token and accepts it', async ({ page }, info) => {
  await page.goto(`https://${host}:${new URL(server.url).port}/carcare?car=1`);
  await expect(page.getByText('This server requires a token')).toBeVisible({ timeout: 20_000 });
  await expect(page.getByRole('button', { name: /^Transport/ })).toContainText('Not connected');
  expect(await page.evaluate(() => window.carcare!.received.length)).toBe(0);
  expect(await violations(page, BEST)).toEqual([]);
  await page.screenshot({ path: info.outputPath('refused.png'), timeout: 20_000 });
  await page.getByRole('button', { name: /^Fleet/ }).click();
  await expect(page.getByText('The server requires a token. Enter a valid token to see the cars.')).toBeVisible();
  await expect(page.getByText('No cars yet')).toHaveCount(0);

  const field = page.getByRole('textbox', { name: 'Token' });
  await field.fill('not a token');
  await page.getByRole('button', { name: 'Continue' }).click();
  await expect(page.getByText('This is not a token')).toBeVisible();
  await field.fill('mistyped');
  await page.getByRole('button', { name: 'Continue' }).click();
  await expect(page.getByText('The server refused this token')).toBeVisible({ timeout: 20_000 });
  // The field also accepts a whole link that contains the token.
  const token = create('--sub', 'phone', '--subscribe', '#', '--history', '#', '--expires', '1day');
  await field.fill(`https://example.org/carcare#token=${token}`);
  await page.getByRole('button', { name: 'Continue' }).click();
  await expect(page.getByRole('meter', { name: 'Speed' })).toHaveAttribute('aria-valuetext', /km\/h/, { timeout: 30_000 });
});

test('an expired token is asked for again, and a token is kept on the device until it is forgotten', async ({ page, context }) => {
  const address = `https://${host}:${new URL(server.url).port}/carcare?car=1`;
  const token = (expires: string) => create('--sub', 'phone', '--subscribe', '#', '--history', '#', '--expires', expires);
  const meter = (tab: Page) => expect(tab.getByRole('meter', { name: 'Speed' })).toHaveAttribute('aria-valuetext', /km\/h/, { timeout: 30_000 });
  await page.goto(`${address}#token=${token('8s')}`);
  await meter(page);
  await expect(page.getByText('The server refused this token')).toBeVisible({ timeout: 60_000 });
  await page.getByRole('textbox', { name: 'Token' }).fill(token('1day'));
  await page.getByLabel('Keep the token on this device').check();
  await page.getByRole('button', { name: 'Continue' }).click();
  await meter(page);
  // A new tab, such as one that a notification opens, has the token.
  const other = await context.newPage();
  await other.goto(address);
  await meter(other);
  await other.getByRole('button', { name: /^Fleet/ }).click();
  await other.locator('summary', { hasText: 'Units and language' }).click();
  await other.getByRole('button', { name: 'Forget the token of this device' }).click();
  await expect(other.getByText('This server requires a token')).toBeVisible({ timeout: 20_000 });
});

for (const path of ['/', '/lab', '/link', '/ball', '/arm', '/gateway/one', '/gateway/one?device'])
  test(`${path} asks for a token`, async ({ page }, info) => {
    await page.goto(`https://${host}:${new URL(server.url).port}${path}`);
    if (path.endsWith('?device') || path === '/arm') await page.getByRole('button', { name: 'Start' }).click();
    await expect(page.getByText('This server requires a token')).toBeVisible({ timeout: 20_000 });
    await expect(page.getByRole('textbox', { name: 'Token' })).toBeVisible();
    expect(await violations(page, BEST)).toEqual([]);
    await page.screenshot({ path: info.outputPath('refused.png'), fullPage: true, timeout: 20_000 });
  });
