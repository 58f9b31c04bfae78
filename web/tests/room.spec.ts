// The room page: participants with and without devices, the topology graph, the quality diagnosis, and accessibility.
import { readFile } from 'node:fs/promises';
import { expect, test, type Browser, type BrowserContext, type Page, type TestInfo } from '@playwright/test';
import type { Quality, RoomState } from '../../sdk/typescript/src/room/index.ts';
import { arcOf, edgesOf, placesOf } from '../src/pages/rooms/graph.ts';
import { Run } from '../src/pages/rooms/run.ts';
import type { SwitchView } from '../src/pages/rooms/view.ts';
import { diagnose, type Observations } from '../src/pages/rooms/diagnosis.ts';
import { url, violations } from './page.ts';

test.describe.configure({ timeout: 120_000 });

const PATIENCE = { timeout: 40_000 };
let rooms = 0;
const fresh = (): string => `page-${process.pid}-${++rooms}`;

/** Opens the room page and joins under a name. */
async function enter(page: Page, room: string, name: string, topology?: string): Promise<void> {
  await page.goto(url(`/rooms/${room}`));
  await page.getByLabel('Your name').fill(name, PATIENCE);
  if (topology) await page.getByLabel('Topology').selectOption(topology);
  await expect(page.getByRole('button', { name: 'Camera' })).not.toContainText('Starting', PATIENCE);
  await page.getByRole('button', { name: 'Join' }).click();
  await expect(page.getByRole('toolbar', { name: 'Call' })).toBeVisible(PATIENCE);
}

async function meet(browser: Browser, topology: string, look: object = {}): Promise<{ room: string; context: BrowserContext; ann: Page; bob: Page }> {
  const context = await browser.newContext(look);
  const room = fresh();
  const [ann, bob] = [await context.newPage(), await context.newPage()];
  await enter(ann, room, 'Ann', topology);
  await enter(bob, room, 'Bob');
  return { room, context, ann, bob };
}

/** Returns the number of video frames of participant `name` that the page has shown. */
const frames = (page: Page, name: string): Promise<number> =>
  page.getByLabel(`Video of ${name}`).evaluate((video: HTMLVideoElement) => video.getVideoPlaybackQuality().totalVideoFrames);

/**
 * Checks accessibility (axe) in light and dark, the size of touch targets, and that the page does not scroll sideways.
 */
async function check(page: Page, what: string, info: TestInfo): Promise<void> {
  for (const colorScheme of ['light', 'dark'] as const) {
    await page.emulateMedia({ colorScheme });
    expect(await violations(page, undefined, ['region', 'label-content-name-mismatch', 'heading-order']), `${what}, ${colorScheme}`).toEqual([]);
    await page.screenshot({ path: info.outputPath(`${what}-${colorScheme}.png`) });
  }
  const { sideways, small } = await page.evaluate(() => ({
    sideways: document.documentElement.scrollWidth - innerWidth,
    small: [...document.querySelectorAll<HTMLElement>('button, a[href], input, select, summary')]
      .filter((element) => element.checkVisibility({ visibilityProperty: true }))
      .map((element) => ({ box: element.getBoundingClientRect(), html: element.outerHTML.slice(0, 90) }))
      .filter(({ box }) => box.width < 44 || box.height < 44)
      .map(({ box, html }) => `${box.width} x ${box.height}: ${html}`),
  }));
  expect(sideways, `${what}: no sideways scrolling`).toBeLessThanOrEqual(0);
  expect(small, `${what}: touch targets are large enough`).toEqual([]);
}

