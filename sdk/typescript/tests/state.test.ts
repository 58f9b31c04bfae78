// Keyed states against the real server, over all transports.
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import { WebSocket } from 'ws';
import { millrace, type ConnectOptions, type Event, type TransportName } from '../src/index.js';
import { PreconditionFailed, state, type StateChange } from '../src/state.js';
import { until } from './faulty-server.js';
import { startMillrace, type RunningServer } from './millrace.js';
import { startProxy } from './proxy.js';

let server: RunningServer;
let clients: { close(): Promise<void> }[] = [];
let channels = 0;

beforeAll(async () => {
  server = await startMillrace(['namespaces.list.state=true', 'namespaces.short.state=true', 'namespaces.short.count_max=5']);
});
afterAll(() => server?.stop());
afterEach(async () => {
  for (const each of clients) await each.close();
  clients = [];
});

function connect(options: ConnectOptions = {}, url = server.url) {
  const made = millrace(url, { WebSocket, pollMs: 20, retry: { min: 5, max: 50 }, ...options });
  clients.push(made);
  return made;
}

const fresh = (namespace = 'list'): string => `${namespace}/${++channels}`;
const shown = (map: Iterable<{ key: string; value: unknown }>): Record<string, unknown> => Object.fromEntries([...map].map(({ key, value }) => [key, value]));

describe.each<TransportName>(['websocket', 'http-stream', 'sse', 'long-poll', 'poll'])('%s', (transport) => {
  test('state, then changes, deletions and expiry', async () => {
    const channel = fresh();
    const mr = connect({ transports: [transport] });
    for (const key of ['a', 'b', 'c']) await mr.publish(channel, { n: 1 }, { key });
    await mr.publish(channel, { n: 2 }, { key: 'a' });
    const cars = state<{ n: number }>(mr, channel);
    const changes: StateChange<{ n: number }>[] = [];
    cars.on((change) => changes.push(change));
    await cars.ready;
    expect(cars.complete).toBe(true);
    // In the order of the last changes.
    expect(changes.map(({ key, entry }) => [key, entry?.value])).toEqual([['b', { n: 1 }], ['c', { n: 1 }], ['a', { n: 2 }]]);
    expect(cars.size).toBe(3);
    const { position } = await cars.set('d', { n: 4 }, { ttl: 1 });
    await cars.delete('b');
    await until(() => cars.size === 2, 'a deletion and an expiry');
    expect(changes.slice(3).map(({ key, entry }) => [key, entry?.position])).toEqual([['d', position], ['b', undefined], ['d', undefined]]);
    expect(shown(cars)).toEqual({ c: { n: 1 }, a: { n: 2 } });
    await cars.close();
    await expect(cars.set('e', undefined as never)).rejects.toMatchObject({ code: 'invalid' });
  });

  test('a change with a stale position is refused with the current position', async () => {
    const mr = connect({ transports: [transport] });
    const cars = state<number>(mr, fresh());
    const first = await cars.set('a', 1, { ifMatch: '0' });
    const refused = await cars.set('a', 2, { ifMatch: '0' }).catch((thrown: unknown) => thrown);
    expect(refused).toBeInstanceOf(PreconditionFailed);
    expect(refused).toMatchObject({ name: 'PreconditionFailed', code: 'rejected', reason: 'precondition_failed', retryable: false, position: first.position });
    const second = await cars.set('a', 2, { ifMatch: (refused as PreconditionFailed).position });
    await expect(cars.delete('a', { ifMatch: first.position })).rejects.toMatchObject({ position: second.position });
    await cars.delete('a', { ifMatch: second.position });
    await expect(cars.delete('a', { ifMatch: second.position })).rejects.toMatchObject({ position: '0' });
    await cars.set('a', 3);
    await cars.ready;
    await until(() => cars.get('a') === 3, 'the last value');
  });

  test('after lost changes the map has only the entries that exist', async () => {
    const channel = fresh('short');
    const writer = connect();
    const proxy = await startProxy(server.url);
    const mr = connect({ transports: [transport] }, proxy.url);
    try {
      for (const key of ['kept', 'changed', 'deleted']) await writer.publish(channel, 1, { key });
      const cars = state<number>(mr, channel);
      const events: Event[] = [];
      let lost: unknown;
      mr.subscribe(channel, { from: 'state' }).on((event) => events.push(event), (cause) => (lost = cause));
      await cars.ready;
      const isMark = (event: Event | undefined): boolean => !!event?.complete;
      await until(() => isMark(events.at(-1)), 'the first state');
      const changes: string[] = [];
      cars.on(({ key, entry }) => changes.push(`${key} ${entry?.value}`));
      proxy.stop();
      // More changes than the history holds, while the client is disconnected.
      const writing = state<number>(writer, channel);
      await writing.delete('deleted');
      for (let n = 0; n < 10; n++) await writing.set('changed', n);
      const back = await startProxy(server.url, Number(new URL(proxy.url).port));
      try {
        await until(() => cars.get('changed') === 9 && cars.complete, 'the new state');
        expect(shown(cars)).toEqual({ kept: 1, changed: 9 });
        // The kept entry was never absent.
        expect(changes).toEqual(['changed 9', 'deleted undefined']);
        await until(() => lost !== undefined, 'the end of a subscription from the state');
        expect(lost).toMatchObject({ code: 'gap' });
        expect(events.map(({ key, data, complete }) => [key, data, complete])).toEqual([['kept', 1, undefined], ['changed', 1, undefined], ['deleted', 1, undefined], [undefined, undefined, true]]);
        await cars.set('after', 1);
        await until(() => cars.get('after') === 1, 'the change after the restart');
      } finally {
        back.stop();
      }
    } finally {
      proxy.stop();
    }
  });

  test('a state larger than a page is read beside changes of its keys', async () => {
    const channel = fresh();
    const writer = connect();
    await Promise.all(Array.from({ length: 1200 }, (_, n) => writer.publish(channel, 0, { key: `k${n}` })));
    const mr = connect({ transports: [transport] });
    const all = state<number>(mr, channel);
    const writing = state<number>(writer, channel);
    const expected = new Map(Array.from({ length: 1200 }, (_, n) => [`k${n}`, 0]));
    for (let n = 0; n < 100; n++) {
      if (n % 3) expected.set(`k${n * 7}`, n);
      else expected.delete(`k${n * 7}`);
      await (n % 3 ? writing.set(`k${n * 7}`, n) : writing.delete(`k${n * 7}`));
    }
    await all.ready;
    await until(() => JSON.stringify(Object.entries(shown(all)).sort()) === JSON.stringify([...expected].sort()), 'all keys');
    expect(mr.stats().gaps).toBe(0);
  });
});

