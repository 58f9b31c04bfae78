// The latency from publishing to the callback, and the estimate of the server's clock.
import { afterAll, beforeAll, expect, test, vi } from 'vitest';
import { WebSocket } from 'ws';
import { millrace, type TransportName } from '../src/index.js';
import { ClockEstimate, latency } from '../src/latency.js';
import { startMillrace, type RunningServer } from './millrace.js';

let server: RunningServer;
beforeAll(async () => void (server = await startMillrace()));
afterAll(() => server.stop());

/** Returns numbers in [0, 1) that depend only on the seed. */
function generator(seed: number): () => number {
  let state = seed;
  return () => (state = (state * 1103515245 + 12345) % 2 ** 31) / 2 ** 31;
}

test('the true difference of the clocks is within the error, whatever the delays and the drift', () => {
  for (let seed = 1; seed <= 300; seed++) {
    const random = generator(seed);
    const start = (random() - 0.5) * 1e7;
    const drift = (random() - 0.5) * 1e-4;
    const offset = (now: number): number => start + now * drift;
    const clock = new ClockEstimate();
    let narrowest = Infinity;
    for (let now = 0, n = 0; n < 40; n++) {
      const sent = now;
      // The two directions differ: an estimate of half the round trip alone would be wrong.
      const read = sent + random() ** 3 * 200;
      const received = read + random() ** 3 * 20;
      expect(clock.add(sent, received, Math.floor(read + offset(read)))).toBe(false);
      now = received + random() * 30_000;
      const estimate = clock.at(now)!;
      expect(Math.abs(estimate.offset - offset(now))).toBeLessThanOrEqual(estimate.error);
      narrowest = Math.min(narrowest, estimate.error);
    }
    expect(narrowest).toBeLessThan(60);
  }
});

test('a clock that was set gives a new estimate', () => {
  const clock = new ClockEstimate();
  expect(clock.at(0)).toBeUndefined();
  clock.add(0, 10, 5_000);
  expect(clock.at(10)!.offset).toBeCloseTo(4_995.5, 0);
  expect(clock.add(20, 30, 9_000)).toBe(true);
  expect(clock.at(30)!.offset).toBeCloseTo(8_975.5, 0);
});

test('stats have the latency of listeners and of loops, with its error', async () => {
  const mr = latency(millrace(server.url, { WebSocket, transports: ['websocket'] }));
  expect(mr.stats().latency).toEqual({ count: 0, p50: undefined, p99: undefined, max: undefined, errorMs: undefined, offsetMs: undefined });
  const listened = mr.subscribe('latency/on');
  let events = 0;
  listened.on(() => events++);
  const iterated = mr.subscribe('latency/loop');
  await Promise.all([listened.ready, iterated.ready]);
  await vi.waitFor(() => expect(mr.stats().latency.errorMs).toBeDefined());
  for (let n = 0; n < 20; n++) await mr.publish('latency/on', n);
  await vi.waitFor(() => expect(events).toBe(20));
  const { count, p50, p99, errorMs, offsetMs } = mr.stats().latency;
  expect(count).toBe(20);
  // Client and server have the same clock.
  expect(Math.abs(offsetMs!)).toBeLessThanOrEqual(errorMs! + 1);
  expect(p50!).toBeGreaterThan(-errorMs!);
  expect(p99!).toBeGreaterThanOrEqual(p50!);
  // A loop that is slow to read has a longer latency. The measured time includes the queue.
  await mr.publish('latency/loop', 'x');
  await vi.waitFor(() => expect(Date.now() - iterated.latest()!.receivedAt).toBeGreaterThan(250));
  for await (const event of iterated) {
    expect(event.data).toBe('x');
    break;
  }
  const { max, errorMs: error } = mr.stats().latency;
  expect(max!).toBeGreaterThan(250 - error!);
  await mr.close();
});

test('events from history have no latency', async () => {
  const writer = millrace(server.url, { transports: ['http-stream'] });
  await writer.publish('latency/old', 1);
  const old = latency(millrace(server.url, { WebSocket, transports: ['websocket'] }));
  const events: unknown[] = [];
  old.subscribe('latency/old', { from: 'earliest' }).on((event) => events.push(event));
  await vi.waitFor(() => expect(events.length).toBe(1));
  expect(old.stats().latency.count).toBe(0);
  await old.close();
  await writer.close();
});

test.each<TransportName>(['websocket', 'http-stream', 'sse', 'long-poll', 'poll'])('%s: stats have the latency, with its error', async (transport) => {
  const mr = latency(millrace(server.url, { WebSocket, transports: [transport], pollMs: 20 }));
  const channel = `latency/${transport}`;
  const subscription = mr.subscribe(channel);
  let events = 0;
  subscription.on(() => events++);
  await subscription.ready;
  await vi.waitFor(() => expect(mr.stats().latency.errorMs).toBeDefined());
  const began = performance.now();
  for (let n = 0; n < 20; n++) await mr.publish(channel, n);
  await vi.waitFor(() => expect(events).toBe(20));
  const longest = performance.now() - began;
  const { count, p50, p99, max, errorMs, offsetMs } = mr.stats().latency;
  expect(count).toBe(20);
  // Client and server have the same clock.
  expect(Math.abs(offsetMs!)).toBeLessThanOrEqual(errorMs! + 1);
  expect(p50!).toBeGreaterThan(-errorMs!);
  expect(p99!).toBeGreaterThanOrEqual(p50!);
  expect(max!).toBeLessThan(longest + errorMs!);
  await mr.close();
});

test('the error over HTTP is at least half the round trip, and covers a path that is slow in one direction', async () => {
  const slow = 100;
  let pings = 0;
  // Answers of the server take longer than requests.
  const fetchSlowly: typeof fetch = async (input, init) => {
    const response = await fetch(input, init);
    if (!String(input).includes('/v1/info')) return response;
    pings++;
    await new Promise((resolve) => setTimeout(resolve, slow));
    return response;
  };
  const mr = latency(millrace(server.url, { transports: ['http-stream'], fetch: fetchSlowly }));
  await mr.ready();
  await vi.waitFor(() => expect(mr.stats().latency.errorMs).toBeDefined());
  const { errorMs, offsetMs } = mr.stats().latency;
  expect(pings).toBeGreaterThan(0);
  // A timer may fire a millisecond early.
  expect(errorMs!).toBeGreaterThanOrEqual(slow / 2 - 1);
  expect(Math.abs(offsetMs!)).toBeLessThanOrEqual(errorMs! + 1);
  await mr.close();
});

test('a server that does not report its time gives no latency', async () => {
  const withoutTime: typeof fetch = async (input, init) => {
    const response = await fetch(input, init);
    if (!String(input).includes('/v1/info')) return response;
    const { time: _, ...info } = (await response.json()) as Record<string, unknown>;
    return Response.json(info);
  };
  const mr = latency(millrace(server.url, { transports: ['sse'], fetch: withoutTime }));
  const subscription = mr.subscribe('latency/without');
  let events = 0;
  subscription.on(() => events++);
  await subscription.ready;
  await mr.publish('latency/without', 1);
  await vi.waitFor(() => expect(events).toBe(1));
  expect(mr.stats().latency).toMatchObject({ count: 1, p50: undefined, errorMs: undefined });
  await mr.close();
});
