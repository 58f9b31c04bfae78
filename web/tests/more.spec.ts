// The room page beside tiles and chat: hand, lock, removal, pin, devices, size of the video, and lists.
import { expect, test, type Browser, type BrowserContext, type Page, type TestInfo } from '@playwright/test';
import { url, violations } from './page.ts';

test.describe.configure({ timeout: 120_000 });

const PATIENCE = { timeout: 40_000 };
let rooms = 0;
const fresh = (): string => `more-${process.pid}-${++rooms}`;

async function enter(page: Page, room: string, name: string): Promise<void> {
  await page.goto(url(`/rooms/${room}`));
  await page.getByLabel('Your name').fill(name, PATIENCE);
  await expect(page.getByRole('button', { name: 'Camera' })).not.toContainText('Starting', PATIENCE);
  await page.getByRole('button', { name: 'Join' }).click();
  await expect(page.getByRole('toolbar', { name: 'Call' })).toBeVisible(PATIENCE);
}

async function meet(browser: Browser, look: object = {}): Promise<{ room: string; context: BrowserContext; ann: Page; bob: Page }> {
  const context = await browser.newContext({ viewport: { width: 1280, height: 800 }, ...look });
  const room = fresh();
  const [ann, bob] = [await context.newPage(), await context.newPage()];
  await enter(ann, room, 'Ann');
  await enter(bob, room, 'Bob');
  return { room, context, ann, bob };
}

/** Opens the list of actions of a participant, and selects one. */
async function act(page: Page, name: string, action: string): Promise<void> {
  await page.getByRole('button', { name: `Options for ${name}` }).click();
  await page.getByRole('button', { name: action }).click();
}

async function check(page: Page, what: string, info: TestInfo): Promise<void> {
  for (const colorScheme of ['light', 'dark'] as const) {
    await page.emulateMedia({ colorScheme });
    expect(await violations(page, undefined, ['region', 'label-content-name-mismatch', 'heading-order']), `${what}, ${colorScheme}`).toEqual([]);
    await page.screenshot({ path: info.outputPath(`${what}-${colorScheme}.png`) });
  }
  const sideways = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
  expect(sideways, `${what}: no sideways scrolling`).toBeLessThanOrEqual(0);
}

test('hands are raised by keyboard, and listed in their order', async ({ browser }, info) => {
  const { context, ann, bob } = await meet(browser);
  for (const page of [bob, ann]) {
    await page.getByRole('button', { name: 'More' }).press('Enter');
    await page.getByRole('button', { name: 'Raise hand' }).press('Space');
    await expect(page.getByRole('button', { name: 'Lower hand' })).toBeVisible(PATIENCE);
  }
  await expect(ann.getByRole('group', { name: 'Bob' })).toContainText('Hand raised', PATIENCE);
  const hands = bob.getByRole('region', { name: 'Raised hands' }).getByRole('listitem');
  await expect(hands).toHaveText(['You', 'Ann'], PATIENCE);
  await check(bob, 'more', info);
  await bob.getByRole('button', { name: 'Lower hand' }).click();
  await expect(ann.getByRole('group', { name: 'Bob' })).not.toContainText('Hand raised', PATIENCE);
  await context.close();
});

test('the host locks the room and removes a participant', async ({ browser }, info) => {
  const { room, context, ann, bob } = await meet(browser);
  await bob.getByRole('button', { name: 'More' }).click();
  await expect(bob.getByRole('button', { name: 'Lock room' }), 'a guest cannot').toHaveCount(0);
  await ann.getByRole('button', { name: 'More' }).click();
  await ann.getByRole('button', { name: 'Lock room' }).click();
  await expect(bob.getByText(/^Locked · 2 people/)).toBeVisible(PATIENCE);
  const third = await context.newPage();
  await third.goto(url(`/rooms/${room}`));
  await expect(third.getByRole('button', { name: 'Join' })).toBeVisible(PATIENCE);
  await third.getByRole('button', { name: 'Join' }).click();
  await expect(third.getByRole('alert')).toContainText('the room is locked', PATIENCE);
  // A guest may reload in a locked room.
  await bob.reload();
  await expect(bob.getByRole('toolbar', { name: 'Call' })).toBeVisible(PATIENCE);

  await act(ann, 'Bob', 'Remove Bob from the room');
  await expect(bob.getByRole('alert')).toContainText('a moderator has removed you from the room', PATIENCE);
  await check(bob, 'removed', info);
  await expect(ann.getByText('Nobody else is here yet.')).toBeVisible(PATIENCE);
  await bob.getByRole('button', { name: 'Join again' }).click();
  await bob.getByRole('button', { name: 'Join', exact: true }).click();
  await expect(bob.getByRole('alert')).toContainText('the room is locked', PATIENCE);
  await ann.getByRole('button', { name: 'Unlock room' }).click();
  await bob.getByRole('button', { name: 'Join', exact: true }).click();
  await expect(bob.getByRole('toolbar', { name: 'Call' })).toBeVisible(PATIENCE);
  await context.close();
});

