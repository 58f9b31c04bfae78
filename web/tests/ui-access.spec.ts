// Access to the operator pages: tokens of operators and of users, expired tokens, other origins.
import { execFileSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, test } from '@playwright/test';
import { BEST, violations } from './page.ts';
import { binary, serve, type Server } from './server.ts';
import { figure } from './ui-server.ts';

let home: string, server: Server;
const create = (...args: string[]): string =>
  execFileSync(binary(), ['token', 'create', '--key', join(home, 'millrace.key'), ...args], { encoding: 'utf8' }).trim();

test.beforeAll(async () => {
  home = mkdtempSync(join(tmpdir(), 'millrace-ui-'));
  execFileSync(binary(), ['token', 'key', '--out', join(home, 'millrace.key')]);
  server = await serve(undefined, ['--set', `auth.keys=["${join(home, 'millrace.key.pub')}"]`]);
});

test.afterAll(async () => {
  await server?.stop();
  if (home) rmSync(home, { recursive: true });
});

test('the page asks for a token and accepts one of an operator', async ({ page }, info) => {
  await page.goto(`${server.url}/ui`);
  await expect(page.getByText('This server requires a token')).toBeVisible();
  expect(await violations(page, BEST)).toEqual([]);
  await page.screenshot({ path: info.outputPath('refused.png') });
  const field = page.getByRole('textbox', { name: 'Token' });
  // A user of the application is no operator.
  await field.fill(create('--sub', 'ann', '--subscribe', '#', '--history', '#', '--expires', '1h'));
  await page.getByRole('button', { name: 'Continue' }).click();
  await expect(page.getByText('The server refused this token')).toBeVisible();
  await expect(page.locator('[data-figure]')).toHaveCount(0);
  await field.fill(create('--sub', 'ops', '--admin', '--expires', '1h'));
  await page.getByRole('button', { name: 'Continue' }).click();
  await expect.poll(() => figure(page, 'Connections')).toBeGreaterThan(0);
});

test('a link with the token of an operator opens the page', async ({ page }) => {
  await page.goto(`${server.url}/ui/threads#token=${create('--sub', 'ops', '--admin', '--expires', '1h')}`);
  await expect(page.locator('[data-thread=shard-0]')).toBeVisible();
  expect(new URL(page.url()).hash, 'the token is not passed on with the address').toBe('');
});

test('a token that expires while the page is open is asked for again', async ({ page }) => {
  await page.goto(`${server.url}/ui#token=${create('--sub', 'ops', '--admin', '--expires', '4s')}`);
  await expect.poll(() => figure(page, 'Connections')).toBeGreaterThan(0);
  await expect(page.getByText(/The server refused this token|This server requires a token/)).toBeVisible({ timeout: 20_000 });
  await expect(page.locator('[data-figure]')).toHaveCount(0);
  // A page that is opened with the expired token asks for another one, too.
  await page.reload();
  await expect(page.getByText(/The server refused this token|This server requires a token/)).toBeVisible();
});

test('a page of another origin is no operator of an open server', async ({ page }) => {
  const open = await serve();
  const other = await serve();
  try {
    await page.goto(`${other.url}/healthz`);
    const status = await page.evaluate(async (target) => {
      const answer = await fetch(`${target}/v1/admin/follow`, { method: 'POST', body: '{"request": "overview"}' }).catch(() => undefined);
      return answer?.status ?? 0;
    }, open.url);
    expect([0, 401, 403]).toContain(status);
  } finally {
    await open.stop();
    await other.stop();
  }
});