test('a channel that is no state, and a forbidden state, reject', async () => {
  const mr = connect();
  const none = state(mr, 'plain/1');
  await expect(none.ready).rejects.toMatchObject({ code: 'rejected', reason: 'bad_request' });
  expect(() => mr.subscribe('list/#', { from: 'state' })).toThrow('a wildcard starts from now');
  let cause: unknown;
  none.on(() => {}, (ended) => (cause = ended));
  expect(cause).toMatchObject({ reason: 'bad_request' });
});

test('a deadline or an abort ends a change, and close ends the map', async () => {
  const mr = connect({ transports: ['poll'] }, 'http://127.0.0.1:1');
  const map = state(mr, 'list/x');
  await expect(map.set('a', 1, { timeoutMs: 50 })).rejects.toMatchObject({ code: 'aborted' });
  const controller = new AbortController();
  const change = map.delete('a', { signal: controller.signal });
  controller.abort();
  await expect(change).rejects.toMatchObject({ code: 'aborted' });
  let ended = 0;
  map.on(() => {}, () => ended++);
  await map.close();
  await expect(map.ready).rejects.toMatchObject({ code: 'aborted' });
  expect(ended).toBe(1);
});

test('a schema checks values and not deletions', async () => {
  const channel = fresh();
  const mr = connect();
  const schema = {
    '~standard': { version: 1, vendor: 'test', validate: (value: unknown) => (typeof value === 'number' ? { value: value * 2 } : { issues: [{ message: 'no number' }] }) },
  } as const;
  const doubled = state<number>(mr, channel, { schema });
  await doubled.ready;
  await doubled.set('a', 2);
  await until(() => doubled.get('a') === 4, 'the value');
  await doubled.delete('a');
  await until(() => doubled.size === 0, 'the deletion');
  let cause: unknown;
  doubled.on(() => {}, (ended) => (cause = ended));
  await doubled.set('a', 'text' as never);
  await until(() => cause !== undefined, 'the end');
  expect(cause).toMatchObject({ reason: 'schema' });
});