test('a pinned participant is larger, on desktop and phone', async ({ browser }, info) => {
  const { room, context, ann } = await meet(browser);
  const cat = await context.newPage();
  await enter(cat, room, 'Cat');
  const area = async (name: string): Promise<number> => {
    const { width, height } = (await ann.getByRole('group', { name }).boundingBox())!;
    return width * height;
  };
  await expect(ann.getByRole('group', { name: 'Cat' })).toBeVisible(PATIENCE);
  await act(ann, 'Cat', 'Pin Cat');
  expect(await area('Cat')).toBeGreaterThan(2 * (await area('Bob')));
  await check(ann, 'pinned', info);
  await ann.setViewportSize({ width: 390, height: 844 });
  await ann.getByRole('button', { name: 'Close' }).click();
  expect(await area('Cat')).toBeGreaterThan(2 * (await area('Bob')));
  await check(ann, 'pinned-phone', info);
  await ann.getByRole('button', { name: 'Options for Cat' }).click();
  await expect(ann.getByRole('button', { name: 'Picture-in-picture with Cat' })).toBeVisible();
  await check(ann, 'options-phone', info);
  await ann.getByRole('button', { name: 'Unpin Cat' }).click();
  expect(Math.abs((await area('Cat')) - (await area('Bob')))).toBeLessThan(5_000);
  await ann.getByRole('button', { name: 'More' }).click();
  await check(ann, 'more-phone', info);
  await context.close();
});

/** Replaces the choice of a screen by a canvas that changes: real screens cannot be captured here. */
const paint = (page: Page): Promise<void> =>
  page.evaluate(() => {
    navigator.mediaDevices.getDisplayMedia = async () => {
      const sheet = Object.assign(document.createElement('canvas'), { width: 800, height: 450 });
      const pen = sheet.getContext('2d')!;
      let turn = 0;
      setInterval(() => {
        pen.fillStyle = `hsl(${(turn += 20) % 360} 80% 50%)`;
        pen.fillRect(0, 0, 800, 450);
      }, 100);
      return sheet.captureStream(10);
    };
  });

