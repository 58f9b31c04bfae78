// The client against the real server.
import { createHmac } from 'node:crypto';
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import { WebSocket } from 'ws';
import { millrace, type ConnectOptions, type Event, type Subscription, type TransportName } from '../src/index.js';
import { until } from './faulty-server.js';
import { startProxy } from './proxy.js';
import { startMillrace, type RunningServer } from './millrace.js';

const ALL: readonly TransportName[] = ['websocket', 'http-stream', 'sse', 'long-poll', 'poll'];
let server: RunningServer;
let clients: { close(): Promise<void> }[] = [];
let channels = 0;

beforeAll(async () => {
  server = await startMillrace(['namespaces.short.count_max=5']);
});
afterAll(() => server?.stop());
afterEach(async () => {
  for (const each of clients) await each.close();
  clients = [];
});

function connect(options: ConnectOptions = {}) {
  const made = millrace(server.url, { WebSocket, pollMs: 20, ...options });
  clients.push(made);
  return made;
}

/** Returns a channel that no test has used. */
const fresh = (namespace = 'sdk'): string => `${namespace}/${++channels}`;
const upTo = (n: number): number[] => Array.from({ length: n }, (_, i) => i);
const data = (events: readonly Event[]): unknown[] => events.map((event) => event.data);
const gather = (subscription: Subscription): Event[] => {
  const got: Event[] = [];
  subscription.on((event) => got.push(event));
  return got;
};

test('connections use the requested heartbeat', async () => {
  const heartbeat = async (transport: TransportName): Promise<void> => {
    const [usual, own] = [connect({ transports: [transport] }), connect({ transports: [transport], heartbeatMs: 5000 })];
    for (const mr of [usual, own]) await mr.subscribe(fresh()).ready;
    const began = Date.now();
    await new Promise((resolve) => setTimeout(resolve, 1000));
    const received = [usual, own].map((mr) => mr.stats().bytesIn);
    await until(() => own.stats().bytesIn > received[1]!, `a heartbeat by ${transport}`);
    expect(Date.now() - began, transport).toBeGreaterThan(3000);
    expect([usual.stats().bytesIn, own.stats().reconnects], transport).toEqual([received[0], 0]);
  };
  await Promise.all((['websocket', 'http-stream', 'sse'] as const).map(heartbeat));
}, 15_000);

