// Clients on networks that block UDP: they can use only the TCP candidates that the server offers.
import { expect, test, type BrowserContext, type Page } from '@playwright/test';
import { openBlankPage, join, receivedNumbers, quality, sendAll } from './room-page.ts';
import { serve, type Server } from './server.ts';

declare global {
  interface Window {
    connections: Set<RTCPeerConnection>;
  }
}

let server: Server;

test.beforeAll(async () => {
  server = await serve();
});

test.afterAll(async () => {
  await server?.stop();
});

/** Removes the server's UDP candidates in all pages of this context, so that only TCP connections remain. */
const onlyTcp = (context: BrowserContext): Promise<unknown> =>
  context.addInitScript(() => {
    window.connections = new Set();
    type Set = (this: RTCPeerConnection, description: RTCSessionDescriptionInit) => Promise<void>;
    const set = RTCPeerConnection.prototype.setRemoteDescription as Set;
    RTCPeerConnection.prototype.setRemoteDescription = function (description) {
      window.connections.add(this);
      return set.call(this, { type: description.type, sdp: description.sdp!.replace(/^a=candidate:\S+ \d udp .*\r\n/gim, '') });
    } as Set as typeof RTCPeerConnection.prototype.setRemoteDescription;
  });

/**
 * Returns the protocol of the selected candidate pair of each connection of the page. The state of that pair is no
 * criterion: Chromium reports `in-progress` from each connectivity check until its response.
 */
const protocols = (page: Page): Promise<unknown[]> =>
  page.evaluate(async () => {
    const protocolOf = async (connection: RTCPeerConnection): Promise<unknown> => {
      const stats = [...((await connection.getStats()) as unknown as Map<string, Record<string, unknown>>).values()];
      const selected = stats.find(({ type }) => type === 'transport')?.selectedCandidatePairId;
      const pair = stats.find(({ id }) => id === selected);
      return stats.find(({ id }) => id === pair?.remoteCandidateId)?.protocol;
    };
    return Promise.all([...window.connections].map(protocolOf));
  });

test('data channels over TCP keep size and order', async ({ context, page }) => {
  await onlyTcp(context);
  await page.goto(`${server.url}/v1/info`);
  const sizes = Array.from({ length: 100 }, (_, i) => i * i * 8);
  const lengths = await page.evaluate(async (sizes) => {
    const connection = new RTCPeerConnection();
    const channel = connection.createDataChannel('millrace');
    await connection.setLocalDescription();
    const headers = { 'content-type': 'application/sdp' };
    const answer = await fetch('/v1/connect', { method: 'POST', headers, body: connection.localDescription!.sdp });
    const got: number[] = [];
    const all = new Promise<void>((resolve, reject) => {
      setTimeout(() => reject(new Error(`${got.length} of ${sizes.length} came; ${connection.iceConnectionState}`)), 20_000);
      let text = '';
      channel.onmessage = ({ data }: MessageEvent<string>) => {
        const lines = (text += data).split('\n');
        text = lines.pop()!;
        for (const line of lines) {
          const { data } = JSON.parse(line || '{}') as { data?: string };
          if (data !== undefined && got.push(data.length) === sizes.length) resolve();
        }
      };
    });
    channel.onopen = () => {
      const send = (command: object): void => channel.send(`${JSON.stringify(command)}\n`);
      send({ id: 1, subscribe: { channel: 'over-tcp', since: 'now' } });
      sizes.forEach((size, i) => send({ id: i + 2, publish: { channel: 'over-tcp', data: 'x'.repeat(size) } }));
    };
    await connection.setRemoteDescription({ type: 'answer', sdp: await answer.text() });
    await all;
    return got;
  }, sizes);
  expect(lengths).toEqual(sizes);
  expect(await protocols(page)).toEqual(['tcp']);
});

test('the SFU forwards video over TCP', async ({ context }) => {
  await onlyTcp(context);
  const pages = [await openBlankPage(context, server.url), await openBlankPage(context, server.url)];
  const ids: string[] = [];
  for (const page of pages) ids.push(await join(page, 'over-tcp', { topology: 'switch', video: true, name: `peer ${ids.length}` }));
  const frames = async (page: Page): Promise<number> => (await quality(page)).links.reduce((sum, { frames }) => sum + (frames ?? 0), 0);
  for (const page of pages) await expect.poll(() => frames(page), { timeout: 30_000 }).toBeGreaterThan(30);
  for (const page of pages) expect(await protocols(page)).toEqual(['tcp']);
  await sendAll(pages, 100);
  for (const page of pages) await expect.poll(async () => Object.values(await receivedNumbers(page)).flat().length).toBe(100);
});
