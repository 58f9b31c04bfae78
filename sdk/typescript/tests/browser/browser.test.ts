// The client in a real browser, page and worker, against the real server on another origin.
import { afterEach, beforeEach, expect, inject, test, vi } from 'vitest';
import { millrace, type Client, type Event, type TransportName } from '../../src/index.js';
import { latency } from '../../src/latency.js';
import { PreconditionFailed, state } from '../../src/state.js';
import { traced } from '../../src/trace.js';

const ALL: readonly TransportName[] = ['websocket', 'http-stream', 'sse', 'long-poll', 'poll'];
const url = inject('millraceUrl');
const overDataChannels = test.skipIf(!inject('hasDataChannels'));
let clients: Client[] = [];

beforeEach(() => sessionStorage.clear());
afterEach(async () => {
  for (const each of clients) await each.close();
  clients = [];
});

function connect(options: Parameters<typeof millrace>[1] = {}): Client {
  const made = millrace(url, { pollMs: 20, ...options });
  clients.push(made);
  return made;
}

const seen = (condition: () => boolean): Promise<void> => vi.waitFor(() => expect(condition()).toBe(true), { timeout: 8000, interval: 5 });

async function echo(transport: TransportName): Promise<void> {
  const mr = connect({ transports: [transport] });
  const channel = `page/${transport}`;
  const subscription = mr.subscribe(channel);
  const got: Event[] = [];
  subscription.on((event) => got.push(event));
  await subscription.ready;
  const sent = [0, 'text', { a: 1 }, new Uint8Array([1, 2, 255])];
  for (const each of sent) await mr.publish(channel, each);
  await seen(() => got.length === sent.length);
  expect(got.map(({ data }) => data)).toEqual(sent);
}

test.each(ALL)('%s in a page', echo);
overDataChannels('data-channel in a page', () => echo('data-channel'));

async function keyedState(transport: TransportName): Promise<void> {
  const mr = connect({ transports: [transport] });
  const list = state<number>(mr, `list/${transport}`);
  await list.ready;
  const { position } = await list.set('a', 1, { ifMatch: '0' });
  await list.set('b', 2);
  await expect(list.set('a', 3, { ifMatch: '0' })).rejects.toBeInstanceOf(PreconditionFailed);
  await list.delete('a', { ifMatch: position });
  await seen(() => list.size === 1 && list.get('b') === 2);
  const later = state<number>(connect({ transports: [transport] }), `list/${transport}`);
  await later.ready;
  expect([...later].map(({ key, value }) => [key, value])).toEqual([['b', 2]]);
}

test.each(ALL)('%s: a keyed state in a page', keyedState);
overDataChannels('data-channel: a keyed state in a page', () => keyedState('data-channel'));

async function callbackLatency(transport: TransportName): Promise<void> {
  const mr = latency(connect({ transports: [transport] }));
  const channel = `page/latency/${transport}`;
  const subscription = mr.subscribe(channel);
  let events = 0;
  subscription.on(() => events++);
  await subscription.ready;
  await seen(() => mr.stats().latency.errorMs !== undefined);
  for (let n = 0; n < 10; n++) await mr.publish(channel, n);
  await seen(() => events === 10);
  const { count, p50, errorMs, offsetMs } = mr.stats().latency;
  expect(count).toBe(10);
  // Page and server have the same clock. The clocks of a page have a resolution of up to a millisecond each.
  expect(Math.abs(offsetMs!)).toBeLessThanOrEqual(errorMs! + 3);
  expect(p50!).toBeGreaterThan(-errorMs! - 3);
}

test.each(ALL)('%s: stats of a page have the latency', callbackLatency);
overDataChannels('data-channel: stats of a page have the latency', () => callbackLatency('data-channel'));

async function traceContext(transport: TransportName): Promise<void> {
  const context = (span: number): string => `00-4bf92f3577b34da6a3ce929d0e0e4736-${String(span).padStart(16, '0')}-01`;
  const channel = `page/traced/${transport}`;
  const mr = connect({ transports: [transport] });
  const subscription = mr.subscribe(channel);
  const got: Event[] = [];
  subscription.on((event) => got.push(event));
  await subscription.ready;
  let running: string | undefined = context(1);
  const publisher = traced(connect({ transports: [transport] }), () => running);
  await publisher.publish(channel, 1);
  await publisher.publish(channel, 2, { trace: context(2), key: 'k' });
  running = undefined;
  await publisher.publish(channel, 3);
  await publisher.publish(channel, 4, { trace: 'malformed' });
  await seen(() => got.length === 4);
  const expected = [context(1), context(2), undefined, undefined];
  expect(got.map(({ trace }) => trace)).toEqual(expected);
  expect((await mr.history(channel)).map(({ trace }) => trace)).toEqual(expected);
}

// Node has no data channels, so this transport is tested here. The other ones are in trace.test.ts, too.
test.each(ALL)('%s: a trace context travels from publish to callback', traceContext);
overDataChannels('data-channel: a trace context travels from publish to callback', () => traceContext('data-channel'));

test.each([['auto'], ...ALL.map((name) => [[name]]), [['data-channel']]] as ['auto' | TransportName[]][])('%s: a forbidden origin error names the setting', async (transports) => {
  for (const token of [undefined, 'x']) {
    const mr = millrace(inject('closedUrl'), { transports, pollMs: 20, ...(token && { token }) });
    clients.push(mr);
    const refusal = { code: 'auth', retryable: false, message: `origin not allowed: pages of ${location.origin} may not use this server; set \`limits.allowed_origins\`` };
    await expect(mr.publish('page/x', 1)).rejects.toMatchObject(refusal);
    expect(mr.state).toMatchObject({ name: 'closed', cause: refusal });
  }
});