describe.each(ALL)('%s', (transport) => {
  test('receives each publication once and in order', async () => {
    const mr = connect({ transports: [transport] });
    const channel = fresh();
    const subscription = mr.subscribe(channel);
    const got = gather(subscription);
    await subscription.ready;
    const published = await Promise.all(upTo(50).map((n) => mr.publish(channel, n)));
    await until(() => got.length >= 50, '50 events');
    expect(data(got)).toEqual(upTo(50));
    expect(got.map(({ position }) => position)).toEqual(published.map(({ position }) => position));
    expect(got[0]).toMatchObject({ channel, offset: 1n, replayed: false });
    expect(Math.abs(got[0]!.publishedAt - got[0]!.receivedAt)).toBeLessThan(5000);
    expect(mr.stats()).toMatchObject({ transport, messages: 50, reconnects: 0, gaps: 0 });
  });

  test('JSON, text, bytes and keys arrive unchanged', async () => {
    const mr = connect({ transports: [transport] });
    const channel = fresh();
    const subscription = mr.subscribe(channel);
    const got = gather(subscription);
    await subscription.ready;
    const sent = [{ deep: [1, null, 'ä'] }, 'text\nof two lines', 'äöü €', new Uint8Array([0, 255, 10, 13]), null, true, 1.5];
    for (const each of sent) await mr.publish(channel, each, { key: 'k/1' });
    await until(() => got.length === sent.length, 'all');
    expect(data(got)).toEqual(sent);
    expect(got[0]!.key).toBe('k/1');
  });

  test('a large payload', async () => {
    const mr = connect({ transports: [transport] });
    const channel = fresh();
    const subscription = mr.subscribe(channel);
    const got = gather(subscription);
    await subscription.ready;
    const large = { text: 'ä'.repeat(500_000) };
    await mr.publish(channel, large);
    await until(() => got.length === 1, 'the payload');
    expect(got[0]!.data).toEqual(large);
    await expect(mr.publish(channel, 'x'.repeat(1 << 21))).rejects.toMatchObject({ code: 'rejected', reason: 'too_large' });
    expect((await mr.publish(channel, 'still here')).offset).toBe(2n);
  });

  test('the size limit counts payload bytes', async () => {
    const mr = connect({ transports: [transport] });
    const channel = fresh();
    const subscription = mr.subscribe(channel);
    const got = gather(subscription);
    await subscription.ready;
    const bytes = new Uint8Array(1 << 20).fill(7);
    await mr.publish(channel, bytes);
    await mr.publish(channel, '\n'.repeat(1_000_000));
    await until(() => got.length === 2, 'both');
    expect(Buffer.compare(got[0]!.data as Uint8Array, bytes)).toBe(0);
    for (const large of [new Uint8Array((1 << 20) + 1), 'ä'.repeat((1 << 19) + 1), ['x'.repeat(1 << 20)]]) {
      await expect(mr.publish(channel, large)).rejects.toMatchObject({ code: 'rejected', reason: 'too_large' });
    }
    expect((await mr.publish(channel, 'still here')).offset).toBe(3n);
    expect(mr.stats().reconnects).toBe(0);
  });

  test('expired history is reported as a gap', async () => {
    const mr = connect({ transports: [transport] });
    const channel = fresh('short');
    for (const n of upTo(12)) await mr.publish(channel, n);
    const { position } = await mr.history(channel, { limit: 1 });
    const epoch = position.split(':')[0];
    const subscription = mr.subscribe(channel, { from: { offset: 2n } });
    const got = gather(subscription);
    expect(await subscription.ready).toMatchObject({ recovered: false });
    await until(() => got.length >= 5, 'what is left');
    expect(data(got)).toEqual([7, 8, 9, 10, 11]);
    expect(subscription.lastGap).toEqual({ from: `${epoch}:2`, to: `${epoch}:7` });
    const strict = mr.subscribe(channel, { from: { offset: 2n }, onGap: 'error' });
    await expect((async () => {
      for await (const event of strict) expect(event.data).toBeUndefined();
    })()).rejects.toMatchObject({ code: 'gap' });
  });

  test('latest, then live', async () => {
    const mr = connect({ transports: [transport] });
    const channel = fresh();
    for (const n of upTo(3)) await mr.publish(channel, n);
    const got = gather(mr.subscribe(channel, { from: 'latest' }));
    await until(() => got.length === 1, 'the newest');
    await mr.publish(channel, 3);
    await until(() => got.length === 2, 'the live one');
    expect(data(got)).toEqual([2, 3]);
    expect(got.map(({ replayed }) => replayed)).toEqual([true, false]);
  });

  test('history, presence and idempotency keys work', async () => {
    const mr = connect({ transports: [transport] });
    const channel = fresh();
    const one = await mr.publish(channel, 'a', { idempotencyKey: 'same' });
    const two = await mr.publish(channel, 'a', { idempotencyKey: 'same' });
    expect(two).toEqual(one);
    await mr.publish(channel, 'b');
    expect(data(await mr.history(channel))).toEqual(['a', 'b']);
    expect(data(await mr.history(channel, { since: 1n, limit: 1 }))).toEqual(['b']);
    const counts: number[] = [];
    for await (const { count } of mr.presence(channel, { everyMs: 10 })) {
      counts.push(count);
      if (count > 0) break;
      connect({ transports: ['websocket'] }).subscribe(channel);
    }
    expect(counts).toEqual([0, 1]);
  });

  test('a range is complete while publishing continues', async () => {
    const mr = connect({ transports: [transport] });
    const channel = fresh();
    const published = [];
    for (const n of upTo(9)) published.push(await mr.publish(channel, n));
    const read: unknown[] = [];
    const sizes: number[] = [];
    for await (const page of mr.pages(channel, { since: published[1]!.position, limit: 3 })) {
      read.push(...data(page));
      sizes.push(page.length);
      // Outside the range, which ends with the newest publication at the first request.
      await mr.publish(channel, 'later');
    }
    expect(read).toEqual([2, 3, 4, 5, 6, 7, 8]);
    expect(sizes).toEqual([3, 3, 1]);
    const part = await mr.history(channel, { since: 2n, until: 5n, limit: 2 });
    expect([data(part), part.more]).toEqual([[2, 3], true]);
    expect((await mr.history(channel, { since: part.position, until: 5n })).more).toBe(false);
    const [first] = await mr.history(channel, { limit: 1 });
    expect(data(await mr.history(channel, { until: new Date(first!.publishedAt) }))).toEqual([]);
    expect((await mr.history(channel, { since: new Date(first!.publishedAt), limit: 1 }))[0]!.data).toBe(0);
    await expect(mr.history(channel, { since: 5n, until: 2n })).rejects.toMatchObject({ code: 'rejected', reason: 'bad_request' });
  });

  test('abort ends the loop and the request', async () => {
    const mr = connect({ transports: [transport] });
    const channel = fresh();
    const controller = new AbortController();
    const subscription = mr.subscribe(channel, { signal: controller.signal });
    await subscription.ready;
    const seen: unknown[] = [];
    const loop = (async () => {
      for await (const event of subscription) {
        seen.push(event.data);
        controller.abort();
      }
    })();
    await mr.publish(channel, 0);
    await loop;
    await mr.publish(channel, 1);
    expect(seen).toEqual([0]);
  });
});

