// Tests the client's own behavior on a server that fails on command.
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';
import { WebSocket } from 'ws';
import { client, history, presence, wildcards } from '../src/core.js';
import { millrace, MillraceError, type ConnectOptions, type Event, type Subscription, type TransportName } from '../src/index.js';
import { poll } from '../src/transports/poll.js';
import { websocket } from '../src/transports/websocket.js';
import { FaultyServer, until } from './faulty-server.js';

let server: FaultyServer;
let clients: { close(): Promise<void> }[] = [];

beforeEach(async () => {
  server = await FaultyServer.start();
});

afterEach(async () => {
  for (const each of clients) await each.close();
  clients = [];
  await server.stop();
});

function connect(options: ConnectOptions = {}) {
  const made = millrace(server.url, { WebSocket, pollMs: 20, retry: { min: 5, max: 50 }, ...options });
  clients.push(made);
  return made;
}

const gather = (subscription: Subscription): Event[] => {
  const got: Event[] = [];
  subscription.on((event) => got.push(event));
  return got;
};
const data = (events: readonly Event[]): unknown[] => events.map((event) => event.data);

describe('complaint 06: the token', () => {
  test.each(['http-stream', 'sse', 'long-poll', 'poll'] as const)('%s renews only an expired token', async (transport) => {
    const reasons: string[] = [];
    let good = 'one';
    server.refuse = ({ headers }) => (headers.authorization === `Bearer ${good}` ? undefined : 401);
    const mr = connect({ transports: [transport], token: async ({ reason }) => (reasons.push(reason), good) });
    const got = gather(mr.subscribe('cars/1'));
    await mr.ready();
    expect(reasons).toEqual(['connect']);
    good = 'two';
    await mr.publish('cars/1', 1);
    expect(reasons).toEqual(['connect', 'expired']);
    await until(() => got.length === 1, 'the event');
    server.cut();
    await mr.publish('cars/1', 2);
    await until(() => got.length === 2, 'the event after the cut');
  });

  test('a refused fresh token is renewed once, then closes', async () => {
    const reasons: string[] = [];
    server.refuse = () => 401;
    const mr = connect({ transports: ['poll'], token: ({ reason }) => (reasons.push(reason), 'bad') });
    await expect(mr.ready()).rejects.toMatchObject({ code: 'auth', retryable: false });
    expect(reasons).toEqual(['connect', 'rejected']);
    expect(mr.state).toMatchObject({ name: 'closed', cause: { code: 'auth' } });
  });

  test('every WebSocket requests a new token', async () => {
    let n = 0;
    const mr = connect({ transports: ['websocket'], token: async () => `t${++n}` });
    await mr.ready();
    server.cut();
    await until(() => mr.stats().reconnects === 1, 'the reconnection');
    const offered = server.requests.map(({ headers }) => headers['sec-websocket-protocol']);
    expect(offered).toEqual(['millrace.v1+json,bearer.t1', 'millrace.v1+json,bearer.t2']);
  });

  test('a refused static token does not loop', async () => {
    server.refuse = () => 401;
    const mr = connect({ transports: ['http-stream'], token: 'bad' });
    mr.subscribe('cars/1');
    await expect(mr.ready()).rejects.toMatchObject({ code: 'auth' });
    expect(server.requests.length).toBeLessThanOrEqual(2);
  });
});

test('complaint 10: SSE retries after a 500, one request at a time', async () => {
  let left = 3;
  server.refuse = () => (left-- > 0 ? 500 : undefined);
  const mr = connect({ transports: ['sse'] });
  const car = mr.subscribe('cars/1');
  const got = gather(car);
  await car.ready;
  server.publish('cars/1', 'after');
  await until(() => got.length === 1, 'the event');
  expect(server.requests.map(({ method }) => method)).toEqual(['GET', 'GET', 'GET', 'GET']);
  await until(() => server.connections === 1, 'one connection');
});

