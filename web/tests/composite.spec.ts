// A room with a mixer that sends one video of all cameras, in a real Chromium.
import { expect, test, type Page, type TestInfo } from '@playwright/test';
import { violations } from './page.ts';
import { join, openBlankPage, tones } from './room-page.ts';
import { serve } from './server.ts';

test.describe.configure({ timeout: 240_000 });

type Color = readonly [red: number, green: number, blue: number];
type Place = readonly [x: number, y: number];

/** Colors of the participants, and the largest deviation of each value in what others see of them. */
const COLORS = { red: [255, 0, 0], green: [0, 255, 0], blue: [0, 0, 255], none: [28, 28, 28] } as const;
const DEVIATION_MAX = 12;

/** Returns the colors of the composite video at these places, as the page decodes it; empty without a frame. */
const pixelsAt = (page: Page, places: readonly Place[]): Promise<Color[]> =>
  page.evaluate((places) => {
    const ofPage = document.querySelector<HTMLVideoElement>('[aria-label="Video of all"] > video');
    const video = ofPage ?? [...document.querySelectorAll('video')].find(({ srcObject }) => srcObject instanceof MediaStream && srcObject.id === 'mix');
    if (!video?.videoWidth) return [];
    const sheet = Object.assign(document.createElement('canvas'), { width: video.videoWidth, height: video.videoHeight });
    const pen = sheet.getContext('2d')!;
    pen.drawImage(video, 0, 0);
    return places.map(([x, y]) => {
      const [red, green, blue] = pen.getImageData(x, y, 1, 1).data;
      return [red!, green!, blue!] as const;
    });
  }, places);

/** Names a color; without a name, it returns the values. */
const nameOf = (color: Color): string => {
  const isNear = (other: Color): boolean => other.every((value, i) => Math.abs(value - color[i]!) <= DEVIATION_MAX);
  return Object.entries(COLORS).find(([, other]) => isNear(other))?.[0] ?? `rgb(${color.join(', ')})`;
};

const colorsAt = async (page: Page, places: readonly Place[]): Promise<string[]> => (await pixelsAt(page, places)).map(nameOf);

/** Returns the color in the middle of the cell that has this name in the page. */
async function colorBehind(page: Page, name: string): Promise<string> {
  const cell = page.getByRole('list', { name: 'Participants in the video' }).getByRole('listitem').filter({ hasText: name });
  const place = await cell.evaluate((cell): Place => {
    const video = cell.closest('[role=group]')!.querySelector('video')!;
    const [box, part] = [video.getBoundingClientRect(), cell.getBoundingClientRect()];
    // The video keeps its aspect ratio in the middle of its box.
    const scale = Math.min(box.width / video.videoWidth, box.height / video.videoHeight);
    const from = (start: number, size: number, boxStart: number, boxSize: number, videoSize: number): number => Math.round((start + size / 2 - boxStart - boxSize / 2) / scale + videoSize / 2);
    return [from(part.left, part.width, box.left, box.width, video.videoWidth), from(part.top, part.height, box.top, box.height, video.videoHeight)];
  });
  return (await colorsAt(page, [place]))[0] ?? 'no frame';
}

/** Numbers of frames of the video that the page has decoded, and its codec. */
const decoded = (page: Page) =>
  page.evaluate(async () => {
    const quality = await window.pageState.room.quality();
    const video = quality.links.flatMap(({ streams }) => streams).filter(({ direction, kind }) => direction === 'in' && kind === 'video');
    return video.map(({ from, codec, width, height }) => ({ from, codec, width, height }));
  });

