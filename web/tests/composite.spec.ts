// A room with a mixer that sends one video of all cameras, in a real Chromium.
import { expect, test, type Page } from '@playwright/test';
import { join, openBlankPage, tones } from './room-page.ts';
import { serve } from './server.ts';

test.describe.configure({ timeout: 240_000 });

/** Names the color of the composite video at these places, as the page decodes it; empty without a frame. */
const colorsAt = (page: Page, places: readonly (readonly [x: number, y: number])[]): Promise<string[]> =>
  page.evaluate((places) => {
    const video = [...document.querySelectorAll('video')].find(({ srcObject }) => srcObject instanceof MediaStream && srcObject.id === 'mix');
    if (!video?.videoWidth) return [];
    const sheet = Object.assign(document.createElement('canvas'), { width: video.videoWidth, height: video.videoHeight });
    const pen = sheet.getContext('2d')!;
    pen.drawImage(video, 0, 0);
    return places.map(([x, y]) => {
      const [red, green, blue] = pen.getImageData(x, y, 1, 1).data as unknown as [number, number, number];
      const most = Math.max(red, green, blue);
      if (most - Math.min(red, green, blue) < 40) return 'none';
      return most === red ? 'red' : most === green ? 'green' : 'blue';
    });
  }, places);

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
    for (const [i, page] of pages.entries()) ids.push(await join(page, room, { topology: 'mixer', color: ['#e02020', '#20c020', '#2040e0'][i]!, tone: 330 + 110 * i }));
    const PATIENCE = { timeout: 40_000 };
    // Each page sees all three, itself included, in the order of joining.
    for (const page of pages) await expect.poll(() => colorsAt(page, [[160, 180], [480, 180], [320, 420], [40, 420]]), PATIENCE).toEqual(['red', 'green', 'blue', 'none']);
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
    const metrics = await (await fetch(`${server.url}/metrics`)).text();
    console.log(metrics.split('\n').filter((line) => line.startsWith('millrace_composite')).join('\n'));
    expect(Number(/^millrace_composite_frames_total (\d+)/m.exec(metrics)?.[1])).toBeGreaterThan(20);
  } finally {
    await context.close();
    await server.stop();
  }
});