test('25 people: tiles have one size, and no name covers the initials', async ({ browser }, info) => {
  const context = await browser.newContext({ viewport: { width: 390, height: 844 } });
  const [page, room] = [await context.newPage(), fresh()];
  await enter(page, room, 'Ann', 'switch');
  const post = (path: string, body: object, secret = ''): Promise<Response> =>
    fetch(url(`/v1/rooms/${room}/participants${path}`), { method: 'POST', headers: { 'Content-Type': 'application/json', ...(secret && { 'Millrace-Participant': secret }) }, body: JSON.stringify(body) });
  const others = await Promise.all(Array.from({ length: 24 }, async (_, i) => (await (await post('', { name: i % 5 ? `Guest ${i}` : `Guest with a long name ${i}` })).json()) as { participant: string; secret: string }));
  const report = () => Promise.all(others.map(({ participant, secret }, i) => post(`/${participant}/reports`, { muted: i % 3 === 0, links: [] }, secret)));
  await report();
  const timer = setInterval(() => void report(), 5_000);
  const tiles = page.getByLabel('Participants').getByRole('group');
  for (const [what, width, height] of [['phone', 390, 844], ['desktop', 1280, 800]] as const) {
    await page.setViewportSize({ width, height });
    await expect(tiles).toHaveCount(25, PATIENCE);
    const shown = () =>
      tiles.evaluateAll((all) => {
        const boxes = all.map((tile) => tile.getBoundingClientRect());
        const covered = all.filter((tile) => {
          const [initials, name] = [tile.querySelector('.initials')!.getBoundingClientRect(), tile.querySelector('.name')!.getBoundingClientRect()];
          return name.top < initials.bottom && name.left < initials.right;
        });
        const { left, right } = all[0]!.parentElement!.getBoundingClientRect();
        const [first, last] = [boxes.filter(({ top }) => top === boxes.at(-1)!.top)[0]!, boxes.at(-1)!];
        return {
          sizes: new Set(boxes.map(({ width, height }) => `${Math.round(width)} x ${Math.round(height)}`)).size,
          shape: boxes[0]!.width / boxes[0]!.height > 0.9 && boxes[0]!.width / boxes[0]!.height < 2.5,
          fits: boxes.every((box) => box.left >= 0 && box.right <= innerWidth && box.bottom <= innerHeight),
          middle: Math.abs(first.left - left - (right - last.right)) < 4,
          covered: covered.map(({ textContent }) => textContent),
        };
      });
    await expect.poll(shown, { ...PATIENCE, message: what }).toEqual({ sizes: 1, shape: true, fits: true, middle: true, covered: [] });
    await check(page, `25-${what}`, info);
  }
  clearInterval(timer);
  await context.close();
});

test('one button plays the sound of all participants after the browser has refused it', async ({ browser }) => {
  const { context, room, ann, bob } = await meet(browser, 'mesh');
  const eve = await context.newPage();
  // The policy of browsers for pages that the user has not touched: no sound before a click.
  await eve.addInitScript(() => {
    const play = HTMLMediaElement.prototype.play;
    let isAllowed = false;
    addEventListener('click', ({ target }) => (isAllowed ||= (target as Element).closest('button')?.textContent === 'Play sound'), true);
    HTMLMediaElement.prototype.play = function () {
      return isAllowed || this.muted ? play.call(this) : Promise.reject(new DOMException('no user action', 'NotAllowedError'));
    };
  });
  await enter(eve, room, 'Eve');
  const button = eve.getByRole('button', { name: 'Play sound' });
  await expect(button).toBeVisible(PATIENCE);
  const muted = () => eve.locator('[role=group]:not(.mine) > video').evaluateAll((all) => all.map((video) => (video as HTMLVideoElement).muted));
  await expect.poll(muted, PATIENCE).toEqual([true, true]);
  for (const name of ['Ann', 'Bob']) await expect.poll(() => frames(eve, name), { ...PATIENCE, message: `the video of ${name} is shown` }).toBeGreaterThan(5);
  await expect(button).toHaveCount(1);
  await button.click();
  await expect(button).toHaveCount(0);
  expect(await muted()).toEqual([false, false]);
  await Promise.all([ann, bob].map((page) => page.close()));
  await context.close();
});

test('copied link is reachable, or a notice says why', async ({ browser }, info) => {
  const context = await browser.newContext({ permissions: ['clipboard-read', 'clipboard-write'], viewport: { width: 390, height: 844 } });
  const [page, room] = [await context.newPage(), fresh()];
  const copies = async (link: string): Promise<void> => {
    await page.getByRole('button', { name: 'Copy link' }).click();
    await expect.poll(() => page.evaluate(() => navigator.clipboard.readText())).toBe(link);
  };
  await enter(page, room, 'Ann');
  await expect(page.getByText('Open this page in another tab to join as a second participant.')).toBeVisible();
  await copies(url(`/rooms/${room}`));
  await expect(page.getByText('Other devices cannot open the link.')).toBeVisible();
  await check(page, 'local-link', info);
  // Without leaving, the page would resume its seat.
  await page.getByRole('button', { name: 'Leave' }).click();
  await page.route('**/v1/info', async (route) => {
    const info = (await (await route.fetch()).json()) as object;
    await route.fulfill({ json: { ...info, listen: ['http://127.0.0.1:8080', 'http://192.168.1.20:8080'] } });
  });
  await enter(page, room, 'Ann');
  await expect(page.getByText('Copy the link and send it to invite others.')).toBeVisible();
  await copies(`http://192.168.1.20:8080/rooms/${room}`);
  await expect(page.getByText('Other devices cannot open the link.')).toHaveCount(0);
  await context.close();
});