test('mixer: one video shows everybody', async ({ browser }) => {
  const server = await serve(undefined, ['--set', 'rooms.mixers_max=1', '--set', 'rooms.mixer_video=true']);
  const context = await browser.newContext();
  try {
    const room = `composite-${process.pid}`;
    const pages: Page[] = [];
    for (let i = 0; i < 3; i++) pages.push(await openBlankPage(context, server.url));
    const [one, two, three] = pages as [Page, Page, Page];
    const ids: string[] = [];
    const cells = (page: Page) => page.evaluate(() => window.pageState.room.state.composite?.cells.map(({ participant, x, y, width, height }) => [participant, x, y, width, height]));
    for (const [i, page] of pages.entries()) ids.push(await join(page, room, { topology: 'mixer', color: ['#ff0000', '#00ff00', '#0000ff'][i]!, tone: 330 + 110 * i }));
    const PATIENCE = { timeout: 40_000 };
    // Each page sees all three, itself included, in the order of joining.
    for (const page of pages) await expect.poll(() => colorsAt(page, [[160, 180], [480, 180], [320, 420], [40, 420]]), PATIENCE).toEqual(['red', 'green', 'blue', 'none']);
    const [first, second, third] = ids;
    // The state has the cell of each participant.
    for (const page of pages) await expect.poll(() => cells(page), PATIENCE).toEqual([[first, 0, 0, 320, 240], [second, 320, 0, 320, 240], [third, 160, 240, 320, 240]]);
    for (const page of pages) {
      const streams = () => page.evaluate(() => Object.entries(window.pageState.streams).map(([of, stream]) => `${of}: ${stream.getTracks().map(({ kind }) => kind).sort().join(', ')}`));
      await expect.poll(streams, PATIENCE).toEqual(['mix: audio, video']);
    }
    console.log(JSON.stringify({ rooms: 'composite', decoded: await decoded(one) }));
    // The mix has the others' audio.
    await two.evaluate(() => window.voice(0.3));
    await expect.poll(async () => (await tones(one, 'mix', [440]))[0], { ...PATIENCE, message: 'the tone is audible' }).toBeGreaterThan(-50);
    // A participant whose video a host has muted has an empty cell; one that leaves has none.
    await one.evaluate((id) => window.pageState.room.mute(id, { video: true }), ids[1]!);
    await expect.poll(() => colorsAt(three, [[160, 180], [480, 180], [320, 420]]), PATIENCE).toEqual(['red', 'none', 'blue']);
    await one.evaluate((id) => window.pageState.room.mute(id, { video: false }), ids[1]!);
    await expect.poll(() => colorsAt(three, [[160, 180], [480, 180], [320, 420]]), PATIENCE).toEqual(['red', 'green', 'blue']);
    await one.evaluate(() => window.pageState.room.leave());
    await expect.poll(() => colorsAt(three, [[160, 300], [480, 300]]), PATIENCE).toEqual(['green', 'blue']);
    await expect.poll(() => cells(two), PATIENCE).toEqual([[second, 0, 0, 320, 480], [third, 320, 0, 320, 480]]);
    const metrics = await (await fetch(`${server.url}/metrics`)).text();
    console.log(metrics.split('\n').filter((line) => line.startsWith('millrace_composite')).join('\n'));
    expect(Number(/^millrace_composite_frames_total (\d+)/m.exec(metrics)?.[1])).toBeGreaterThan(20);
  } finally {
    await context.close();
    await server.stop();
  }
});

/** Checks the page with axe, and that each name is inside its cell. Takes a screenshot of each look. */
async function check(page: Page, what: string, info: TestInfo): Promise<void> {
  for (const [device, width, height] of [['phone', 390, 844], ['desktop', 1280, 800]] as const) {
    await page.setViewportSize({ width, height });
    for (const colorScheme of ['light', 'dark'] as const) {
      await page.emulateMedia({ colorScheme });
      expect(await violations(page, undefined, ['region', 'label-content-name-mismatch', 'heading-order']), `${what}, ${device}, ${colorScheme}`).toEqual([]);
      await page.screenshot({ path: info.outputPath(`${what}-${device}-${colorScheme}.png`) });
    }
    const outside = await page.getByRole('list', { name: 'Participants in the video' }).getByRole('listitem').evaluateAll((cells) =>
      cells.filter((cell) => {
        const [own, name] = [cell.getBoundingClientRect(), cell.firstElementChild!.getBoundingClientRect()];
        return !cell.textContent || name.left < own.left || name.right > own.right || name.top < own.top || name.bottom > own.bottom;
      }).length);
    expect(outside, `${what}, ${device}: names outside their cells`).toBe(0);
  }
}

