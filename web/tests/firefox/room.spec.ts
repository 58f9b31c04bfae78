// A call between Firefox and Chromium on the room page, in the topologies that use the server and in a mesh.
import { expect, type Page as ChromiumPage } from '@playwright/test';
import type { LinkQuality } from '../../../sdk/typescript/src/room/index.ts';
import { violations, WCAG } from '../page.ts';
import type {} from '../tcp.spec.ts';
import { click, needsUdp, test, textOf, type Page } from './fox.ts';

/** Runs before the scripts of the page. */
function record(): void {
  window.connections = new Set();
  window.RTCPeerConnection = class extends RTCPeerConnection {
    constructor(configuration?: RTCConfiguration) {
      super(configuration);
      window.connections.add(this);
    }
  };
}

/** Returns the number of video frames that the page has decoded, over all its connections. */
async function decoded(): Promise<number> {
  const reports = await Promise.all([...window.connections].filter(({ connectionState }) => connectionState !== 'closed').map((one) => one.getStats()));
  return reports
    .flatMap((report) => [...report.values()])
    .filter(({ type, kind }) => type === 'inbound-rtp' && kind === 'video')
    .reduce((sum: number, { framesDecoded }) => sum + (framesDecoded ?? 0), 0);
}

/** Returns the size of the remote participant's video in its tile, or 0. */
const remoteWidth = (): number => [...document.querySelectorAll<HTMLVideoElement>('[role=group]:not(.mine) > video')].find(({ hidden, videoWidth }) => !hidden && videoWidth > 0)?.videoWidth ?? 0;

const ALL_STREAMS = ['RTT', 'in audio', 'in video', 'out audio', 'out video'];
/**
 * Figures in the report of each participant, beside the kind of path. Firefox reports neither its uplink nor what
 * limits its video.
 */
const MEASURED = { Fox: ALL_STREAMS, Chrome: [...ALL_STREAMS, 'uplink', 'limit'] };

/** Returns the known figures, the kind of path and the streams in the newest report of participant `name`. */
async function measured(room: string, name: string): Promise<string[]> {
  const { participants, reports } = (await (await fetch(room.replace('/rooms/', '/v1/rooms/'))).json()) as {
    participants: { id: string; name: string }[];
    reports: Record<string, { uplink_kbps?: number; rtt_ms?: number; links: LinkQuality[] }>;
  };
  const { links, ...own } = reports[participants.find((one) => one.name === name)?.id ?? ''] ?? { links: [] };
  const streams = links.flatMap((link) => link.streams.filter(({ rate_kbps }) => rate_kbps > 0).map(({ direction, kind }) => `${direction} ${kind}`));
  const out = links.flatMap((link) => link.streams.filter(({ direction, kind }) => direction === 'out' && kind === 'video'));
  const known = [...(own.uplink_kbps ? ['uplink'] : []), ...(own.rtt_ms !== undefined ? ['RTT'] : []), ...(out.some(({ limited_by }) => limited_by) ? ['limit'] : [])];
  return [...new Set([...links.map(({ kind }) => kind), ...known, ...streams])].sort();
}

const PATIENCE = { timeout: 60_000 };
let rooms = 0;

async function enterInFirefox(page: Page, name: string, topology: string): Promise<void> {
  await page.waitForSelector('#topology');
  await page.select('#topology', topology);
  await page.locator('#name').fill(name);
  await expect.poll(() => page.$$eval('.devices [aria-pressed=true]', (all) => all.length), { ...PATIENCE, message: 'camera and microphone' }).toBe(2);
  await click(page, 'form button.primary');
  await page.waitForSelector('[role=toolbar]', PATIENCE);
}

async function enterInChromium(page: ChromiumPage, name: string): Promise<void> {
  await page.locator('#name').fill(name, PATIENCE);
  await expect(page.locator('.devices [aria-pressed=true]')).toHaveCount(2, PATIENCE);
  await page.locator('form button.primary').click();
  await page.getByRole('toolbar').waitFor(PATIENCE);
}

for (const topology of ['switch', 'mesh', 'relay']) {
  test(`Firefox and Chromium see each other: ${topology}`, async ({ open, server, browser }) => {
    if (topology !== 'mesh') needsUdp();
    const path = `/rooms/fox-${process.pid}-${++rooms}`;
    const context = await browser.newContext();
    try {
      const fox = await open(path, (page) => page.evaluateOnNewDocument(record));
      await enterInFirefox(fox, 'Fox', topology);
      const chromium = await context.newPage();
      await chromium.addInitScript(record);
      await chromium.goto(server + path);
      await enterInChromium(chromium, 'Chrome');

      const inFirefox = () => fox.evaluate(decoded);
      const inChromium = () => chromium.evaluate(decoded);
      await expect.poll(inFirefox, { ...PATIENCE, message: 'frames of Chromium in Firefox' }).toBeGreaterThan(30);
      await expect.poll(inChromium, { ...PATIENCE, message: 'frames of Firefox in Chromium' }).toBeGreaterThan(30);
      await expect.poll(() => fox.evaluate(remoteWidth), PATIENCE).toBeGreaterThan(0);
      await expect.poll(() => chromium.evaluate(remoteWidth), PATIENCE).toBeGreaterThan(0);

      await chromium.getByRole('log').waitFor();
      await fox.locator('#message').fill('hello from Firefox');
      await fox.keyboard.press('Enter');
      await expect(chromium.getByRole('log')).toContainText('hello from Firefox', PATIENCE);
      expect(await textOf(fox, '[role=log]')).toContain('hello from Firefox');
      expect(await violations(fox, WCAG, ['region', 'heading-order'])).toEqual([]);

      // Both measure their links: the network path, and each stream that they send and receive.
      const kind = topology === 'relay' ? 'relay' : 'host';
      for (const [name, figures] of Object.entries(MEASURED)) {
        const expected = [...figures, kind].sort();
        await expect.poll(() => measured(server + path, name), { ...PATIENCE, message: `report of ${name}` }).toEqual(expected);
      }
      await click(fox, '[role=toolbar] ::-p-text(Quality)');
      await expect.poll(() => textOf(fox, '#quality dl'), PATIENCE).toContain('not reported by this browser');
    } finally {
      await context.close();
    }
  });
}