test('an oversized escaped message keeps the session open', async () => {
  const mr = connect({ transports: ['websocket'] });
  const channel = fresh();
  await expect(mr.publish(channel, '\u0001'.repeat(500_000))).rejects.toMatchObject({ code: 'rejected', reason: 'too_large' });
  expect((await mr.publish(channel, 'still here')).offset).toBe(1n);
  expect(mr.stats().reconnects).toBe(0);
});

test('a wildcard from `earliest` receives the history', async () => {
  const mr = connect({ transports: ['websocket'] });
  const parent = fresh();
  for (const n of upTo(3)) await mr.publish(`${parent}/a`, n);
  const got = gather(mr.subscribe(`${parent}/+`, { from: 'earliest' }));
  await until(() => got.length === 3, 'the history');
  await mr.publish(`${parent}/b`, 3);
  await until(() => got.length === 4, 'a live message');
  expect(data(got)).toEqual(upTo(4));
  expect([got[0]!.replayed, got[3]!.replayed]).toEqual([true, false]);
});

test('switching transports causes no loss, no duplicates', async () => {
  const channel = fresh();
  const mr = connect({ transports: 'auto' });
  const publisher = connect({ transports: ['websocket'] });
  const subscription = mr.subscribe(channel);
  const got = gather(subscription);
  await subscription.ready;
  let n = 0;
  let publishing = true;
  const pump = (async () => {
    while (publishing) await publisher.publish(channel, n++);
  })();
  for (const transport of [...ALL.slice(1), ...ALL.slice(0, 4).reverse(), 'poll', 'websocket'] as const) {
    await mr.use(transport);
    expect(mr.state).toMatchObject({ name: 'open', transport });
    const { length } = got;
    await until(() => got.length > length + 20, `events over ${transport}`);
  }
  publishing = false;
  await pump;
  await until(() => got.length >= n, `${n} events`);
  expect(data(got)).toEqual(upTo(n));
  expect(mr.stats()).toMatchObject({ transport: 'websocket', reconnects: 10, gaps: 0 });
  expect(subscription.dropped).toBe(0);
});

describe('through a proxy that cuts connections', () => {
  test.each(ALL)('%s has no loss and no duplicates', async (transport) => {
    const relay = await startProxy(server.url);
    const mr = millrace(relay.url, { WebSocket, pollMs: 20, transports: [transport], retry: { min: 5, max: 20 } });
    clients.push(mr, { close: async () => relay.stop() });
    const channel = fresh();
    const subscription = mr.subscribe(channel);
    const got = gather(subscription);
    await subscription.ready;
    // The publications use the connections that are cut. Responses are lost too, and the idempotency keys prevent
    // duplicates.
    for (let round = 0; round < 8; round++) {
      const publishing = Promise.all(upTo(10).map((n) => mr.publish(channel, round * 10 + n)));
      await until(() => got.length > round * 10, 'the first of the round');
      relay.cut();
      await publishing;
    }
    await until(() => got.length >= 80, '80 events');
    expect(data(got)).toEqual(upTo(80));
    expect(mr.stats().gaps).toBe(0);
  });

  test('a wildcard resumes known and new channels', async () => {
    const relay = await startProxy(server.url);
    const mr = millrace(relay.url, { WebSocket, transports: ['websocket'], retry: { min: 200, max: 200, jitter: 'none' } });
    clients.push(mr, { close: async () => relay.stop() });
    const publisher = connect({ transports: ['websocket'] });
    const parent = fresh();
    const all = mr.subscribe(`${parent}/+`);
    const got = gather(all);
    await all.ready;
    await publisher.publish(`${parent}/a`, 1);
    await publisher.publish(`${parent}/b`, 2);
    await until(() => got.length === 2, 'both channels');
    expect(got.map(({ channel }) => channel)).toEqual([`${parent}/a`, `${parent}/b`]);
    relay.cut();
    await until(() => mr.state.name !== 'open', 'the cut');
    await publisher.publish(`${parent}/a`, 3);
    await publisher.publish(`${parent}/c`, 4);
    await until(() => got.length === 4, 'what was missed');
    expect(data(got).sort()).toEqual([1, 2, 3, 4]);
    expect(mr.state).toMatchObject({ name: 'open', resumed: true });
  });
});

