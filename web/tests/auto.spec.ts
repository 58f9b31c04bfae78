// Automatic calls on the room page: two callers at once, a third visitor, names of runs, and the recorded statistics.
import { readFile } from 'node:fs/promises';
import { expect, test, type Page } from '@playwright/test';
import { isRunName, parseAutoCall } from '../src/pages/rooms/auto.ts';
import { url, violations } from './page.ts';

test.describe.configure({ timeout: 120_000 });

const PATIENCE = { timeout: 40_000 };
let rooms = 0;
const fresh = (): string => `auto-${process.pid}-${++rooms}`;

test('the address of an automatic call is checked', () => {
  const wrong = (query: string): string => {
    const parsed = parseAutoCall(query);
    return parsed && 'wrong' in parsed ? parsed.wrong.join(' ') : `valid: ${JSON.stringify(parsed)}`;
  };
  expect(parseAutoCall('')).toBeUndefined();
  expect(parseAutoCall('?n=free_3')).toBeUndefined();
  expect(parseAutoCall('?call=auto&n=free_3&relay=1&for=20s')).toEqual({ run: 'free_3', relay: true, forMs: 20_000, topology: 'p2p' });
  expect(parseAutoCall('?call=auto&n=loss-10.1_14&for=5m&topology=switch')).toEqual({ run: 'loss-10.1_14', relay: false, forMs: 300_000, topology: 'switch' });
  expect(parseAutoCall('?call=auto&n=free_0')).toMatchObject({ forMs: 300_000 });
  for (const name of ['', 'free', 'free_', '_3', 'a/b_3', '../free_3', 'a..b_3', '.free_3', '=1+1_3', 'fr ee_3', 'frée_3', 'free_x', `${'x'.repeat(70)}_3`]) {
    expect(isRunName(name), name).toBe(false);
    expect(wrong(`?call=auto&n=${encodeURIComponent(name)}`), name).toMatch(/^n=.*expected NAME_ITERATION/);
  }
  expect(wrong(`?call=auto&n=${'x'.repeat(1 << 20)}`).length, 'a short message about a long name').toBeLessThan(400);
  for (const time of ['', '0s', '300', '-1s', '7h', '1e9s', 'x']) expect(wrong(`?call=auto&n=free_3&for=${time}`), time).toMatch(/^for=/);
  expect(wrong('?call=yes&n=a/b&relay=2&for=x&topology=ring').match(/(call|n|relay|for|topology)=/g)).toHaveLength(5);
});

/** Opens the pages of an automatic call at the same instant. */
async function callAt(pages: readonly Page[], room: string, query: string): Promise<void> {
  await Promise.all(pages.map((page) => page.goto(url(`/rooms/${room}?call=auto&${query}`))));
}

test('two callers at once upload their statistics, and a third is refused', async ({ browser }, info) => {
  const context = await browser.newContext({ viewport: { width: 1280, height: 800 }, acceptDownloads: true });
  const [room, run] = [fresh(), `free-${process.pid}_${rooms}`];
  const [one, two, third] = [await context.newPage(), await context.newPage(), await context.newPage()];
  await callAt([one, two], room, `n=${run}&for=14s&relay=1`);
  for (const page of [one, two]) await expect(page.getByText(`Automatic call ${run}:`)).toBeVisible(PATIENCE);
  await callAt([third], room, `n=${run}&for=14s`);
  await expect(third.getByRole('alert')).toContainText('the room is full: a room of the topology `p2p` has at most 2 participants', PATIENCE);
  expect(await violations(third)).toEqual([]);

  // The figures over time are drawn while the call goes on.
  const rate = one.getByRole('img', { name: /^Rate over time, now: Received [1-9][\d,]* kbit\/s, Sent [1-9]/ });
  await expect(rate).toBeVisible(PATIENCE);
  await expect(one.getByRole('img', { name: /^Round-trip time over time, now: RTT \d/ })).toBeVisible(PATIENCE);
  const drawn = await rate.locator('canvas').evaluate((canvas: HTMLCanvasElement) => new Set(new Uint32Array(canvas.getContext('2d')!.getImageData(0, 0, canvas.width, canvas.height).data.buffer)).size);
  expect(drawn, 'colors of lines, grid and text').toBeGreaterThan(10);
  await one.screenshot({ path: info.outputPath('auto-call.png') });

  for (const page of [one, two]) await expect(page.getByText(/The call has ended after 14 s\. \d+ rows of this page are uploaded\./)).toBeVisible(PATIENCE);

  await third.goto(url('/rooms'));
  await third.getByRole('link', { name: run }).click();
  await expect(third.getByText(/rows of 2 participants/)).toBeVisible(PATIENCE);
  await expect(third.getByRole('img', { name: /^Rate over time/ })).toHaveCount(2);
  expect(await violations(third)).toEqual([]);
  await third.screenshot({ path: info.outputPath('run.png'), fullPage: true });
  const saved = async (name: string): Promise<[string, string]> => {
    const [download] = await Promise.all([third.waitForEvent('download'), third.getByRole('button', { name }).click()]);
    return [download.suggestedFilename(), await readFile((await download.path())!, 'utf8')];
  };
  const [csvName, csv] = await saved('Save as CSV');
  const [jsonName, json] = await saved('Save as JSON');
  expect([csvName, jsonName]).toEqual([`${run}.csv`, `${run}.json`]);
  const { rows } = JSON.parse(json) as { rows: { at: string; participant: string; path: string; kind?: string; direction?: string; rate_kbps: number; rtt_ms?: number; setup_ms?: number }[] };
  expect(csv.trim().split('\r\n')).toHaveLength(rows.length + 1);
  expect(csv).toMatch(/^run,room,participant,participant_name,at,link,path,/);
  const people = [...new Set(rows.map(({ participant }) => participant))];
  expect(people.length).toBeGreaterThanOrEqual(2);
  for (const one of people.slice(0, 2)) {
    const own = rows.filter(({ participant, direction, kind }) => participant === one && direction === 'in' && kind === 'video');
    expect(own.length, 'a row per second').toBeGreaterThan(6);
    expect(Math.max(...own.map(({ rate_kbps }) => rate_kbps))).toBeGreaterThan(50);
    expect(own.some(({ setup_ms }) => setup_ms! > 0)).toBe(true);
  }
  expect([...new Set(rows.map(({ path }) => path))], 'only through the relay').toEqual(['relay']);
  console.log(JSON.stringify({ auto: run, rows: rows.length, last: rows.findLast(({ direction, kind }) => direction === 'in' && kind === 'video') }));
  await context.close();
});

test('a wrong address is explained, whatever is in it', async ({ page }) => {
  for (const [query, text] of [
    ['n=..%2Fetc_1', 'n=“../etc_1”: expected NAME_ITERATION'],
    [`n=${'x'.repeat(6_000)}_1`, '… (6002 characters)'],
    ['n=free_1&for=2days', 'for=“2days”: expected a duration'],
    ['n=%3Cimg%20src%3Dx%3E_1', 'n=“<img src=x>_1”'],
  ] as const) {
    await page.goto(url(`/rooms/${fresh()}?call=auto&${query}`));
    await expect(page.getByRole('alert')).toContainText(text);
  }
  expect(await violations(page)).toEqual([]);
  // The server refuses an address that is longer than any name.
  const response = await fetch(url(`/rooms/${fresh()}?call=auto&n=${'x'.repeat(1 << 20)}_1`)).then(({ status }) => status, () => 0);
  expect([0, 414, 431]).toContain(response);
});