test('two participants see, chat, measure and export', async ({ browser }, info) => {
  const { room, context, ann, bob } = await meet(browser, 'mesh', { viewport: { width: 1280, height: 800 }, acceptDownloads: true });
  await expect.poll(() => frames(ann, 'Bob'), PATIENCE).toBeGreaterThan(10);
  await expect.poll(() => frames(bob, 'Ann'), PATIENCE).toBeGreaterThan(10);

  await expect(bob.getByRole('complementary', { name: 'Chat' })).toBeVisible();
  await ann.getByRole('textbox', { name: 'Message' }).fill('hello, Bob');
  await ann.keyboard.press('Enter');
  await expect(bob.getByRole('log')).toContainText('hello, Bob', PATIENCE);
  await expect(bob.getByRole('log')).toContainText('Ann');
  await check(bob, 'desktop-chat', info);

  await ann.getByRole('button', { name: 'Quality' }).click();
  const graph = ann.getByRole('img', { name: /^Mesh of 2/ });
  await expect.poll(() => graph.getAttribute('aria-label'), PATIENCE).toMatch(/You to Bob: [\d,]+ kbit\/s; Bob to You: [1-9][\d,]* kbit\/s/);
  const sheet = ann.getByRole('article', { name: 'Video from Bob' });
  for (const figure of ['RTT', 'Loss', 'Residual loss', 'Setup time', 'Freezes', 'Frames per second']) await expect(sheet.getByText(figure, { exact: true })).toBeVisible();
  await expect(sheet).toContainText(/Setup time\s*[\d,]+ ms/, PATIENCE);
  await expect(ann.getByRole('article', { name: 'Your video to Bob' })).toContainText('Limited by');
  await check(ann, 'desktop-quality', info);

  await sheet.scrollIntoViewIfNeeded();
  await ann.screenshot({ path: info.outputPath('desktop-sheet.png') });

  const saved = async (name: string): Promise<string> => {
    const [download] = await Promise.all([ann.waitForEvent('download'), ann.getByRole('button', { name }).click()]);
    return readFile((await download.path())!, 'utf8');
  };
  const [head, ...lines] = (await saved('Save as CSV')).trim().split('\r\n');
  expect(head).toContain('rate_kbps,rtt_ms,owd_ms,loss,residual_loss,setup_ms');
  expect(lines.length).toBeGreaterThan(1);
  const run = JSON.parse(await saved('Save as JSON')) as { room: string; rows: { from_name: string; kind: string; rate_kbps: number }[] };
  expect(run.room).toBe(room);
  console.log(JSON.stringify({ page: 'mesh', row: run.rows.findLast((row) => row.from_name === 'Bob' && row.kind === 'video') }));
  expect(run.rows.some((row) => row.from_name === 'Bob' && row.rate_kbps > 0)).toBe(true);

  // The server keeps the reports of all participants in a channel.
  const record = async () => (await (await fetch(url(`/v1/channels/rooms/${room}/reports?since=earliest`))).json()) as { messages?: { data: { report: Quality } }[] };
  await expect.poll(async () => (await record()).messages?.some(({ data }) => data.report.links.some((link) => link.rate_kbps > 0 && link.streams.length > 0)), PATIENCE).toBe(true);

  // Mute and leave by keyboard only.
  await ann.getByRole('button', { name: 'Mic', exact: true }).focus();
  await ann.keyboard.press('Space');
  await expect(ann.getByRole('button', { name: 'Mic', exact: true })).toHaveAttribute('aria-pressed', 'false');
  await expect(bob.getByRole('group', { name: 'Ann' })).toContainText('Muted', PATIENCE);
  const shown = await frames(bob, 'Ann');
  await ann.getByRole('button', { name: 'Camera' }).press('Enter');
  await expect(ann.getByRole('button', { name: 'Camera' })).toHaveAttribute('aria-pressed', 'false');
  await expect.poll(() => frames(bob, 'Ann'), { ...PATIENCE, message: 'initials replace the camera' }).toBeGreaterThan(shown + 2);
  await ann.getByRole('button', { name: 'Leave' }).press('Enter');
  await expect(ann.getByRole('heading', { name: 'You have left' })).toBeVisible();
  await expect(bob.getByText('Nobody else is here yet')).toBeVisible(PATIENCE);
  await context.close();
});

