// The stores below the bindings for React, Svelte and Vue, against the real server.
import { afterAll, afterEach, beforeAll, expect, test, vi } from 'vitest';
import { WebSocket } from 'ws';
import { millrace, type Client, type ConnectOptions } from '../src/index.js';
import { connection, keyed, live, messages, publisher, roster, type Store } from '../src/store.js';
import { until } from './faulty-server.js';
import { startMillrace, type RunningServer } from './millrace.js';
import { startProxy } from './proxy.js';

let server: RunningServer;
let clients: Client[] = [];
let channels = 0;

beforeAll(async () => {
  server = await startMillrace(['namespaces.list.state=true', 'namespaces.list.count_max=5', 'namespaces.chat.roster=true']);
});
afterAll(() => server?.stop());
afterEach(async () => {
  vi.unstubAllGlobals();
  for (const each of clients) await each.close();
  clients = [];
});

/** A client whose calls of `subscribe` are counted. */
function connect(url = server.url, options: ConnectOptions = {}): Client & { readonly subscribed: string[] } {
  const client = millrace(url, { WebSocket, retry: { min: 5, max: 50 }, ...options });
  const subscribed: string[] = [];
  const subscribe: Client['subscribe'] = (channel, options) => (subscribed.push(channel), client.subscribe(channel, options));
  const counted = Object.assign(Object.create(client) as Client, { subscribe, subscribed });
  clients.push(client);
  return counted;
}

const fresh = (namespace = 'cars'): string => `${namespace}/${++channels}`;
const turn = (): Promise<void> => new Promise((resolve) => setTimeout(resolve));
const read = <S>(store: Store<S>): { readonly seen: S[]; off(): void } => {
  const seen: S[] = [];
  return { seen, off: store.subscribe(() => seen.push(store.get())) };
};

test('stores with equal arguments share one subscription', async () => {
  const mr = connect();
  const channel = fresh();
  const [first, second, other] = [live(mr, channel), live(mr, channel), live(mr, channel, { from: 'latest' })];
  const readers = [first, second].map(read);
  expect(mr.subscribed).toEqual([channel]);
  readers.push(read(other));
  expect(mr.subscribed).toEqual([channel, channel]);
  await until(() => first.get().ready, 'the start');
  await mr.publish(channel, 1);
  await until(() => first.get().data === 1 && other.get().data === 1, 'the message');
  expect(second.get()).toBe(first.get());
  // A later component has the newest message at once.
  expect(live(mr, channel).get()).toBe(first.get());
  readers.forEach(({ off }) => off());
  await until(() => first.get() === first.initial, 'the end');
});

test('complaint 13: a listener that leaves and returns at once keeps the subscription', async () => {
  const mr = connect();
  const channel = fresh();
  const store = live(mr, channel);
  read(store).off();
  const { off } = read(store);
  await turn();
  await turn();
  await until(() => store.get().ready, 'the start');
  await mr.publish(channel, 1);
  await until(() => store.get().data === 1, 'the message');
  expect(mr.subscribed).toEqual([channel]);
  off();
  await turn();
  await turn();
  expect(store.get()).toBe(store.initial);
  read(store).off();
  expect(mr.subscribed).toEqual([channel, channel]);
});