test('complaint 13: closing and resubscribing at once reuses the subscription', async () => {
  const mr = connect({ transports: ['websocket'] });
  const first = mr.subscribe('cars/1');
  await first.ready;
  await first.close();
  const second = mr.subscribe('cars/1');
  const third = mr.subscribe('cars/1');
  await Promise.all([second.ready, third.ready]);
  const wire = (): string[] => server.commands.map(({ name }) => name).filter((name) => name.includes('subscribe'));
  expect(wire()).toEqual(['subscribe']);
  await second.close();
  await third.close();
  await until(() => wire().length === 2, 'the end of the wire subscription');
  expect(wire()).toEqual(['subscribe', 'unsubscribe']);
});

test('complaint 14: wake retries now and detects a dead connection', async () => {
  const mr = connect({ transports: ['websocket'], retry: { min: 60_000, max: 60_000, jitter: 'none' } });
  server.refuse = () => 503;
  const states: string[] = [];
  mr.onState(({ name }) => states.push(name));
  const open = mr.ready();
  await until(() => mr.state.name === 'connecting' && mr.state.retryAt, 'the wait');
  server.refuse = () => undefined;
  mr.wake();
  await open;
  server.mute = true;
  mr.wake();
  await until(() => mr.state.name === 'connecting', 'the zombie found', 4000);
  expect(states).toContain('open');
});

describe('invalid publications', () => {
  const circle: { self?: unknown } = {};
  circle.self = circle;

  test.each(['websocket', 'http-stream', 'sse', 'long-poll', 'poll'] as const)('%s: refuses invalid data at once', async (transport) => {
    const mr = connect({ transports: [transport] });
    await mr.ready();
    for (const data of [undefined, () => {}, Symbol('x'), 1n, { a: 1n }, circle, { toJSON: () => undefined }]) {
      await expect(mr.publish('cars/1', data)).rejects.toMatchObject({ code: 'invalid', retryable: false });
    }
    await mr.publish('cars/1', null);
    expect(data(await mr.history('cars/1'))).toEqual([null]);
    expect(mr.state.name).toBe('open');
  });

  test('a key with invalid header characters is refused', async () => {
    const mr = connect({ transports: ['poll'] });
    await expect(mr.publish('cars/1', 1, { key: '→' })).rejects.toMatchObject({ code: 'invalid' });
    await mr.publish('cars/1', 2);
  });
});

describe('addresses', () => {
  test.each(['htp://x', '127.0.0.1:8080', 'localhost:8080', 'example.com', 'http://', 'http://ann:secret@x', '/only/on/pages', 'ftp://x', 'x y'])('%s is not a valid address', (url) => {
    expect(() => millrace(url)).toThrow(expect.objectContaining({ name: 'MillraceError', code: 'invalid', message: expect.stringContaining('http://127.0.0.1:8080') }));
  });

  test('a ws: address is accepted', async () => {
    const mr = millrace(server.url.replace('http', 'ws'), { WebSocket });
    clients.push(mr);
    await mr.publish('cars/1', 1);
  });

  test.each(['websocket', 'http-stream'] as const)('%s: a connection error names address and cause', async (transport) => {
    const { url } = server;
    await server.stop();
    const log: string[] = [];
    const mr = connect({ transports: [transport], retry: { min: 50, max: 100 }, log: ({ msg }) => log.push(msg) });
    const error = await mr.ready({ timeout: 300 }).catch((thrown: unknown) => thrown as MillraceError);
    expect(error).toMatchObject({ code: 'timeout' });
    for (const part of [url.replace('http:', ''), 'ECONNREFUSED', 'not open after 300 ms']) expect(String(error)).toContain(part);
    expect(log.join('\n')).toMatch(/ECONNREFUSED[^]*next try in \d+ ms/);
    server = await FaultyServer.start();
  });
});