test('switch: a participant without devices takes part', async ({ browser }, info) => {
  const { room, context, ann } = await meet(browser, 'switch', { viewport: { width: 1280, height: 800 } });
  const cat = await context.newPage();
  await cat.addInitScript(() => Object.defineProperty(navigator, 'mediaDevices', { value: undefined }));
  await enter(cat, room, 'Cat');
  await expect.poll(() => frames(cat, 'Ann'), PATIENCE).toBeGreaterThan(5);
  await cat.getByRole('textbox', { name: 'Message' }).fill('no camera here');
  await cat.getByRole('button', { name: 'Send' }).click();
  await expect(ann.getByRole('log')).toContainText('no camera here', PATIENCE);
  await ann.getByRole('button', { name: 'Quality' }).click();
  const graph = ann.getByRole('img', { name: /^Switch of 3/ });
  await expect.poll(() => graph.getAttribute('aria-label'), PATIENCE).toMatch(/You to Server: [1-9][\d,]* kbit\/s; Server to You: [1-9][\d,]* kbit\/s/);
  await expect(ann.getByRole('article', { name: 'Video from Bob' })).toContainText(/Layer\s*1 of 1/, PATIENCE);
  await ann.screenshot({ path: info.outputPath('switch.png') });
  await context.close();
});

test('mixer: one audio stream is played', async ({ browser }, info) => {
  const { context, ann } = await meet(browser, 'mixer', { viewport: { width: 1280, height: 800 } });
  await expect.poll(() => frames(ann, 'Bob'), PATIENCE).toBeGreaterThan(5);
  const played = () => ann.locator('audio').evaluateAll((all) => (all as HTMLAudioElement[]).map(({ srcObject, paused, muted }) => [(srcObject as MediaStream | null)?.id, paused, muted]));
  await expect.poll(played, PATIENCE).toEqual([['mix', false, false]]);
  expect(await ann.getByLabel('Video of Bob').evaluate((video: HTMLVideoElement) => (video.srcObject as MediaStream).getTracks().map(({ kind }) => kind))).toEqual(['video']);
  await ann.getByRole('button', { name: 'Quality' }).click();
  await expect(ann.getByRole('img', { name: /^Mixer of 2/ })).toBeVisible();
  await expect(ann.getByRole('article', { name: 'Audio from everyone' })).toBeVisible(PATIENCE);
  await check(ann, 'mixer', info);
  await context.close();
});

