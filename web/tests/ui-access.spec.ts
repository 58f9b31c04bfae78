// Access to the operator pages: tokens of operators and of users, expired tokens, the admin listener, other origins.
import { expect, test, type Page } from '@playwright/test';
import { BEST, violations } from './page.ts';
import { serve, type Server } from './server.ts';
import { figure, inspect, keys, read, type Keys } from './ui-server.ts';

const ADMIN = 'token-of-the-admin-listener';
let key: Keys, server: Server;
const create = (...flags: string[]): string => key.token(...flags);

test.beforeAll(async () => {
  key = keys();
  server = await serve(undefined, key.args);
});

test.afterAll(async () => {
  await server?.stop();
  key?.remove();
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

test('the admin listener serves the pages, which ask for its token', async ({ page }, info) => {
  const operated = await serve(undefined, ['--set', 'admin.listen=127.0.0.1:0'], { MILLRACE_ADMIN__TOKEN: ADMIN });
  try {
    const admin = await operated.admin;
    await page.goto(`${admin}/ui`);
    await expect(page.getByText('This server requires a token')).toBeVisible();
    await inspect(page, info, 'admin listener');
    const field = page.getByRole('textbox', { name: 'Token' });
    await field.fill(`${ADMIN}-2`);
    await page.getByRole('button', { name: 'Continue' }).click();
    await expect(page.getByText('The server refused this token')).toBeVisible();
    await expect(page.locator('[data-figure]')).toHaveCount(0);
    await field.fill(ADMIN);
    await page.getByRole('button', { name: 'Continue' }).click();
    await expect.poll(() => figure(page, 'Connections')).toBeGreaterThan(0);
    await expect(page.locator('[data-status=Live]')).toBeVisible();
    expect(await violations(page, BEST)).toEqual([]);

    // The token permits everything on channels, too.
    await page.goto(`${admin}/ui/channels?channel=ops/1`);
    await page.getByRole('textbox', { name: /^Message/ }).fill('"hello"');
    await page.getByRole('button', { name: 'Publish' }).click();
    await expect(page.locator('[data-offset="1"]')).toContainText('hello');
    const reader = await read(operated.url, 'ops/1');
    await page.goto(`${admin}/ui/connections?channel=ops/1`);
    await page.locator('tbody .open').click();
    await page.getByRole('dialog').getByRole('button', { name: 'Disconnect' }).click();
    await page.getByRole('dialog', { name: /^Disconnect/ }).getByRole('button', { name: 'Disconnect' }).click();
    await reader.ended;
  } finally {
    await operated.stop();
  }
});

/** How a page sends a request. */
type Way = Pick<RequestInit, 'mode' | 'credentials'> & { readonly headers?: Record<string, string> };

/** Sends an operator request from the page, which may not be able to read the answer. */
const send = (page: Page, target: string, body: object, init: Way = {}): Promise<void> =>
  page.evaluate(async ([target, body, init]) => void (await fetch(target, { method: 'POST', body, ...init }).catch(() => {})), [target, JSON.stringify(body), init] as const);

test('a server obeys its own page, and no page of another origin', async ({ page }) => {
  const [own, other] = await Promise.all([serve(), serve()]);
  const reader = await read(own.url, 'cars/1');
  let isOpen = true;
  void reader.ended.then(() => (isOpen = false));
  /** Asked from a page of the server itself. */
  const get = <T>(path: string): Promise<T> => page.evaluate((path) => fetch(path).then((answer) => answer.json() as Promise<T>), `/v1/admin/${path}`);
  try {
    await page.goto(`${own.url}/healthz`);
    const { nodes } = await get<{ nodes: { node: string }[] }>('nodes');
    const node = nodes[0]!.node;
    const orders: [string, object][] = [['disconnect', { transport: 'sse' }], ['drain', { node }]];
    // The browser sends these requests without a preflight, and hides only the answer.
    const ways: Way[] = [{}, { mode: 'no-cors' }, { mode: 'no-cors', credentials: 'include' }, { headers: { 'content-type': 'application/json' } }];
    const answers: string[] = [];
    page.on('response', (response) => answers.push(`${response.request().method()} ${response.status()}`));
    await page.goto(`${other.url}/healthz`);
    for (const [path, body] of orders) for (const way of ways) await send(page, `${own.url}/v1/admin/${path}`, body, way);
    expect(answers.filter((answer) => answer.startsWith('POST')).length, 'the requests have reached the server').toBeGreaterThanOrEqual(4);
    expect(isOpen, 'the reader is still connected').toBe(true);
    expect((await fetch(`${own.url}/readyz`)).status, 'the node does not drain').toBe(200);
    // No question of the other page was answered, so the server knows of no event but its start.
    await page.goto(`${own.url}/healthz`);
    const { events } = await get<{ events: { kind: string }[] }>('events');
    expect(events.map(({ kind }) => kind)).toEqual(['started']);
    expect((await get<{ total: number }>('connections?transport=sse')).total).toBe(1);
    // The same requests of its own page have their effects.
    await send(page, '/v1/admin/disconnect', { transport: 'sse' });
    await reader.ended;
    await send(page, '/v1/admin/drain', { node });
    await expect.poll(() => fetch(`${own.url}/readyz`).then(({ status }) => status, () => 0)).not.toBe(200);
  } finally {
    reader.close();
    await Promise.all([own.stop(), other.stop()]);
  }
});