describe('start of a subscription', () => {
  beforeEach(() => {
    for (let n = 0; n < 5; n++) server.publish('cars/1', n);
  });

  test.each([
    ['now', 'now', [5]],
    ['latest', 'latest', [4, 5]],
    ['earliest', 'earliest', [0, 1, 2, 3, 4, 5]],
    ['an offset', { offset: 3n }, [3, 4, 5]],
    ['a position', { position: 'e0:2' }, [2, 3, 4, 5]],
    ['seconds', { seconds: 60 }, [0, 1, 2, 3, 4, 5]],
  ] as const)('%s', async (_, from, expected) => {
    for (const transport of ['websocket', 'http-stream', 'poll'] as const) {
      const mr = connect({ transports: [transport] });
      const car = mr.subscribe('cars/1', { from });
      const got = gather(car);
      const { recovered } = await car.ready;
      expect(recovered).toBe(true);
      await until(() => got.length >= expected.length - 1, 'history');
      server.publish('cars/1', 5);
      await until(() => got.length >= expected.length, 'the live one');
      expect(data(got)).toEqual(expected);
      expect(got.at(-1)!.replayed).toBe(false);
      if (got.length > 1) expect(got[0]!.replayed).toBe(true);
      await mr.close();
      server.trim('cars/1', 6);
      server = await restart(server);
      for (let n = 0; n < 5; n++) server.publish('cars/1', n);
    }
  });

  test('an expired position is reported as not recovered', async () => {
    server.trim('cars/1', 2);
    const car = connect({ transports: ['websocket'] }).subscribe('cars/1', { from: { position: 'e0:1' } });
    const got = gather(car);
    expect(await car.ready).toMatchObject({ recovered: false, offset: 3n });
    await until(() => got.length === 2, 'what is left');
    expect([data(got), car.gaps, car.lastGap]).toEqual([[3, 4], 1, { from: 'e0:1', to: 'e0:3' }]);
  });

  test('a late consumer catches up from history', async () => {
    const mr = connect({ transports: ['websocket'] });
    const live = gather(mr.subscribe('cars/1'));
    await until(() => mr.state.name === 'open' && server.commands.some(({ name }) => name === 'subscribe'), 'the first reader');
    const late = mr.subscribe('cars/1', { from: 'earliest', buffer: { max: 4 } });
    await late.ready;
    for (let n = 5; n < 50; n++) server.publish('cars/1', n);
    const seen: unknown[] = [];
    for await (const event of late) {
      seen.push(event.data);
      if (event.data === 49) break;
    }
    expect(late.dropped).toBe(0);
    expect(seen).toEqual(Array.from({ length: 50 }, (_, n) => n));
    expect(data(live)).toEqual(Array.from({ length: 45 }, (_, n) => n + 5));
    expect(server.commands.filter(({ name }) => name === 'subscribe')).toHaveLength(1);
  });
});

async function restart(old: FaultyServer): Promise<FaultyServer> {
  await old.stop();
  return FaultyServer.start();
}

describe('buffers', () => {
  async function filled(buffer: { max?: number; overflow?: 'drop-oldest' | 'latest-only' | 'error' }): Promise<Subscription> {
    const mr = connect({ transports: ['websocket'] });
    const car = mr.subscribe('cars/1', { buffer });
    await car.ready;
    for (let n = 0; n < 10; n++) server.publish('cars/1', n);
    await until(() => mr.stats().messages === 10, 'ten messages');
    return car;
  }

  test('drop-oldest drops and counts the oldest event', async () => {
    const car = await filled({ max: 3 });
    expect([car.lag, car.dropped, car.latest()?.data]).toEqual([3, 7, 9]);
  });

  test('latest-only keeps the newest event', async () => {
    const car = await filled({ overflow: 'latest-only' });
    expect([car.lag, car.dropped]).toEqual([1, 9]);
  });

  test('error ends the subscription after the buffered events', async () => {
    const car = await filled({ max: 3, overflow: 'error' });
    const seen: unknown[] = [];
    await expect((async () => {
      for await (const event of car) seen.push(event.data);
    })()).rejects.toMatchObject({ code: 'slow-consumer' });
    expect(seen).toEqual([0, 1, 2]);
  });
});