test('only the host mutes, and both pages show it', async ({ browser }, info) => {
  const { context, ann, bob } = await meet(browser, 'mesh', { viewport: { width: 1280, height: 800 } });
  await expect.poll(() => frames(ann, 'Bob'), PATIENCE).toBeGreaterThan(5);
  const options = ann.getByRole('button', { name: 'Options for Bob' });
  const button = ann.getByRole('button', { name: 'Mute Bob for everyone', exact: true });
  const lift = ann.getByRole('button', { name: 'Unmute Bob for everyone', exact: true });
  const mic = bob.getByRole('button', { name: 'Mic', exact: true });
  const audioEnabled = () => ann.getByLabel('Video of Bob').evaluate((video: HTMLVideoElement) => (video.srcObject as MediaStream).getAudioTracks().map(({ enabled }) => enabled));
  await options.click();
  await expect(button).toContainText(/^Mute/);
  await expect(ann.getByRole('group', { name: 'Ann (you)' })).toContainText('Ann (you), host');
  await expect(bob.getByRole('group', { name: 'Ann', exact: true })).toContainText('Ann, host');
  await expect(bob.getByRole('button', { name: /^(Mute|Unmute) / }), 'a guest has no mute button').toHaveCount(0);
  await bob.getByRole('button', { name: 'Options for Ann' }).click();
  await expect(bob.getByRole('button', { name: 'Pin Ann' })).toBeVisible();
  await expect(bob.getByRole('button', { name: /^(Mute|Remove) / })).toHaveCount(0);
  await bob.keyboard.press('Escape');
  await expect(mic).toHaveAttribute('aria-pressed', 'true');
  expect(await audioEnabled()).toEqual([true]);
  await button.press('Enter');
  await options.press('Enter');
  await expect(lift).toBeVisible(PATIENCE);
  await ann.keyboard.press('Escape');
  await expect(ann.getByRole('group', { name: 'Bob' })).toContainText('Muted by the host');
  expect(await audioEnabled()).toEqual([false]);
  await expect(bob.getByRole('status').filter({ hasText: 'The host has muted you.' })).toBeVisible(PATIENCE);
  await expect(bob.getByRole('group', { name: 'Bob' })).toContainText('Muted by the host');
  // The button shows the current state. Its description states the state after the host unmutes; a click toggles that
  // state.
  await expect(mic).toHaveAttribute('aria-pressed', 'false');
  await expect(mic).toHaveAccessibleDescription('The host has muted you. Your microphone turns on again when the host unmutes you.');
  await check(ann, 'host-mutes', info);
  await check(bob, 'host-muted', info);
  await mic.click();
  await expect(mic).toHaveAccessibleDescription('The host has muted you. Your microphone stays off when the host unmutes you.');
  await mic.click();
  await expect(mic).toHaveAccessibleDescription(/turns on again/);
  await options.click();
  await lift.click();
  await options.click();
  await expect(button).toBeVisible(PATIENCE);
  await ann.keyboard.press('Escape');
  await expect(bob.getByText('The host has muted you.')).toHaveCount(0, PATIENCE);
  await expect(mic).toHaveAttribute('aria-pressed', 'true');
  expect(await audioEnabled()).toEqual([true]);

  await ann.route('**/mute', (route) => route.fulfill({ status: 403, contentType: 'application/problem+json', json: { code: 'forbidden', detail: 'no' } }));
  await options.click();
  await button.click();
  await expect(ann.getByRole('alert')).toHaveText('Bob was not muted: only the host or a moderator can do that.');
  await check(ann, 'host-refused', info);

  // When the host leaves, another participant becomes the host.
  await ann.getByRole('button', { name: 'Leave' }).click();
  await expect(bob.getByRole('group', { name: 'Bob (you)' })).toContainText('Bob (you), host', PATIENCE);
  await context.close();
});

test('a new room logs no console error', async ({ page }) => {
  const complaints: string[] = [];
  page.on('console', (message) => ['error', 'warning'].includes(message.type()) && complaints.push(message.text()));
  page.on('pageerror', (error) => complaints.push(error.message));
  page.on('response', (response) => response.status() >= 400 && complaints.push(`${response.status()} ${response.url()}`));
  await enter(page, fresh(), 'Ann', 'mesh');
  await expect(page.getByText('Nobody else is here yet.')).toBeVisible();
  expect(complaints).toEqual([]);
});

test('the lobby shows one state at a time', async ({ page }, info) => {
  let answer: { status: number; json: object } = { status: 500, json: { code: 'internal', detail: 'the engine is gone' } };
  await page.route('**/v1/rooms/*', (route) => route.fulfill({ contentType: 'application/problem+json', ...answer }));
  const room = fresh();
  await page.goto(url(`/rooms/${room}`));
  await expect(page.getByRole('alert')).toHaveText('The state of the room cannot be read: the engine is gone. Reload the page to try again.');
  await expect(page.getByText('Checking who is in the room')).toHaveCount(0);
  await check(page, 'door-error', info);
  answer = { status: 401, json: { code: 'unauthorized', detail: 'send a token' } };
  await page.reload();
  await expect(page.getByRole('alert')).toContainText('requires a token');
  await expect(page.getByText(/Checking who is in the room|The room is empty/)).toHaveCount(0);
  await page.unroute('**/v1/rooms/*');
  await page.reload();
  await expect(page.getByText('The room is empty. You are the first participant.')).toBeVisible();
  await expect(page.getByRole('alert')).toHaveCount(0);
});