test.each(ALL)('complaint 12: %s in a worker', async (transport) => {
  const worker = new Worker(new URL('./worker.ts', import.meta.url), { type: 'module' });
  const answer = await new Promise((resolve, reject) => {
    worker.onmessage = ({ data }) => resolve(data);
    worker.onerror = reject;
    worker.postMessage({ url, transport });
  });
  worker.terminate();
  expect(answer).toEqual({ got: [0, 1, 2, 3, 4], window: false });
});

overDataChannels('data channel carries large messages, gaps, history and lossy latest', async () => {
  const mr = connect({ transports: ['data-channel'] });
  const subscription = mr.subscribe('page/dc/every');
  const got: Event[] = [];
  subscription.on((event) => got.push(event));
  const newest: Event[] = [];
  const lossy = mr.subscribe('page/dc/latest', { policy: 'latest' });
  lossy.on((event) => newest.push(event));
  await Promise.all([subscription.ready, lossy.ready]);
  const large = { text: 'ä€😀'.repeat(60_000) };
  await mr.publish('page/dc/every', large);
  const all = Array.from({ length: 500 }, (_, n) => n);
  await Promise.all(all.map((n) => Promise.all([mr.publish('page/dc/every', n), mr.publish('page/dc/latest', n)])));
  await seen(() => got.length === 501);
  // The last message may be lost, and is not retransmitted. In that case, the next message arrives.
  let last = 499;
  const isNewest = async (): Promise<void> => {
    if (newest.at(-1)?.data !== last) await mr.publish('page/dc/latest', ++last);
    expect(newest.at(-1)?.data).toBe(last);
  };
  await vi.waitFor(isNewest, { timeout: 8000, interval: 200 });
  expect(got[0]!.data).toEqual(large);
  expect(got.slice(1).map(({ data }) => data)).toEqual(all);
  expect(newest.map(({ offset }) => offset)).toEqual(newest.map(({ offset }) => offset).sort((a, b) => Number(a - b)));
  // On a busy machine, the channel that may lose messages can lose some. `lost` counts them.
  expect(mr.stats()).toMatchObject({ transport: 'data-channel', gaps: 0, reconnects: 0 });
  expect((await mr.history('page/dc/every', { since: 501n })).length).toBe(0);
  await expect(mr.publish('page/dc/every', 'x'.repeat(1 << 21))).rejects.toMatchObject({ reason: 'too_large' });
});

overDataChannels('switching between data channel and WebSocket loses nothing', async () => {
  const mr = connect({ transports: ['data-channel', 'websocket'] });
  const got: unknown[] = [];
  const subscription = mr.subscribe('page/dc/moves');
  subscription.on(({ data }) => got.push(data));
  await subscription.ready;
  for (let n = 0; n < 30; n++) {
    if (n === 10) await mr.use('websocket');
    if (n === 20) await mr.use('data-channel');
    await mr.publish('page/dc/moves', n);
  }
  await seen(() => got.length === 30);
  expect(got).toEqual(Array.from({ length: 30 }, (_, n) => n));
  expect(mr.stats().transport).toBe('data-channel');
});

test('auto uses the WebSocket and remembers it', async () => {
  const mr = connect();
  await mr.ready();
  expect(mr.state).toMatchObject({ name: 'open', transport: 'websocket' });
  await mr.use('sse');
  expect(sessionStorage.getItem(`millrace:${url}`)).toMatch(/^websocket \d+$/);
});

test('the last winning transport is tried first', async () => {
  sessionStorage.setItem(`millrace:${url}`, `sse ${Date.now()}`);
  const mr = connect();
  await mr.ready();
  expect(mr.state).toMatchObject({ transport: 'sse' });
  sessionStorage.setItem(`millrace:${url}`, `sse ${Date.now() - 31 * 60_000}`);
  const later = connect();
  await later.ready();
  expect(later.state).toMatchObject({ transport: 'websocket' });
});

test('complaint 01: the browser’s online event triggers a retry', async () => {
  const states: string[] = [];
  const mr = millrace('http://127.0.0.1:9', { transports: ['poll'], retry: { min: 60_000, max: 60_000, jitter: 'none' } });
  clients.push(mr);
  mr.onState(({ name }) => states.push(name));
  mr.ready().catch(() => {});
  await seen(() => mr.state.name === 'connecting' && mr.state.retryAt !== undefined);
  const before = states.length;
  dispatchEvent(new Event_('online'));
  expect(states.length).toBeGreaterThan(before);
  expect(mr.state).not.toHaveProperty('retryAt');
});

test('complaint 07: no page event reopens a closed client', async () => {
  const mr = connect();
  await mr.ready();
  await mr.close();
  for (const type of ['online', 'pageshow', 'visibilitychange', 'resume']) dispatchEvent(new Event_(type));
  await new Promise((resolve) => requestAnimationFrame(resolve));
  expect(mr.state).toEqual({ name: 'closed' });
});

test('the fifth HTTP stream to one origin logs a warning', async () => {
  const warnings: string[] = [];
  for (let n = 0; n < 5; n++) {
    connect({ transports: ['http-stream'], log: ({ level, msg }) => level === 'warn' && warnings.push(msg) }).subscribe(`warn/${n}`);
  }
  await seen(() => warnings.length === 1);
  expect(warnings[0]).toContain('six connections');
});

/** The browser's Event. In this file, `Event` is a publication. */
const Event_ = globalThis.Event;
