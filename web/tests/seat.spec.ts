// A reload of the room page keeps the seat: the same participant, its settings, and a short gap for the others.
import { expect, test, type Browser, type BrowserContext, type Page } from '@playwright/test';
import { url, violations } from './page.ts';

test.describe.configure({ timeout: 120_000 });

const PATIENCE = { timeout: 40_000 };
/** Maximum gap for others on a busy machine, ms. The tests print the gaps. */
const GAP_MAX = 8_000;
let rooms = 0;
const fresh = (): string => `seat-${process.pid}-${++rooms}`;

async function enter(page: Page, room: string, name: string, topology?: string): Promise<void> {
  await page.goto(url(`/rooms/${room}`));
  await page.getByLabel('Your name').fill(name, PATIENCE);
  if (topology) await page.getByLabel('Topology').selectOption(topology);
  await expect(page.getByRole('button', { name: 'Camera' })).not.toContainText('Starting', PATIENCE);
  await page.getByRole('button', { name: 'Join' }).click();
  await expect(page.getByRole('toolbar', { name: 'Call' })).toBeVisible(PATIENCE);
}

interface Shown {
  readonly id: string;
  readonly name: string;
  readonly muted?: boolean;
  readonly away?: boolean;
  readonly resumed?: number;
}

const people = async (room: string): Promise<Shown[]> => ((await (await fetch(url(`/v1/rooms/${room}`))).json()) as { participants: Shown[] }).participants;

/** Returns the number of frames of `name` that the page has shown. */
const frames = (page: Page, name: string): Promise<number> => page.getByLabel(`Video of ${name}`).evaluate((video: HTMLVideoElement) => video.getVideoPlaybackQuality().totalVideoFrames);

/** Measures the longest time without a new frame of `name`, ms. */
const watch = (page: Page, name: string): Promise<void> =>
  page.getByLabel(`Video of ${name}`).evaluate((video: HTMLVideoElement) => {
    const watched = ((window as unknown as { watched: { last: number; longest: number; count: number } }).watched = { last: performance.now(), longest: 0, count: 0 });
    let shown = video.getVideoPlaybackQuality().totalVideoFrames;
    setInterval(() => {
      const { totalVideoFrames } = video.getVideoPlaybackQuality();
      if (totalVideoFrames === shown) return;
      shown = totalVideoFrames;
      const now = performance.now();
      watched.longest = Math.max(watched.longest, now - watched.last);
      watched.last = now;
      watched.count++;
    }, 20);
  });
const watched = (page: Page) => page.evaluate(() => (window as unknown as { watched: { longest: number; count: number } }).watched);

async function meet(browser: Browser, topology: string): Promise<{ room: string; context: BrowserContext; ann: Page; bob: Page }> {
  const context = await browser.newContext({ viewport: { width: 1280, height: 800 } });
  const room = fresh();
  const [ann, bob] = [await context.newPage(), await context.newPage()];
  await enter(ann, room, 'Ann', topology);
  await enter(bob, room, 'Bob');
  await expect.poll(() => frames(ann, 'Bob'), PATIENCE).toBeGreaterThan(10);
  await expect.poll(() => frames(bob, 'Ann'), PATIENCE).toBeGreaterThan(10);
  return { room, context, ann, bob };
}