describe('endings', () => {
  test('abort ends loop, subscription and wire subscription', async () => {
    const mr = connect({ transports: ['websocket'] });
    const controller = new AbortController();
    const seen: unknown[] = [];
    const loop = (async () => {
      for await (const event of mr.subscribe('cars/1', { signal: controller.signal, from: 'earliest' })) {
        seen.push(event.data);
        if (event.data === 1) controller.abort();
      }
    })();
    for (let n = 0; n < 3; n++) server.publish('cars/1', n);
    await loop;
    expect(seen).toEqual([0, 1]);
    await until(() => server.commands.some(({ name }) => name === 'unsubscribe'), 'the end on the wire');
  });

  test('an aborted offline publication is never sent', async () => {
    server.refuse = () => 503;
    const mr = connect({ transports: ['websocket'] });
    const controller = new AbortController();
    const publishing = mr.publish('chat/1', 'x', { signal: controller.signal });
    controller.abort();
    await expect(publishing).rejects.toMatchObject({ code: 'aborted' });
    server.refuse = () => undefined;
    await mr.publish('chat/1', 'y');
    expect(data(await mr.history('chat/1'))).toEqual(['y']);
  });

  test('close ends loops and rejects pending calls', async () => {
    const mr = connect({ transports: ['http-stream'] });
    const car = mr.subscribe('cars/1');
    const loop = (async () => {
      for await (const event of car) expect(event).toBeUndefined();
    })();
    await car.ready;
    await mr.close();
    await loop;
    await expect(mr.publish('cars/1', 1)).rejects.toMatchObject({ code: 'aborted' });
    expect(() => mr.subscribe('cars/1')).toThrow(MillraceError);
    await until(() => server.connections === 0, 'no connection');
  });

  test('removing the last listener closes the subscription', async () => {
    const mr = connect({ transports: ['websocket'] });
    const ended = vi.fn();
    const off = mr.subscribe('cars/1').on(() => {}, ended);
    await until(() => server.commands.some(({ name }) => name === 'subscribe'), 'the subscription');
    off();
    await until(() => server.commands.some(({ name }) => name === 'unsubscribe'), 'its end');
  });
});

test('wildcards fail without a session transport', async () => {
  const mr = connect({ transports: ['sse'] });
  const all = mr.subscribe('cars/+');
  await expect(all.ready).rejects.toMatchObject({ code: 'rejected', message: expect.stringContaining('websocket') });
});

test('HTTP transports read all channels in one request', async () => {
  const mr = connect({ transports: ['http-stream'] });
  const got = ['a', 'b', 'c'].map((name) => gather(mr.subscribe(name)));
  await mr.ready();
  await until(() => server.requests.length === 1, 'one request');
  server.publish('a', 1);
  await until(() => got[0]!.length === 1, 'an event');
  const late = mr.subscribe('d');
  await late.ready;
  for (const name of ['a', 'b', 'c', 'd']) server.publish(name, 2);
  await until(() => got.every((events) => events.at(-1)?.data === 2) && late.latest(), 'an event each');
  const asked = server.requests.map(({ url }) => new URL(url!, server.url).searchParams.getAll('channel'));
  expect(asked).toEqual([['a', 'b', 'c'], ['a@e0:1', 'b@e1:0', 'c@e2:0', 'd']]);
  expect(server.requests.every(({ url }) => /[?&]_=\w+/.test(url!))).toBe(true);
});

test('a silent transport behind a buffering proxy loses', async () => {
  server.refuse = ({ headers }) => (headers.upgrade ? 400 : undefined);
  const mr = connect({ transports: ['websocket', 'long-poll'] });
  await mr.ready();
  expect(mr.state).toMatchObject({ name: 'open', transport: 'long-poll' });
});

