// Operator pages of a server with tokens: slow readers, members, and names with HTML in them, which stay text.
import { expect, test, type Page } from '@playwright/test';
import { BEST, violations } from './page.ts';
import { serve, type Server } from './server.ts';
import { inspect, keys, publish, publishMany, read, type Keys } from './ui-server.ts';

const [ANN, BOB, KEY] = ['<b>ann</b>', 'bob', '<u>key</u>'];
let key: Keys, server: Server;
let ops: string, ann: string, bob: string;

test.beforeAll(async () => {
  key = keys();
  server = await serve(undefined, [...key.args, '--set', 'namespaces.team.roster=true', '--set', 'namespaces.team.roster_grace=100ms', '--set', 'namespaces.fleet.state=true']);
  const everything = ['--publish', '#', '--subscribe', '#', '--history', '#', '--presence', '#'];
  ops = key.token('--sub', 'ops', '--admin', ...everything);
  [ann, bob] = [key.token('--sub', ANN, '--subscribe', '#'), key.token('--sub', BOB, '--subscribe', '#')];
});

test.afterAll(async () => {
  await server?.stop();
  key?.remove();
});

const open = (page: Page, path: string) => page.goto(`${server.url}${path}#token=${ops}`);
const rows = (page: Page) => page.locator('tbody tr');

test('slow readers have a backlog, a time and a policy, and the server filters them', async ({ page }, info) => {
  const readers = await Promise.all([read(server.url, 'bulk', { isSlow: true, token: ann }), read(server.url, 'bulk?policy=latest', { isSlow: true, token: bob })]);
  try {
    await open(page, '/ui/slow');
    await expect(page.getByText('Every reader is up to date')).toBeVisible();
    // The buffers of the kernel take some megabytes.
    for (let i = 0; i < 80 && (await rows(page).count()) < 2; i++) await publishMany(server.url, 'bulk', 10, 'x'.repeat(60_000), ops);
    await expect(rows(page)).toHaveCount(2);
    const slow = rows(page).filter({ hasText: ANN });
    const [behind, queue, since] = [0, 1, 2].map((column) => slow.locator('td.num').nth(column));
    await expect(slow).toContainText('bulk');
    await expect(slow.locator('.badge').first()).toHaveText('every');
    await expect(slow).toContainText('blocked');
    await expect(behind!).toHaveText(/^[1-9][\d,]*$/);
    await expect(queue!).toHaveText(/^[\d.]+ [kM]B$/);
    // The time grows, also while nothing is published.
    await expect(since!).toHaveText(/^([2-9]|\d\d) s$|min/);
    await expect(rows(page).filter({ hasText: BOB }).locator('.badge').first()).toHaveText('latest');
    await expect(page.locator('tbody b')).toHaveCount(0);
    await inspect(page, info, 'slow');

    const asked = page.waitForRequest((request) => request.url().endsWith('/v1/admin/follow') && !!request.postData()?.includes('subject=bob'));
    await page.getByRole('textbox', { name: 'Filter by subject' }).fill(BOB);
    await asked;
    await expect(page.getByText('1 of 1 readers')).toBeVisible();
    await expect(rows(page)).toHaveCount(1);
    await expect(rows(page)).toContainText(BOB);
    await expect(page).toHaveURL(/subject=bob/);
    await page.getByRole('textbox', { name: 'Filter by channel' }).fill('other');
    await expect(page.getByText('No slow reader matches this filter')).toBeVisible();
    expect(await violations(page, BEST)).toEqual([]);
    await page.getByRole('link', { name: 'Show all slow readers' }).click();
    await expect(rows(page)).toHaveCount(2);
  } finally {
    for (const reader of readers) reader.close();
  }
});

test('members of a channel are listed until they leave', async ({ page }, info) => {
  const readers = await Promise.all([ann, bob, bob].map((token) => read(server.url, 'team/1', { token })));
  try {
    await open(page, '/ui/channels?channel=team/1');
    await page.getByRole('tab', { name: 'Members' }).click();
    const members = page.getByRole('region', { name: 'Members', exact: true }).locator('tbody tr');
    await expect(members).toHaveCount(2);
    const connections = (name: string) => members.filter({ hasText: name }).locator('td').first();
    await expect(connections(ANN)).toHaveText('1');
    await expect(connections(BOB)).toHaveText('2');
    await expect(members.filter({ hasText: ANN }).locator('td').nth(1)).toHaveText(/ (ms|s|min)$/);
    await expect(page.locator('#panel b')).toHaveCount(0);
    await inspect(page, info, 'members');
    readers[0]!.close();
    await expect(members).toHaveCount(1);
    readers[1]!.close();
    await expect(connections(BOB)).toHaveText('1');
    readers[2]!.close();
    await expect(page.getByText('No members yet')).toBeVisible();
    expect(await violations(page, BEST)).toEqual([]);
  } finally {
    for (const reader of readers) reader.close();
  }
});

test('keys and subjects with HTML are shown as text', async ({ page }, info) => {
  await publish(server.url, 'fleet/1', '{"html": "<i>72</i>"}', { key: KEY, token: ops });
  await open(page, '/ui/channels?channel=fleet/1');
  const message = page.locator('[data-offset="1"]');
  await expect(message.locator('.badge')).toHaveText(KEY);
  await expect(message.locator('pre')).toContainText('<i>72</i>');
  await page.getByRole('tab', { name: 'State' }).click();
  const entry = page.getByRole('region', { name: 'State', exact: true }).locator('tbody tr');
  await expect(entry.getByRole('rowheader')).toHaveText(KEY);
  await expect(entry).toContainText('<i>72</i>');
  await expect(page.locator('#panel :is(u, i, b)')).toHaveCount(0);
  await inspect(page, info, 'state');

  const reader = await read(server.url, 'fleet/1', { token: ann });
  try {
    await page.goto(`${server.url}/ui/connections?subject=${encodeURIComponent(ANN)}&channel=fleet/1`);
    await expect(rows(page)).toHaveCount(1);
    await expect(rows(page)).toContainText(ANN);
    await rows(page).locator('.open').click();
    await expect(page.getByRole('dialog')).toContainText(ANN);
    await expect(page.locator(':is(tbody, dialog) b')).toHaveCount(0);
    await inspect(page, info, 'connection');
  } finally {
    reader.close();
  }
});