test('mixer: the page writes each name over its cell', async ({ browser }, info) => {
  const server = await serve(undefined, ['--set', 'rooms.mixers_max=1', '--set', 'rooms.mixer_video=true']);
  const context = await browser.newContext({ viewport: { width: 390, height: 844 } });
  try {
    const room = `names-${process.pid}`;
    const PATIENCE = { timeout: 40_000 };
    const ann = await context.newPage();
    await ann.goto(`${server.url}/rooms/${room}`);
    await ann.getByLabel('Your name').fill('Ann', PATIENCE);
    await ann.getByLabel('Topology').selectOption('mixer');
    await expect(ann.getByRole('button', { name: 'Camera' })).not.toContainText('Starting', PATIENCE);
    await ann.getByRole('button', { name: 'Join' }).click();
    const names = () => ann.getByRole('list', { name: 'Participants in the video' }).getByRole('listitem').allTextContents();
    const [bob, eve] = [await openBlankPage(context, server.url), await openBlankPage(context, server.url)];
    // Cells are in the order in which the server receives the first offers.
    await expect.poll(names, PATIENCE).toEqual(['Ann (you)']);
    await join(bob, room, { name: 'Bob', color: '#ff0000' });
    await expect.poll(names, PATIENCE).toEqual(['Ann (you)', 'Bob']);
    await expect.poll(() => colorBehind(ann, 'Bob'), PATIENCE).toBe('red');
    await check(ann, 'two', info);
    const long = 'Eve with a long name that no cell of a phone has room for';
    await join(eve, room, { name: long, color: '#0000ff' });
    await expect.poll(names, PATIENCE).toEqual(['Ann (you)', 'Bob', long]);
    for (const [name, color] of [['Bob', 'red'], [long, 'blue']] as const) await expect.poll(() => colorBehind(ann, name), PATIENCE).toBe(color);
    await check(ann, 'three', info);
    await bob.evaluate(() => window.pageState.room.leave());
    await expect.poll(names, PATIENCE).toEqual(['Ann (you)', long]);
    await expect.poll(() => colorBehind(ann, long), PATIENCE).toBe('blue');
  } finally {
    await context.close();
    await server.stop();
  }
});

test('mixer: green of a BT.601 camera stays green', async ({ browser }) => {
  const server = await serve(undefined, ['--set', 'rooms.mixers_max=1', '--set', 'rooms.mixer_video=true']);
  const context = await browser.newContext();
  try {
    const page = await openBlankPage(context, server.url);
    // A canvas sends BT.709. This one sends frames as a camera does.
    await page.evaluate(() => {
      HTMLCanvasElement.prototype.captureStream = () => {
        const Generator = (window as unknown as { MediaStreamTrackGenerator: new (init: { kind: 'video' }) => MediaStreamTrack & { writable: WritableStream<VideoFrame> } }).MediaStreamTrackGenerator;
        const track = new Generator({ kind: 'video' });
        const writer = track.writable.getWriter();
        const data = new Uint8Array((640 * 480 * 3) / 2).fill(145, 0, 640 * 480).fill(54, 640 * 480, (640 * 480 * 5) / 4).fill(34, (640 * 480 * 5) / 4);
        const colorSpace: VideoColorSpaceInit = { matrix: 'smpte170m', primaries: 'smpte170m', transfer: 'smpte170m', fullRange: false };
        setInterval(() => void writer.write(new VideoFrame(data, { format: 'I420', codedWidth: 640, codedHeight: 480, timestamp: performance.now() * 1000, colorSpace })), 66);
        return new MediaStream([track]);
      };
    });
    await join(page, `green-${process.pid}`, { topology: 'mixer', color: '#00ff00' });
    await expect.poll(() => colorsAt(page, [[320, 240]]), { timeout: 25_000 }).toEqual(['green']);
  } finally {
    await context.close();
    await server.stop();
  }
});