test('the client leaves a draining server and returns', async () => {
  const own = await startMillrace(['drain.window=300ms']);
  const mr = millrace(own.url, { WebSocket, transports: ['websocket'], retry: { max: 100 } });
  clients.push(mr);
  const subscription = mr.subscribe('cars/1');
  await subscription.ready;
  const states: string[] = [];
  mr.onState((state) => states.push(state.name === 'connecting' && state.retryAt ? 'waiting' : state.name));
  await own.stop();
  await until(() => states.includes('waiting'), 'the retry');
  expect(mr.state.name).not.toBe('closed');
});

test('Node 20 without WebSocket uses HTTP streaming', async () => {
  if (globalThis.WebSocket) return expect(process.versions.node.split('.')[0]).not.toBe('20');
  const mr = millrace(server.url);
  clients.push(mr);
  await mr.ready();
  expect(mr.state).toMatchObject({ transport: 'http-stream' });
});

describe('a server that requires tokens', () => {
  const secret = 'a secret of thirty-two bytes or more';
  const part = (value: object): string => Buffer.from(JSON.stringify(value)).toString('base64url');
  /** Returns a token that is valid for this many seconds. */
  const sign = (seconds: number): string => {
    const granted = { subscribe: ['#'], publish: ['#'], history: ['#'] };
    const message = `${part({ alg: 'HS256' })}.${part({ sub: 'ann', exp: Math.floor(Date.now() / 1000) + seconds, millrace: granted })}`;
    return `${message}.${createHmac('sha256', secret).update(message).digest('base64url')}`;
  };
  let asking: RunningServer;

  beforeAll(async () => {
    asking = await startMillrace([`auth.secret=${secret}`, 'auth.leeway=0s']);
  });
  afterAll(() => asking?.stop());

  test.each(ALL)('%s renews its token before it expires', async (transport) => {
    const reasons: string[] = [];
    const token = ({ reason }: { reason: string }): string => (reasons.push(reason), sign(reasons.length > 1 ? 60 : 4));
    const mr = millrace(asking.url, { WebSocket, pollMs: 20, transports: [transport], retry: { min: 10 }, token });
    clients.push(mr);
    const channel = fresh();
    const subscription = mr.subscribe(channel);
    const got = gather(subscription);
    await subscription.ready;
    await mr.publish(channel, 1);
    await until(() => reasons.length > 1, 'another token', 15_000);
    await mr.publish(channel, 2);
    await until(() => got.length === 2, 'both');
    expect(data(got)).toEqual([1, 2]);
    // A session stays open. A request is repeated.
    if (transport === 'websocket') expect([reasons, mr.stats().reconnects]).toEqual([['connect', 'expired'], 0]);
  }, 30_000);

  // WebSocket is excluded: a browser cannot distinguish a refused handshake from a network error.
  test.each(ALL.slice(1))('%s is refused without a token', async (transport) => {
    const mr = millrace(asking.url, { WebSocket, pollMs: 20, transports: [transport] });
    clients.push(mr);
    mr.subscribe(fresh());
    await until(() => mr.state.name === 'closed', 'the end');
    expect(mr.state).toMatchObject({ cause: { code: 'auth', reason: 'unauthorized' } });
  });
});
