// The page of rooms: a call of two tabs with cameras through the SFU, and one room among more than the page shows.
import { expect, test } from '@playwright/test';
import { BEST, violations } from './page.ts';
import { join, openBlankPage } from './room-page.ts';
import { serve, type Server } from './server.ts';
import { inspect } from './ui-server.ts';

const ANN = '<b>Ann</b>';
let server: Server;
// Participants without a page send no reports.
test.beforeAll(async () => (server = await serve(undefined, ['--set', 'rooms.silence_max=1h'])));
test.afterAll(() => server?.stop());

test('a call through the SFU is shown with its participants, links and tracks', async ({ browser, page }, info) => {
  const context = await browser.newContext();
  try {
    const tabs = [await openBlankPage(context, server.url), await openBlankPage(context, server.url)];
    const names = [ANN, 'Bob'];
    for (const [i, tab] of tabs.entries()) await join(tab, 'call', { topology: 'switch', name: names[i]! });
    await page.goto(`${server.url}/ui/rooms`);
    const room = page.locator('tbody tr', { hasText: 'call' });
    await expect(room.locator('.badge')).toHaveText('switch');
    await expect(room.locator('td.num')).toHaveText(['2', '2']);
    await inspect(page, info, 'rooms');
    await room.getByRole('link', { name: 'call' }).click();

    const members = page.getByRole('region', { name: 'Measured by the SFU', exact: true }).locator('tbody tr');
    await expect(members).toHaveCount(2);
    const member = members.filter({ has: page.getByRole('rowheader', { name: ANN }) });
    const [sends, receives] = [4, 5].map((column) => member.locator('td').nth(column));
    await expect(member.locator('.badge').last()).toHaveText('connected');
    await expect(sends!).toHaveText(/video: [\d.]+ [kM]?bit\/s/);
    const packets = async (): Promise<number> => Number(/^video of Bob.*: ([\d,]+) packets/.exec((await receives!.textContent()) ?? '')?.[1]?.replaceAll(',', '') ?? NaN);
    await expect.poll(packets).toBeGreaterThan(10);
    const before = await packets();
    await expect.poll(packets).toBeGreaterThan(before);
    const participants = page.getByRole('region', { name: 'Participants', exact: true });
    await expect(participants).not.toContainText('no report yet');
    await expect(participants.locator('tbody tr', { hasText: ANN })).toContainText(/SFU.*bit\/s/);
    await expect(page.locator('tbody b')).toHaveCount(0);
    await inspect(page, info, 'room');

    for (const tab of tabs) await tab.evaluate(() => window.pageState.room.leave());
    await expect(page.getByText('This room is closed')).toBeVisible();
    await expect(page.getByRole('link', { name: 'Join it' })).toHaveAttribute('href', '/rooms/call');
    expect(await violations(page, BEST)).toEqual([]);
  } finally {
    await context.close();
  }
});

test('a room is found among more than the page shows', async ({ page }, info) => {
  const enter = async (room: string): Promise<void> => expect((await fetch(`${server.url}/v1/rooms/${room}/participants`, { method: 'POST', body: '{}' })).status).toBe(201);
  await Promise.all(Array.from({ length: 60 }, (_, i) => enter(`class-${i + 10}`)));
  await enter('class-42');
  await page.goto(`${server.url}/ui/rooms?limit=50`);
  const rows = page.locator('tbody tr');
  await expect(rows).toHaveCount(50);
  await expect(rows.first()).toContainText('class-42');
  await expect(rows.first().locator('td.num').first()).toHaveText('2');
  await expect(page.getByText('50 of 60 rooms')).toBeVisible();
  await expect(rows.filter({ hasText: 'class-69' })).toHaveCount(0);
  await page.keyboard.press('/');
  await page.keyboard.type('CLASS-69');
  await expect(rows).toHaveCount(1);
  await expect(rows).toContainText('class-69');
  await expect(page.getByText('1 of 1 rooms')).toBeVisible();
  await inspect(page, info, 'found');
  await page.getByRole('textbox', { name: 'Part of the name' }).fill('<b>');
  await expect(page.getByText('No room matches this filter')).toBeVisible();
  expect(await violations(page, BEST)).toEqual([]);
  await page.getByRole('link', { name: 'Show all rooms' }).click();
  await expect(rows).toHaveCount(60);
});
