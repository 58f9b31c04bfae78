import { execFile } from 'node:child_process';
import { promisify } from 'node:util';
import { expect } from '@playwright/test';
import { rateOf, sampleOf } from '../src/pages/start/traffic.ts';
import { test, url } from './page.ts';

const run = promisify(execFile);

test.beforeEach(async ({ page }) => {
  await page.goto(url('/'));
  await expect(page.getByText('Connected over')).toBeVisible();
});

test('a published message appears in the page', async ({ page, clean }) => {
  const log = page.getByRole('log');
  await page.getByRole('button', { name: 'Publish a message' }).click();
  await expect(log).toContainText('"from this page","nr":1');
  await expect(log).toContainText('ms round trip');
  await page.getByRole('button', { name: 'Publish a message' }).click();
  await expect(log.getByRole('article').first()).toContainText('"nr":2');
});

test('every curl command works unchanged', async ({ page }) => {
  const [publish, poll, longPoll, events] = await page.getByRole('tabpanel', { name: 'curl' }).locator('pre').allInnerTexts();
  const shell = async (line: string) => (await run('sh', ['-c', line.replace(/^curl /, 'curl -sS --max-time 10 ')])).stdout;

  const held = shell(longPoll!);
  const streamed = run('sh', ['-c', `${events!.replace(/^curl /, 'curl -sS --max-time 3 ')} || true`]);
  // Both readers must be connected before the first message is published.
  const channel = /channels\/(\S+?)'?$/.exec(poll!)![1]!;
  await expect.poll(async () => ((await (await page.request.get(url(`/v1/presence/${channel}`))).json()) as { count: number }).count).toBeGreaterThanOrEqual(3);

  expect(await shell(publish!)).toContain('"position"');
  expect(await shell(poll!)).toContain('{"hello":"curl"}');
  expect(await held).toContain('{"hello":"curl"}');
  expect((await streamed).stdout).toContain('data: {"hello":"curl"}');
  await expect(page.getByRole('log')).toContainText('{"hello":"curl"}');
});

test('the EventSource code works in a page', async ({ page, clean }) => {
  await page.getByRole('tab', { name: 'EventSource' }).click();
  const [listen, publish] = await page.getByRole('tabpanel', { name: 'EventSource' }).locator('pre').allInnerTexts();
  const logged = page.waitForEvent('console', (message) => message.text().includes('{"hello":"fetch"}'));
  await page.evaluate(`(async () => { ${listen}; await new Promise((r) => (source.onopen = r)); ${publish} })()`);
  expect((await logged).text()).toMatch(/^\S+:\d+ /);
});

test('tabs follow the arrow keys', async ({ page, clean }) => {
  await page.getByRole('tab', { name: 'curl' }).focus();
  await page.keyboard.press('ArrowRight');
  await expect(page.getByRole('tab', { name: 'EventSource' })).toBeFocused();
  await expect(page.getByRole('tabpanel', { name: 'EventSource' })).toBeVisible();
  await page.keyboard.press('ArrowLeft');
  await page.keyboard.press('ArrowLeft');
  await expect(page.getByRole('tab', { name: 'SDK' })).toBeFocused();
});

test('loopback shows secure steps, a network shows a code', async ({ page }) => {
  const { port } = new URL(url('/'));
  const phone = page.getByRole('list').filter({ hasText: 'Create a key that signs tokens' });
  await expect(phone.getByRole('listitem')).toHaveCount(3);
  await expect(phone).toContainText(`millrace serve --listen 0.0.0.0:${port} --tls-dev --set 'auth.keys=["millrace.key.pub"]'`);
  await expect(phone).toContainText(`:${port}/carcare#token=$(millrace token create`);
  await expect(page.getByText('--insecure')).toHaveCount(0);
  await expect(page.getByRole('img', { name: /^QR code/ })).toHaveCount(0);
  // The same page, with the listen addresses of other servers.
  let listen: string[] = [];
  await page.route('**/v1/info', async (route) => {
    const info = (await (await route.fetch()).json()) as object;
    await route.fulfill({ json: { ...info, listen } });
  });
  listen = ['http://127.0.0.1:8080', 'http://192.168.1.20:8080'];
  await page.reload();
  await expect(page.getByRole('img', { name: 'QR code for http://192.168.1.20:8080/carcare' })).toBeVisible();
  await expect(page.getByText('millrace serve')).toHaveCount(0);

  listen = ['https://127.0.0.1:8443'];
  await page.reload();
  await expect(page.getByText('--listen 0.0.0.0:8443', { exact: true })).toBeVisible();
  await expect(page.getByText('token key')).toHaveCount(0);

  listen = ['http://localhost:8080'];
  await page.reload();
  await expect(page.getByText('This machine has no network address')).toBeVisible();
  await expect(page.getByText('millrace serve')).toHaveCount(0);
});

test('the first message is visible without scrolling', async ({ page }) => {
  await page.setViewportSize({ width: 1280, height: 800 });
  await expect(page.getByRole('button', { name: 'Publish a message' })).toBeInViewport({ ratio: 1 });
});

test.describe('phone', () => {
  test.use({ viewport: { width: 390, height: 844 }, hasTouch: true });

  test('the first command is visible without scrolling', async ({ page }) => {
    await expect(page.getByRole('heading', { name: 'First message in 30 seconds' })).toBeInViewport({ ratio: 1 });
    await expect(page.getByRole('tabpanel', { name: 'curl' }).locator('pre').first()).toBeInViewport({ ratio: 1 });
    for (const tile of await page.getByRole('region', { name: 'Try it' }).getByRole('link').all()) {
      const box = (await tile.boundingBox())!;
      expect(Math.min(box.width, box.height)).toBeGreaterThanOrEqual(44);
    }
  });
});

test('the traffic of the server is shown in figures', async ({ page, clean }) => {
  const rate = async () => Number((await page.locator('[data-figure=rate]').textContent())?.replace(',', ''));
  // The simulated cars of the tests publish all the time.
  await expect.poll(rate).toBeGreaterThan(5);
  const before = { at: 1_000, readers: 1, channels: 1, published: 40 };
  expect(sampleOf('# HELP x\nmillrace_connections{transport="sse"} 2\nmillrace_connections{transport="polling"} 1\nmillrace_connections_total{transport="sse"} 9\nmillrace_channels_open 4\nmillrace_publications_total 50\n', 3_000)).toEqual({ at: 3_000, readers: 3, channels: 4, published: 50 });
  expect(rateOf(before, { ...before, at: 3_000, published: 50 })).toBe(5);
  expect([rateOf(undefined, before), rateOf(before, before)]).toEqual([undefined, undefined]);
});

test('the copy button copies a command', async ({ page, context }) => {
  await context.grantPermissions(['clipboard-read', 'clipboard-write']);
  await page.getByRole('button', { name: 'Copy Publish', exact: true }).first().click();
  expect(await page.evaluate(() => navigator.clipboard.readText())).toMatch(/^curl -d '\{"hello":"curl"\}' http/);
});

test('the start page registers no service worker', async ({ page }) => {
  expect(await page.evaluate(async () => (await navigator.serviceWorker.getRegistrations()).length)).toBe(0);
});
