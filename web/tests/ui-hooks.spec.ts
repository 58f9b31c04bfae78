// The page of hooks and webhooks against a real back end: rows, the circuit breaker, dead letters and their replay.
import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { expect, test, type Page } from '@playwright/test';
import { BEST, violations } from './page.ts';
import { serve, type Server } from './server.ts';
import { expectEvent, inspect, publish } from './ui-server.ts';

/** The back end: its answers, and the payloads of the publications that it has accepted. */
const backEnd = { url: '', hooks: 200, webhooks: 200, accepted: [] as string[] };
const listener = createServer((request, response) => {
  let body = '';
  request.setEncoding('utf8').on('data', (part: string) => (body += part));
  request.on('end', () => {
    const isHook = request.url === '/hooks';
    const status = isHook ? backEnd.hooks : backEnd.webhooks;
    if (!isHook && status === 200) backEnd.accepted.push(...(JSON.parse(body) as { events: { data: string }[] }).events.map(({ data }) => data));
    response.writeHead(status, { 'content-type': 'application/json' }).end('{"allow": true}');
  });
});
let server: Server;

test.beforeAll(async () => {
  await once(listener.listen(0, '127.0.0.1'), 'listening');
  backEnd.url = `http://127.0.0.1:${(listener.address() as AddressInfo).port}`;
  const settings = ['hooks.secrets=["0123456789abcdef"]', `hooks.publish=${backEnd.url}/hooks`, 'hooks.failures_max=3', 'hooks.pause=1h', `webhooks.url=${backEnd.url}/webhooks`, 'webhooks.events=["publication"]', 'webhooks.batch_wait=10ms'];
  server = await serve(undefined, settings.flatMap((setting) => ['--set', setting]));
});

test.afterAll(async () => {
  await server?.stop();
  listener.closeAllConnections();
  listener.close();
});

const list = (page: Page, name: string) => page.getByRole('region', { name, exact: true }).locator('tbody tr');

test('dead letters are shown, and replayed one by one and all together', async ({ page }, info) => {
  backEnd.webhooks = 422;
  const bodies = [1, 2, 3].map((n) => `<b>${n}</b>`);
  for (const body of bodies) await publish(server.url, 'chat/1', JSON.stringify(body));
  await page.goto(`${server.url}/ui/hooks`);
  const letters = list(page, 'Dead letters');
  await expect(letters).toHaveCount(3);
  await expect(letters.first()).toContainText('chat/1');
  await expect(letters.first()).toContainText('422');
  const webhook = list(page, 'Webhooks');
  await expect(webhook).toHaveCount(1);
  await expect(webhook).toContainText(`${backEnd.url}/webhooks`);
  await expect(webhook.locator('td.num').last()).toHaveText('3');
  const event = page.getByRole('button', { name: 'publication', exact: true }).first();
  await event.click();
  await expect(page.locator('pre.payload')).toContainText(bodies[0]!);
  await expect(page.locator('pre b')).toHaveCount(0);
  await inspect(page, info, 'dead letters');
  await event.click();
  await expect(page.locator('pre.payload')).toHaveCount(0);

  backEnd.webhooks = 200;
  await page.getByRole('button', { name: /^Replay publication/ }).first().click();
  await expect(letters).toHaveCount(2);
  expect(backEnd.accepted).toEqual(bodies.slice(0, 1));
  await page.getByRole('button', { name: 'Replay all' }).click();
  const dialog = page.getByRole('dialog', { name: 'Replay all dead letters?' });
  expect(await violations(page, BEST)).toEqual([]);
  await dialog.getByRole('button', { name: 'Replay all' }).click();
  await expect(page.getByText('No dead letters')).toBeVisible();
  expect(backEnd.accepted).toEqual(bodies);
  await expect(webhook.locator('td.num').last()).toHaveText('0');
  expect(await violations(page, BEST)).toEqual([]);
});

test('a hook is shown with its requests, and with an open breaker when the back end fails', async ({ page }, info) => {
  backEnd.webhooks = 200;
  await publish(server.url, 'chat/2', '1');
  await page.goto(`${server.url}/ui/hooks`);
  const hook = list(page, 'Hooks');
  const [requests, failures, p50] = [0, 1, 2].map((column) => hook.locator('td.num').nth(column));
  await expect(hook).toHaveCount(1);
  await expect(hook.getByRole('rowheader')).toHaveText('publish');
  await expect(hook.locator('.badge')).toHaveText('closed');
  await expect(hook).toContainText(`${backEnd.url}/hooks`);
  await expect(requests!).toHaveText(/^[1-9]\d*$/);
  await expect(failures!).toHaveText('0');
  await expect(p50!).toHaveText(/^[\d.]+ (µs|ms)$/);
  backEnd.hooks = 503;
  for (let i = 0; i < 3; i++) expect((await fetch(`${server.url}/v1/channels/chat/2`, { method: 'POST', body: '2' })).status).toBe(503);
  await expect(hook.locator('.badge')).toHaveText('open');
  await expect(failures!).toHaveText('3');
  await inspect(page, info, 'breaker');
  await expectEvent(page, server.url, 'breaker opened');
});