test('every step works on a phone', async ({ browser }, info) => {
  const context = await browser.newContext({ viewport: { width: 390, height: 844 }, hasTouch: true });
  const [page, other] = [await context.newPage(), await context.newPage()];
  await page.goto(url('/rooms'));
  await expect(page.getByLabel('Room name')).toBeVisible();
  await check(page, 'phone-choose', info);
  const room = fresh();
  await page.goto(url(`/rooms/${room}`));
  await expect(page.getByLabel('Topology')).toBeVisible(PATIENCE);
  await expect(page.getByLabel('Preview of your video')).toBeVisible(PATIENCE);
  await check(page, 'phone-door', info);
  await enter(other, room, 'Bob', 'mesh');
  await enter(page, room, 'Ann');
  await expect.poll(() => frames(page, 'Bob'), PATIENCE).toBeGreaterThan(5);
  await check(page, 'phone-tiles', info);
  await page.getByRole('button', { name: 'Chat' }).click();
  await page.getByRole('textbox', { name: 'Message' }).fill('good evening');
  await page.getByRole('button', { name: 'Send' }).click();
  await expect(page.getByRole('log')).toContainText('good evening', PATIENCE);
  await check(page, 'phone-chat', info);
  await page.getByRole('button', { name: 'Quality' }).click();
  await expect(page.getByRole('article', { name: 'Video from Bob' })).toBeVisible(PATIENCE);
  await check(page, 'phone-quality', info);
  await page.getByRole('article', { name: 'Your video to Bob' }).scrollIntoViewIfNeeded();
  await page.screenshot({ path: info.outputPath('phone-sheet.png') });
  await page.getByRole('button', { name: 'Close' }).click();
  await expect(page.getByRole('button', { name: 'Quality' })).toBeFocused();
  await page.getByRole('button', { name: 'Leave' }).click();
  await expect(page.getByRole('button', { name: 'Join again' })).toBeVisible();
  await check(page, 'phone-left', info);
  await context.close();
});

test('an invalid room name is refused', async ({ page }) => {
  await page.goto(url('/rooms/a%20b'));
  await expect(page.getByRole('alert')).toContainText('“a b” is not a valid room name.');
});

// The page's decisions, tested without a browser.
const people = (...ids: string[]): RoomState['participants'] => ids.map((id) => ({ id, name: id, role: 'member', since_ms: 0 }));
const state = (topology: RoomState['topology'], rest: Partial<RoomState> = {}): RoomState => ({ version: 1, topology, participants: people('1', '2', '3'), ...rest });
const stream = { from: '2', direction: 'in', kind: 'video', rate_kbps: 300, rtt_ms: 5, loss: 0, residual_loss: 0, fps: 30, width: 320, height: 240, freezes: 0, frozen_ms: 0, codec: 'VP8' } as const;
const link = { to: '2', rate_kbps: 300, sent_kbps: 280, data_kbps: 4, data_sent_kbps: 0, rtt_ms: 5, loss: 0, residual_loss: 0, fps: 30, frames: 90, frozen_ms: 0, kind: 'host', setup_ms: 140, streams: [stream] };
const quality = (change: object = {}): Quality => ({ uplink_kbps: 400, rtt_ms: 5, codec_cpu: 0.1, calls: 2, calls_failed: 0, links: [{ ...link, ...change }] });

test('graph shows received rates and central nodes', () => {
  const reports = new Map([['1', quality()], ['2', quality({ to: '1', rate_kbps: 270, loss: 0.05 })]]);
  const edges = edgesOf(state('mesh'), reports, new Map());
  expect(edges.length).toBe(6);
  const edge = (from: string, to: string) => edges.find((one) => one.from === from && one.to === to)!;
  expect(edge('2', '1').kbps).toBe(304);
  expect(edge('1', '2')).toMatchObject({ kbps: 274, loss: 0.05 });
  expect(edge('3', '1').kbps, 'no report').toBeUndefined();
  const view: SwitchView = { name: '2', is_connected: true, estimate_kbps: null, sends: [{ kind: 'video', layers_kbps: [100, 500] }], receives: [] };
  const byServer = edgesOf(state('switch'), new Map([['1', quality({ to: 'switch' })]]), new Map([['2', view]]));
  expect(byServer.map(({ from, to, kbps }) => [from, to, kbps])).toContainEqual(['1', 'switch', 280]);
  expect(byServer.map(({ from, to, kbps }) => [from, to, kbps])).toContainEqual(['2', 'switch', 600]);
  expect(byServer.map(({ from, to, kbps }) => [from, to, kbps])).toContainEqual(['switch', '1', 304]);
  for (const room of [state('switch'), state('mixer'), state('star', { hub: '2' }), state('mesh'), state('tree', { parents: { '2': '1', '3': '1' } })]) {
    const places = placesOf(room, '1', 360, 240, 44);
    expect(new Set(places.map(({ x, y }) => `${x.toFixed()} ${y.toFixed()}`)).size, 'no two nodes overlap').toBe(places.length);
    for (const { x, y } of places) expect(x >= 22 && x <= 338 && y >= 22 && y <= 218, `${room.topology}: ${x} ${y}`).toBe(true);
    if (['switch', 'mixer', 'star'].includes(room.topology)) expect(places[0]).toMatchObject({ id: room.hub ?? 'switch', x: 180, y: 120 });
  }
  expect(arcOf({ id: 'a', x: 0, y: 0 }, { id: 'b', x: 0, y: 0 }, 20).path, 'two nodes at one place do not crash').not.toContain('NaN');
});