test('an unknown transport is refused by name', async () => {
  expect(() => client(server.url, [poll], { transports: ['sse' as TransportName] })).toThrow('sse');
  const mr = client(server.url, [poll]);
  clients.push(mr);
  await expect(mr.use('websocket')).rejects.toMatchObject({ code: 'rejected' });
});

test('the core client accepts history, presence and wildcards', async () => {
  const plain = client(server.url, [websocket], { WebSocket });
  clients.push(plain);
  expect(() => plain.subscribe('cars/+')).toThrow(expect.objectContaining({ code: 'rejected', reason: 'bad_channel' }));
  const one = plain.subscribe('cars/1');
  await one.ready;
  await plain.publish('cars/1', 1);
  expect(data(await history(plain, 'cars/1'))).toEqual([1]);
  expect(data(await history(plain, 'cars/1', { since: 1n }))).toEqual([]);
  for await (const { count } of presence(plain, 'cars/1')) {
    expect(count).toBeGreaterThan(0);
    break;
  }
  const wide = client(server.url, [websocket], { WebSocket }, wildcards);
  clients.push(wide);
  const all = wide.subscribe('cars/+');
  const single = gather(wide.subscribe('cars/1'));
  await all.ready;
  expect(() => wide.subscribe('cars/#', { from: 'latest' })).toThrow('wildcard');
  expect(() => wide.subscribe('cars/+', { from: 'earliest' })).toThrow("use from 'now'");
  await all.close();
  await until(() => server.commands.some(({ name, body }) => name === 'unsubscribe' && body.channel === 'cars/+'), 'the end of the pattern');
  server.publish('cars/1', 2);
  await until(() => single.length === 1, 'the plain one');
});

test('a schema that throws ends its own subscription only', async () => {
  const mr = connect({ transports: ['websocket'] });
  const schema = {
    '~standard': {
      version: 1 as const,
      vendor: 'test',
      validate: () => {
        throw new Error('mine');
      },
    },
  };
  const bad = mr.subscribe('cars/1', { schema });
  const got = gather(mr.subscribe('cars/1'));
  await bad.ready;
  server.publish('cars/1', 1);
  await until(() => got.length === 1, 'the event');
  await expect((async () => {
    for await (const event of bad) expect(event).toBeUndefined();
  })()).rejects.toMatchObject({ code: 'rejected', reason: 'schema', message: expect.stringContaining('mine') });
  expect(mr.state.name).toBe('open');
});

test('schemas convert or refuse events', async () => {
  const schema = {
    '~standard': {
      version: 1 as const,
      vendor: 'test',
      validate: (value: unknown) => (typeof value === 'number' ? { value: value * 2 } : { issues: [{ message: 'not a number' }] }),
    },
  };
  const mr = connect({ transports: ['websocket'] });
  const car = mr.subscribe('cars/1', { schema });
  await car.ready;
  server.publish('cars/1', 21);
  server.publish('cars/1', 'x');
  const seen: unknown[] = [];
  await expect((async () => {
    for await (const event of car) seen.push(event.data);
  })()).rejects.toMatchObject({ code: 'rejected', reason: 'schema' });
  expect(seen).toEqual([42]);
});

test('a throwing listener does not stop other listeners', async () => {
  const caught: unknown[] = [];
  const before = process.listeners('uncaughtException');
  process.removeAllListeners('uncaughtException');
  process.on('uncaughtException', (error) => caught.push(error));
  try {
    const mr = connect({ transports: ['websocket'] });
    const car = mr.subscribe('cars/1');
    car.on(() => {
      throw new Error('mine');
    });
    const got = gather(car);
    await car.ready;
    server.publish('cars/1', 1);
    server.publish('cars/1', 2);
    await until(() => got.length === 2 && caught.length === 2, 'both');
  } finally {
    process.removeAllListeners('uncaughtException');
    for (const listener of before) process.on('uncaughtException', listener);
  }
});