for (const topology of ['mesh', 'switch'] as const) {
  test(`${topology}: a screen is a second video, and can be shared again`, async ({ browser }, info) => {
    const context = await browser.newContext({ viewport: { width: 1280, height: 800 } });
    const room = fresh();
    const [ann, bob, cat] = [await context.newPage(), await context.newPage(), await context.newPage()];
    await ann.goto(url(`/rooms/${room}`));
    await ann.getByLabel('Topology').selectOption(topology);
    await ann.getByRole('button', { name: 'Join' }).click();
    await expect(ann.getByRole('toolbar', { name: 'Call' })).toBeVisible(PATIENCE);
    await enter(bob, room, 'Bob');
    await paint(ann);
    /** Returns the video of a tile: `Guest`, or `Screen of Guest`. */
    const videoOf = (page: Page, tile: string) => page.getByRole('group', { name: tile, exact: true }).locator('video');
    const width = async (page: Page, tile: string): Promise<number> => ((await videoOf(page, tile).count()) ? videoOf(page, tile).evaluate((video: HTMLVideoElement) => video.videoWidth) : 0);
    const moves = async (page: Page, tile: string): Promise<void> => {
      const frames = (): Promise<number> => videoOf(page, tile).evaluate((video: HTMLVideoElement) => video.getVideoPlaybackQuality().totalVideoFrames);
      const before = await frames();
      await expect.poll(frames, { ...PATIENCE, message: `${tile} moves` }).toBeGreaterThan(before + 5);
    };
    await expect.poll(() => width(bob, 'Guest'), PATIENCE).toBeGreaterThan(0);
    await ann.getByRole('button', { name: 'More' }).click();
    for (const round of [1, 2]) {
      await ann.getByRole('button', { name: 'Share screen' }).click();
      await expect(ann.getByText('You share your screen.')).toBeVisible(PATIENCE);
      await expect.poll(() => width(bob, 'Screen of Guest'), { ...PATIENCE, message: `share ${round}` }).toBe(800);
      await moves(bob, 'Screen of Guest');
      await moves(bob, 'Guest');
      expect(await width(bob, 'Guest'), 'the camera stays beside it').toBeLessThan(800);
      if (round === 1) {
        // A participant who joins later sees both, too.
        await enter(cat, room, 'Cat');
        await expect.poll(() => width(cat, 'Screen of Guest'), PATIENCE).toBe(800);
        await moves(cat, 'Guest');
        await check(bob, `screen-${topology}`, info);
      }
      await ann.getByRole('complementary').getByRole('button', { name: 'Stop sharing' }).click();
      await expect(videoOf(bob, 'Screen of Guest')).toHaveCount(0, PATIENCE);
      await moves(bob, 'Guest');
    }
    await context.close();
  });
}

test('a latecomer reads the chat of this call, and finds the room in the list', async ({ browser }, info) => {
  const { room, context, ann, bob } = await meet(browser);
  await bob.getByRole('textbox', { name: 'Message' }).fill('we have begun');
  await bob.keyboard.press('Enter');
  await expect(ann.getByRole('log')).toContainText('we have begun', PATIENCE);
  await bob.getByRole('button', { name: 'Leave' }).click();
  const cat = await context.newPage();
  await cat.goto(url('/rooms'));
  const entry = cat.getByRole('listitem').filter({ hasText: room });
  await expect(entry).toContainText('1 person · Mesh', PATIENCE);
  await check(cat, 'rooms', info);
  await entry.getByRole('link').click();
  await cat.getByLabel('Your name').fill('Cat', PATIENCE);
  await cat.getByRole('button', { name: 'Join' }).click();
  await expect(cat.getByRole('log')).toContainText('we have begun', PATIENCE);
  await expect(cat.getByRole('log')).toContainText('Bob');
  await context.close();
});

test('the user chooses devices, size and frame rate in the call', async ({ browser }) => {
  const { context, ann, bob } = await meet(browser);
  await expect.poll(() => bob.getByLabel('Video of Ann').evaluate((video: HTMLVideoElement) => video.videoWidth), PATIENCE).toBeGreaterThan(0);
  await ann.getByRole('button', { name: 'More' }).click();
  await expect(ann.getByLabel('Camera', { exact: true }).locator('option')).not.toHaveCount(0);
  await expect(ann.getByLabel('Microphone', { exact: true }).locator('option')).not.toHaveCount(0);
  await ann.getByLabel('Frames per second, at most').selectOption('5');
  await ann.getByLabel('Size').selectOption('320 × 180');
  await expect(ann.getByText('Now 320 × 180, at most 5 frames per second.')).toBeVisible();
  const settings = () => ann.getByRole('group', { name: 'Ann (you)' }).locator('video').evaluate((video: HTMLVideoElement) => (video.srcObject as MediaStream).getVideoTracks()[0]!.getSettings());
  await expect.poll(async () => (await settings()).height, PATIENCE).toBe(180);
  await expect.poll(async () => (await settings()).frameRate, PATIENCE).toBeLessThanOrEqual(5);
  await expect.poll(() => bob.getByLabel('Video of Ann').evaluate((video: HTMLVideoElement) => video.videoHeight), { ...PATIENCE, message: 'others receive that size' }).toBe(180);
  // The choice is kept for the next call.
  await ann.reload();
  await ann.getByRole('button', { name: 'More' }).click();
  await expect(ann.getByLabel('Size')).toHaveValue('320');
  await context.close();
});