for (const topology of ['mesh', 'switch', 'mixer'] as const) {
  for (const who of ['first', 'second'] as const) {
    test(`${topology}: the ${who} participant reloads and keeps its seat`, async ({ browser }) => {
      const { room, context, ann, bob } = await meet(browser, topology);
      const [page, other, name, otherName] = who === 'first' ? [ann, bob, 'Ann', 'Bob'] : [bob, ann, 'Bob', 'Ann'];
      const before = (await people(room)).find((one) => one.name === name)!;
      await page.getByRole('button', { name: 'Mic', exact: true }).click();
      await expect.poll(async () => (await people(room)).find(({ id }) => id === before.id)?.muted, PATIENCE).toBe(true);
      await page.getByRole('textbox', { name: 'Message' }).fill('before the reload');
      await page.keyboard.press('Enter');
      await expect(other.getByRole('log')).toContainText('before the reload', PATIENCE);

      await watch(other, name);
      await page.reload();
      await expect(page.getByRole('toolbar', { name: 'Call' })).toBeVisible(PATIENCE);
      const returned_ms = await page.evaluate(() => Math.round(performance.now()));
      const after = await people(room);
      expect(after.map(({ id }) => id).sort(), 'nobody else has joined').toHaveLength(2);
      expect(after.find(({ id }) => id === before.id)).toMatchObject({ name, muted: true, resumed: 1 });
      await expect.poll(async () => (await watched(other)).count, { ...PATIENCE, message: 'the other one sees new frames' }).toBeGreaterThan(30);
      await expect.poll(() => frames(page, otherName), { ...PATIENCE, message: 'the page sees the other one' }).toBeGreaterThan(10);
      const { longest } = await watched(other);
      console.log(JSON.stringify({ seat: topology, who, returned_ms, gap_ms: Math.round(longest) }));
      expect(longest).toBeLessThan(GAP_MAX);
      await expect(other.getByText('Reconnecting…')).toHaveCount(0);
      // The chat of this call, and the settings of the devices.
      await expect(page.getByRole('log')).toContainText('before the reload', PATIENCE);
      await expect(page.getByRole('button', { name: 'Mic', exact: true })).toHaveAttribute('aria-pressed', 'false');
      await expect(page.getByRole('button', { name: 'Camera' })).toHaveAttribute('aria-pressed', 'true');
      await context.close();
    });
  }
}

test('others see that a page reloads, with its last frame', async ({ browser }, info) => {
  const { room, context, ann, bob } = await meet(browser, 'mesh');
  // The new page does not load, so the seat stays empty.
  await ann.route('**/rooms/*', (route) => route.abort());
  await ann.reload().catch(() => {});
  const tile = bob.getByRole('group', { name: 'Ann' });
  await expect(tile.getByText('Reconnecting…')).toBeVisible(PATIENCE);
  await expect(tile.locator('canvas')).toBeVisible();
  const colors = await tile.locator('canvas').evaluate((canvas: HTMLCanvasElement) => new Set(canvas.getContext('2d')!.getImageData(0, 0, canvas.width, canvas.height).data).size);
  expect(colors, 'a picture').toBeGreaterThan(20);
  expect(await violations(bob)).toEqual([]);
  await bob.screenshot({ path: info.outputPath('reconnecting.png') });
  expect((await people(room)).map(({ away }) => away)).toEqual([true, undefined]);
  await expect.poll(async () => (await people(room)).length, { ...PATIENCE, message: 'the seat is free after 15 s' }).toBe(1);
  await context.close();
});

test('a copied tab and a used ticket join as others; leaving voids the seat', async ({ browser }) => {
  const context = await browser.newContext();
  const room = fresh();
  const ann = await context.newPage();
  await ann.addInitScript(() => Object.assign(window, { seat: sessionStorage.getItem(`millrace-seat ${location.pathname.slice(7)}`) }));
  await enter(ann, room, 'Ann', 'mesh');

  // The browser copies the storage of a tab to a tab that it opens.
  const [copy] = await Promise.all([context.waitForEvent('page'), ann.evaluate(() => void window.open(location.href))]);
  await expect(copy.getByRole('button', { name: 'Join' })).toBeVisible(PATIENCE);
  expect(await copy.evaluate(() => sessionStorage.getItem('millrace-devices'))).toBeNull();
  await copy.close();

  await ann.reload();
  await expect(ann.getByRole('toolbar', { name: 'Call' })).toBeVisible(PATIENCE);
  const used = await ann.evaluate(() => (window as unknown as { seat: string | null }).seat);
  expect(used).toContain('ticket');
  const thief = await context.newPage();
  await thief.addInitScript(([room, seat]) => sessionStorage.setItem(`millrace-seat ${room}`, seat!), [room, used] as const);
  await thief.goto(url(`/rooms/${room}`));
  await expect(thief.getByRole('toolbar', { name: 'Call' })).toBeVisible(PATIENCE);
  await expect.poll(async () => (await people(room)).map(({ resumed }) => resumed ?? 0), PATIENCE).toEqual([1, 0]);

  await ann.getByRole('button', { name: 'Leave' }).click();
  await expect(ann.getByRole('heading', { name: 'You have left' })).toBeVisible(PATIENCE);
  await ann.reload();
  await expect(ann.getByRole('button', { name: 'Join' })).toBeVisible(PATIENCE);
  await expect.poll(async () => (await people(room)).length, PATIENCE).toBe(1);
  await context.close();
});