test('diagnosis explains problems in words', () => {
  const say = (samples: Quality[], more: Partial<Observations> = {}): string[] =>
    diagnose({ me: '1', state: state('mesh'), samples, overMs: 10_000, views: new Map(), viewBefore: undefined, reports: new Map(), missing: [], nameOf: (id) => ({ '1': 'You', '2': 'Bob', '3': 'Cat' })[id] ?? id, ...more }).map(({ weight, text }) => `${weight}: ${text}`);
  const changed = (change: object) => quality({ streams: [{ ...stream, ...change }] });
  expect(say([quality()])).toEqual([]);
  expect(say([changed({ frozen_ms: 1500 })])).toEqual(['bad: Bob’s video froze for 1.5 s in the last 10.0 s.']);
  expect(say([changed({ loss: 0.05, residual_loss: 0.01 })])[0]).toContain('5.0 % of the packets of Bob’s video are lost on the path to you, and 1.0 % could not be repaired');
  expect(say([changed({ loss: 0.05 })])[0]).toContain('all were retransmitted in time');
  expect(say([changed({ direction: 'out', from: '1', limited_by: 'bandwidth' })])).toEqual(['warn: Your upload bandwidth to Bob is too low (about 400 kbit/s), so your video is sent at 320 × 240 and 30 frames per second.']);
  expect(say([changed({ direction: 'out', from: '1', limited_by: 'cpu' })])[0]).toContain('This device is too slow to encode your video');
  expect(say([quality({ kind: 'relay', rtt_ms: 350 })])).toEqual([expect.stringMatching(/^warn: .*350 ms/), expect.stringMatching(/^note: .*relay/)]);
  expect(say([quality()], { missing: ['3'] })).toEqual(['bad: No connection to Cat. Reconnecting…']);
  const view = { name: '1', is_connected: true, estimate_kbps: 300, sends: [], receives: [{ from: '2', kind: 'video', layer: 0, layer_switches: 9, is_waiting: false, packets: 9, bytes: 9 }] } as const;
  const sender = { ...view, name: '2', sends: [{ kind: 'video', layers_kbps: [100, 500] }], receives: [] } as const;
  const switched = say([quality({ to: 'switch' })], { state: state('switch'), views: new Map<string, SwitchView>([['1', view], ['2', sender]]), viewBefore: { ...view, receives: [{ ...view.receives[0], layer_switches: 5 }] } });
  expect(switched).toEqual(['warn: Bob’s video changed its resolution 4 times in the last minute: your download bandwidth varies.', 'note: The server sends you a lower resolution of Bob’s video: your download bandwidth is about 300 kbit/s.']);
});

test('recorded rows are bounded and formulas escaped', () => {
  const run = new Run('a:b', '1');
  for (let i = 0; i < 20_000; i++) run.add(quality(), undefined, () => '=1+1,"x"');
  expect(run.rows.length).toBe(16_384);
  expect(run.dropped).toBe(20_000 - 16_384);
  const { name, text } = run.csv();
  expect(name).toMatch(/^room-a_b-\d{4}-\d\d-\d\dT\d{4}Z\.csv$/);
  expect(text.split('\r\n')[1]).toContain(`"'=1+1,""x"""`);
});
