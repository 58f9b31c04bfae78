// A publisher and viewers that use WHIP and WHEP without the project's client: the rules of RFC 9725, and real video.
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { expect, test, type Page } from '@playwright/test';
import { serve, type Server } from './server.ts';

let server: Server;
test.beforeAll(async () => (server = await serve()));
test.afterAll(() => server?.stop());

/** Runs in the page: publishes moving video and audio to `room` and returns the server's answer. */
async function publish(room: string): Promise<{ status: number; location: string; etag: string; type: string }> {
  const canvas = document.createElement('canvas');
  [canvas.width, canvas.height] = [320, 240];
  const pen = canvas.getContext('2d')!;
  let n = 0;
  setInterval(() => {
    n++;
    pen.fillStyle = `hsl(${(n * 7) % 360} 80% 50%)`;
    pen.fillRect(0, 0, 320, 240);
    pen.fillStyle = 'white';
    pen.fillRect((n * 5) % 320, (n * 3) % 240, 60, 60);
  }, 33);
  const sound = new AudioContext();
  const speaker = sound.createMediaStreamDestination();
  const tone = sound.createOscillator();
  tone.connect(speaker);
  tone.start();
  const pc = new RTCPeerConnection();
  for (const track of [...speaker.stream.getTracks(), ...canvas.captureStream(30).getTracks()]) pc.addTransceiver(track, { direction: 'sendonly' });
  await pc.setLocalDescription();
  const response = await fetch(`/v1/rooms/${room}/whip?name=camera`, { method: 'POST', headers: { 'content-type': 'application/sdp' }, body: pc.localDescription!.sdp });
  const sdp = await response.text();
  if (response.status === 201) await pc.setRemoteDescription({ type: 'answer', sdp });
  (window as { publisher?: RTCPeerConnection }).publisher = pc;
  const header = (name: string) => response.headers.get(name) ?? '';
  return { status: response.status, location: header('location'), etag: header('etag'), type: header('content-type') };
}

/**
 * Runs in the page: views `room` until 30 frames are decoded. Returns the time to the first frame and stream
 * statistics.
 */
async function view(room: string): Promise<{ location: string; firstMs: number; frames: number; fps: number; sound: number; width: number }> {
  const started = performance.now();
  const pc = new RTCPeerConnection();
  pc.addTransceiver('audio', { direction: 'recvonly' });
  pc.addTransceiver('video', { direction: 'recvonly' });
  const shown = new Promise<HTMLVideoElement>((resolve) => {
    pc.ontrack = ({ track }) => {
      if (track.kind !== 'video') return;
      const video = document.createElement('video');
      [video.muted, video.autoplay] = [true, true];
      video.srcObject = new MediaStream([track]);
      document.body.append(video);
      video.requestVideoFrameCallback(() => resolve(video));
    };
  });
  await pc.setLocalDescription();
  const response = await fetch(`/v1/rooms/${room}/whep`, { method: 'POST', headers: { 'content-type': 'application/sdp' }, body: pc.localDescription!.sdp });
  await pc.setRemoteDescription({ type: 'answer', sdp: await response.text() });
  const video = await shown;
  const firstMs = performance.now() - started;
  const inbound = async (kind: string) => [...(await pc.getStats()).values()].find((each) => each.type === 'inbound-rtp' && each.kind === kind);
  const end = performance.now() + 15_000;
  while (((await inbound('video'))?.framesDecoded ?? 0) < 30 && performance.now() < end) await new Promise((resolve) => setTimeout(resolve, 50));
  const seen = await inbound('video');
  return {
    location: response.headers.get('location') ?? '',
    firstMs,
    frames: seen?.framesDecoded ?? 0,
    fps: seen?.framesPerSecond ?? 0,
    sound: (await inbound('audio'))?.packetsReceived ?? 0,
    width: video.videoWidth,
  };
}

test('WHIP publishes, WHEP plays, DELETE ends', async ({ context }) => {
  const [camera, viewer] = [await context.newPage(), await context.newPage()];
  for (const page of [camera, viewer]) await page.goto(server.url);
  await camera.bringToFront();
  const published = await camera.evaluate(publish, 'stage');
  expect(published).toMatchObject({ status: 201, type: 'application/sdp' });
  expect(published.location).toMatch(/^\/v1\/rooms\/stage\/media\/[0-9a-f]{32}$/);
  expect(published.etag).toMatch(/^"\d+"$/);

  const seen = await viewer.evaluate(view, 'stage');
  console.log(`whep: first frame after ${Math.round(seen.firstMs)} ms, ${seen.fps} frames/s, ${seen.width} px wide, ${seen.sound} audio packets`);
  expect(seen.frames).toBeGreaterThanOrEqual(30);
  expect(seen.width).toBe(320);
  expect(seen.sound).toBeGreaterThan(10);

  const session = server.url + published.location;
  const fragment = (names: string) => ({ 'content-type': 'application/trickle-ice-sdpfrag', ...(names ? { 'if-match': names } : {}) });
  const candidate = 'a=mid:0\r\na=candidate:1 1 udp 1 192.0.2.1 9 typ host\r\n';
  const restart = 'a=ice-ufrag:abcd\r\na=ice-pwd:0123456789012345678901\r\n';
  const patch = (data: string, headers: Record<string, string>) => viewer.request.patch(session, { data, headers });
  expect((await patch(candidate, fragment(''))).status()).toBe(428);
  expect((await patch(candidate, fragment('"999"'))).status()).toBe(412);
  expect((await patch(candidate, fragment(published.etag))).status()).toBe(204);
  expect((await patch(candidate, { 'content-type': 'text/plain' })).status()).toBe(415);
  const restarted = await patch(restart, fragment('*'));
  expect([restarted.status(), restarted.headers()['etag']]).toEqual([200, '"2"']);
  const names = await restarted.text();
  for (const line of [/^a=ice-ufrag:.{4,}\r$/m, /^a=ice-pwd:.{22,}\r$/m, /^a=candidate:.* typ host/m]) expect(names).toMatch(line);
  expect((await viewer.request.get(session)).status()).toBe(405);
  expect((await viewer.request.delete(session)).status()).toBe(200);
  expect((await viewer.request.delete(session)).status()).toBe(404);
  expect((await viewer.request.delete(server.url + seen.location)).status()).toBe(200);
});