test('changes of one frame are one update, of all stores together', async () => {
  const frames: (() => void)[] = [];
  vi.stubGlobal('requestAnimationFrame', (frame: () => void) => frames.push(frame));
  vi.stubGlobal('cancelAnimationFrame', () => {});
  const mr = connect();
  const channel = fresh();
  const [list, each] = [messages(mr, channel, { max: 3 }), messages(mr, channel, { updates: 'each' })];
  const [batched, direct] = [read(list), read(each)];
  await until(() => each.get().ready && list.get().ready, 'the start');
  batched.seen.length = direct.seen.length = frames.length = 0;
  await Promise.all(Array.from({ length: 10 }, (_, n) => mr.publish(channel, n)));
  await until(() => each.get().received === 10, 'the messages');
  expect(direct.seen.map(({ received }) => received)).toEqual([1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
  expect(frames.length).toBeGreaterThan(0);
  frames.forEach((frame) => frame());
  await until(() => list.get().received === 10, 'the update');
  // One for the frame. On a busy machine, 250 ms can pass before it.
  expect(batched.seen.length).toBeLessThan(3);
  expect(list.get()).toMatchObject({ received: 10, ready: true, gaps: 0, messages: [{ data: 7 }, { data: 8 }, { data: 9 }] });
  batched.off();
  direct.off();
});

test('a page without frames is updated, too', async () => {
  // A hidden page gets no animation frame.
  vi.stubGlobal('requestAnimationFrame', () => 1);
  vi.stubGlobal('cancelAnimationFrame', () => {});
  const mr = connect();
  const channel = fresh();
  const stores = [live(mr, channel), live(mr, channel, { updates: 1 })];
  const readers = stores.map(read);
  await until(() => stores.every((store) => store.get().ready), 'the start');
  await mr.publish(channel, 1);
  await until(() => stores.every((store) => store.get().data === 1), 'the message');
  readers.forEach(({ off }) => off());
});

test('a gap is reported without a message after it', async () => {
  const own = await startMillrace();
  const mr = connect(own.url);
  const channel = fresh();
  const store = messages(mr, channel);
  const link = connection(mr);
  const readers = [read(store), read(link)];
  expect(link.get()).toMatchObject({ state: { name: 'connecting' }, reconnecting: false });
  await until(() => store.get().ready && link.get().transport === 'websocket', 'the start');
  await mr.publish(channel, 1);
  await until(() => store.get().received === 1, 'the message');
  await own.kill();
  await until(() => link.get().reconnecting && link.get().error, 'the loss of the connection');
  expect(link.get()).toMatchObject({ transport: undefined, error: { code: 'network' } });
  // The history of the first server is lost, because it was in memory.
  const later = await startMillrace([], new URL(own.url).host);
  await until(() => store.get().gaps === 1, 'the gap');
  expect(store.get()).toMatchObject({ received: 1, ready: true, error: undefined, lastGap: { from: store.get().messages[0]!.position } });
  await until(() => link.get().state.name === 'open', 'the new connection');
  expect(link.get()).toMatchObject({ reconnecting: false, error: undefined });
  readers.forEach(({ off }) => off());
  await later.kill();
});

test('a keyed state is read again after lost changes', async () => {
  const writer = connect();
  const proxy = await startProxy(server.url);
  const mr = connect(proxy.url);
  const channel = fresh('list');
  const store = keyed<number>(mr, channel, { updates: 'each' });
  const shown = (): unknown => [...store.get().entries].map(([key, { value }]) => [key, value]);
  expect(store.get()).toMatchObject({ ready: false });
  await expect(store.get().set('a', 1)).rejects.toMatchObject({ code: 'invalid', message: expect.stringContaining('not open') });
  const { seen, off } = read(store);
  await until(() => store.get().ready, 'the state');
  await store.get().set('a', 1, { ifMatch: '0' });
  await until(() => store.get().entries.size === 1, 'the entry');
  await expect(store.get().set('a', 2, { ifMatch: '0' })).rejects.toMatchObject({ reason: 'precondition_failed' });
  proxy.stop();
  for (let n = 0; n < 10; n++) await writer.publish(channel, n, { key: 'b' });
  seen.length = 0;
  const back = await startProxy(server.url, Number(new URL(proxy.url).port));
  await until(() => store.get().gaps === 1 && store.get().ready, 'the new state');
  expect(shown()).toEqual([['a', 1], ['b', 9]]);
  expect(seen.some(({ ready, entries }) => !ready && entries.get('a')?.value === 1)).toBe(true);
  await store.get().delete('a');
  await until(() => store.get().entries.size === 1, 'the deletion');
  off();
  back.stop();
});

test('a roster has the members and their connections', async () => {
  const mr = connect();
  const channel = fresh('chat');
  const store = roster(mr, channel);
  const readers = [read(store), read(live(mr, channel))];
  await connect().subscribe(channel).ready;
  await until(() => store.get().connections === 2, 'both members');
  expect(store.get().members.size).toBe(2);
  expect([...store.get().members.values()][0]).toMatchObject({ connections: 1 });
  readers.forEach(({ off }) => off());
});

test('an error is a value', async () => {
  const mr = connect();
  const schema = { '~standard': { version: 1 as const, vendor: 'test', validate: () => ({ issues: [{ message: 'not a number' }] }) } };
  const [bad, checked, plain] = [live(mr, 'a//b'), live(mr, fresh(), { schema }), roster(mr, fresh())];
  const readers = [bad, checked, plain].map((store) => read(store as Store<unknown>));
  expect(bad.get()).toMatchObject({ ready: false, error: { code: expect.any(String) } });
  await until(() => checked.get().ready, 'the start');
  await mr.publish(`cars/${channels - 1}`, 'text');
  await until(() => checked.get().error && plain.get().error, 'the errors');
  expect(checked.get()).toMatchObject({ ready: false, data: undefined, error: { code: 'rejected', reason: 'schema' } });
  expect(plain.get().error).toMatchObject({ reason: 'bad_request' });
  readers.forEach(({ off }) => off());
  await mr.close();
  const late = live(mr, fresh());
  const { off } = read(late);
  expect(late.get().error).toMatchObject({ code: 'aborted' });
  off();
});

test('a publisher shows what is pending and the last error', async () => {
  const proxy = await startProxy(server.url);
  const mr = connect(proxy.url);
  const channel = fresh();
  const [store, other] = [publisher(mr, channel), publisher(mr, channel)];
  const { off } = read(store);
  proxy.stop();
  const sent = store.publish(1);
  await until(() => store.get().pending === 1, 'the publication that waits for a connection');
  const back = await startProxy(server.url, Number(new URL(proxy.url).port));
  expect(await sent).toMatchObject({ offset: 1n });
  await until(() => store.get().pending === 0, 'the end of the publication');
  expect(await store.publish(undefined)).toBeUndefined();
  await until(() => store.get().error?.code === 'invalid' && store.get().pending === 0, 'the error');
  expect(await store.publish(2)).toMatchObject({ offset: 2n });
  await until(() => !store.get().error, 'the end of the error');
  expect(await publisher(mr, undefined).publish(1)).toBeUndefined();
  // Each component has its own.
  expect(other.get()).toBe(other.initial);
  off();
  back.stop();
});

test('without a listener or a channel, a store does not connect', async () => {
  const mr = connect();
  for (const make of [live, messages, keyed, roster]) {
    expect(make(mr, fresh()).get()).toMatchObject({ ready: false });
    read(make(mr, undefined) as Store<unknown>).off();
  }
  expect(connection(mr).get()).toMatchObject({ state: { name: 'idle' } });
  read(connection(mr)).off();
  await turn();
  expect(mr.subscribed).toEqual([]);
  expect(mr.state).toEqual({ name: 'idle' });
});