/** Loads a third-party client, written by an author of RFC 9725. */
async function load(page: Page): Promise<void> {
  await page.goto(server.url);
  for (const name of ['whip', 'whep']) {
    const source = readFileSync(createRequire(import.meta.url).resolve(`whip-whep/${name}.js`), 'utf8');
    await page.addScriptTag({ type: 'module', content: `${source}\nwindow.${name} = new ${name.toUpperCase()}Client();` });
  }
  // A module runs some time after it is added. Polls by time, because a hidden page has no animation frames.
  await page.waitForFunction(() => 'whip' in window && 'whep' in window, undefined, { polling: 20 });
}

type Foreign = {
  whip: { publish(pc: RTCPeerConnection, url: string): Promise<void>; restart(): Promise<void>; stop(): Promise<void> };
  whep: { view(pc: RTCPeerConnection, url: string): Promise<void>; stop(): Promise<void> };
  seen: RTCPeerConnection;
};

test.describe('third-party clients', () => {
  test.use({ bypassCSP: true });
  test('publishing and playback survive an ICE restart', async ({ context }) => {
    const [camera, viewer] = [await context.newPage(), await context.newPage()];
    await load(camera);
    await load(viewer);
    await camera.bringToFront();
    await camera.evaluate(async () => {
      const canvas = document.createElement('canvas');
      const pen = canvas.getContext('2d')!;
      let n = 0;
      setInterval(() => {
        pen.fillStyle = `hsl(${(n++ * 7) % 360} 80% 50%)`;
        pen.fillRect(0, 0, canvas.width, canvas.height);
      }, 33);
      const pc = new RTCPeerConnection();
      pc.addTransceiver(canvas.captureStream(30).getVideoTracks()[0]!, { direction: 'sendonly' });
      await (window as unknown as Foreign).whip.publish(pc, new URL('/v1/rooms/others/whip', location.href).href);
    });
    await viewer.evaluate(async () => {
      const pc = new RTCPeerConnection();
      pc.addTransceiver('video', { direction: 'recvonly' });
      (window as unknown as Foreign).seen = pc;
      await (window as unknown as Foreign).whep.view(pc, new URL('/v1/rooms/others/whep', location.href).href);
    });
    const decoded = (): Promise<number> =>
      viewer.evaluate(async () => {
        const stats = [...(await (window as unknown as Foreign).seen.getStats()).values()];
        return stats.find((each) => each.type === 'inbound-rtp')?.framesDecoded ?? 0;
      });
    await expect.poll(decoded, { timeout: 15_000 }).toBeGreaterThan(30);
    await camera.evaluate(() => (window as unknown as Foreign).whip.restart());
    const before = await decoded();
    // 200 more frames take longer than the old ICE connection would remain valid.
    await expect.poll(decoded, { timeout: 20_000 }).toBeGreaterThan(before + 200);
    await viewer.evaluate(() => (window as unknown as Foreign).whep.stop());
    await camera.evaluate(() => (window as unknown as Foreign).whip.stop());
  });
});

test('an invalid offer is refused with the reason', async ({ request }) => {
  const at = (headers: Record<string, string>, data = 'v=0') => request.post(`${server.url}/v1/rooms/stage/whip`, { data, headers });
  expect((await at({ 'content-type': 'text/plain' })).status()).toBe(415);
  expect((await at({ 'content-type': 'application/sdp', accept: 'text/html' })).status()).toBe(406);
  const bad = await at({ 'content-type': 'application/sdp' });
  expect(bad.status()).toBe(400);
  expect((await bad.json()).detail).toContain('the offer cannot be used');
  expect((await at({ 'content-type': 'application/sdp' }, 'x'.repeat(70_000))).status()).toBe(413);
  const options = await request.fetch(`${server.url}/v1/rooms/stage/whep`, { method: 'OPTIONS' });
  expect([options.status(), options.headers()['accept-post']]).toEqual([204, 'application/sdp']);
  expect((await request.get(`${server.url}/v1/rooms/stage/whep`)).status()).toBe(405);
});
