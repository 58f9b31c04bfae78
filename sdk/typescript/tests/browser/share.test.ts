// Clients of one page that share a connection, with the locks and channels of a real browser. tests/share has tabs.
import { afterEach, beforeEach, expect, inject, test, vi } from 'vitest';
import type { Event, TransportName } from '../../src/index.js';
import { latency } from '../../src/latency.js';
import { shared, type ShareOptions, type SharedClient } from '../../src/share/index.js';
import { TABS_MAX } from '../../src/share/desk.js';
import { roster } from '../../src/roster.js';
import { PreconditionFailed, state } from '../../src/state.js';

const url = inject('millraceUrl');
let clients: SharedClient[] = [];
/** WebSockets that the clients of this test have opened and not closed. */
let sockets = new Set<WebSocket>();
/** Makes every test a group of its own. */
let user = '';

class CountedSocket extends WebSocket {
  constructor(address: string, protocols: string[]) {
    // The server of these tests knows no tokens.
    super(address, protocols.slice(0, 1));
    const mine = sockets;
    mine.add(this);
    this.addEventListener('close', () => mine.delete(this));
  }

  override close(): void {
    super.close();
    sockets.delete(this);
  }
}

beforeEach(({ task }) => {
  user = task.id + Math.random();
  sockets = new Set();
});
afterEach(async () => {
  vi.restoreAllMocks();
  vi.unstubAllGlobals();
  for (const each of clients) await each.close();
  clients = [];
});

function connect(options: ShareOptions = {}): SharedClient {
  const made = shared(url, { identity: user, WebSocket: CountedSocket, transports: ['websocket'], ...options });
  clients.push(made);
  return made;
}

const seen = (condition: () => boolean): Promise<void> => vi.waitFor(() => expect(condition()).toBe(true), { timeout: 8000, interval: 5 });
const roles = (): string[] => clients.map((each) => each.stats().share.role);

/** Three clients that are open. */
async function three(options?: ShareOptions): Promise<[SharedClient, SharedClient, SharedClient]> {
  const made = [connect(options), connect(options), connect(options)] as [SharedClient, SharedClient, SharedClient];
  for (const each of made) await each.ready();
  return made;
}

test('three clients share one connection, and each receives only its own channels', async () => {
  const [a, b, c] = await three();
  expect(sockets.size).toBe(1);
  expect(roles()).toEqual(['leader', 'follower', 'follower']);
  const got = new Map<SharedClient, string[]>(clients.map((each) => [each, []]));
  const subscriptions = [a, b, c].flatMap((each, n) =>
    [`${user}/all`, `${user}/${n}`].map((channel) => {
      const subscription = each.subscribe(channel);
      subscription.on(({ data }) => got.get(each)!.push(data as string));
      return subscription;
    }),
  );
  for (const each of subscriptions) await each.ready;
  await c.publish(`${user}/all`, 'all');
  for (let n = 0; n < 3; n++) await a.publish(`${user}/${n}`, `to ${n}`);
  await seen(() => [...got.values()].every((each) => each.length === 2));
  expect([...got.values()]).toEqual([0, 1, 2].map((n) => ['all', `to ${n}`]));
  expect(b.stats()).toMatchObject({ transport: 'websocket', messages: 2, share: { role: 'follower', tabs: 3 } });
  // The wire subscription of a channel ends with its last reader, not before.
  await subscriptions[0]!.close();
  await a.publish(`${user}/all`, 'again');
  await seen(() => got.get(b)!.at(-1) === 'again' && got.get(c)!.at(-1) === 'again');
  expect(got.get(a)).not.toContain('again');
});

test('all kinds of data, history, keyed states, rosters and patterns work over the leader', async () => {
  const [, b, c] = await three();
  const channel = `${user}/kinds`;
  const got: unknown[] = [];
  const subscription = c.subscribe(`${user}/+`);
  subscription.on(({ data }) => got.push(data));
  await subscription.ready;
  const sent = [0, 'text', '"quoted"', { a: [1, null] }, new Uint8Array([1, 2, 255])];
  for (const each of sent) await b.publish(channel, each);
  await seen(() => got.length === sent.length);
  expect(got).toEqual(sent);
  expect((await b.history(channel, { limit: 10 })).map(({ data }) => data)).toEqual(sent);
  const list = state<number>(b, 'list/shared');
  await list.ready;
  await list.set(user, 1);
  await seen(() => list.get(user) === 1);
  await expect(list.set(user, 2, { ifMatch: '0' })).rejects.toBeInstanceOf(PreconditionFailed);
  const later = state<number>(connect(), 'list/shared');
  await later.ready;
  expect(later.get(user)).toBe(1);
  const present = roster(b, 'club/shared');
  await present.ready;
  const member = c.subscribe('club/shared');
  await member.ready;
  await seen(() => present.connections === 1);
  await expect(b.rpc('no/procedure')).rejects.toMatchObject({ code: 'rejected' });
});

test('a late client reads from a position, from the start and a state', async () => {
  const [a, b] = await three();
  const channel = `${user}/late`;
  const { position } = await a.publish(channel, 0);
  for (let n = 1; n < 50; n++) await a.publish(channel, n);
  const late = connect();
  const read = async (from: 'earliest' | { position: string }): Promise<unknown[]> => {
    const data: unknown[] = [];
    for await (const event of late.subscribe(channel, { from })) if (data.push(event.data) && event.data === 49) break;
    return data;
  };
  expect(await read('earliest')).toEqual(Array.from({ length: 50 }, (_, n) => n));
  expect(await read({ position })).toEqual(Array.from({ length: 49 }, (_, n) => n + 1));
  // The same for a pattern that another client reads from now on.
  const pattern: unknown[] = [];
  const first = a.subscribe(`${user}/#`);
  const live: Event[] = [];
  first.on((event) => live.push(event));
  await first.ready;
  late.subscribe(`${user}/#`, { from: 'earliest' }).on(({ data }) => pattern.push(data));
  await seen(() => pattern.length === 50);
  // A channel of the pattern, in another tab.
  const alone: unknown[] = [];
  const single = b.subscribe(channel);
  single.on(({ data }) => alone.push(data));
  await single.ready;
  await a.publish(channel, 50);
  await seen(() => pattern.length === 51 && live.length === 1 && alone.length === 1);
  await single.close();
  await new Promise((resolve) => setTimeout(resolve));
  await a.publish(channel, 51);
  await seen(() => pattern.length === 52 && live.length === 2);
  expect(alone).toEqual([50]);
  expect(pattern).toEqual(Array.from({ length: 52 }, (_, n) => n));
});

test('when the leader closes, another leads, and publications in flight are stored once and in order', async () => {
  const [a, b, c] = await three();
  const channel = `${user}/flight`;
  const got: Event[] = [];
  const subscription = c.subscribe(channel);
  subscription.on((event) => got.push(event));
  await subscription.ready;
  const sent: Promise<unknown>[] = [];
  for (let n = 0; n < 300; n++) {
    sent.push(b.publish(channel, n));
    if (n === 100) void a.close();
    if (n % 20 === 0) await new Promise((resolve) => setTimeout(resolve));
  }
  await Promise.all(sent);
  await seen(() => got.length === 300);
  expect(got.map(({ data }) => data)).toEqual(sent.map((_, n) => n));
  expect(got.map(({ offset }) => offset)).toEqual(sent.map((_, n) => BigInt(n + 1)));
  expect(roles().slice(1).sort()).toEqual(['follower', 'leader']);
  expect(sockets.size).toBe(1);
  expect(b.stats().gaps + c.stats().gaps).toBe(0);
});

/** Returns an unsigned token: a server without tokens ignores it, and it has an identity. */
const token = (claims: object): string => `${btoa('{"alg":"none"}')}.${btoa(JSON.stringify(claims))}.x`.replaceAll('=', '');

test('clients of another user, with other permissions or of another server do not share', async () => {
  const options = { identity: undefined as never, transports: ['websocket'] } as const;
  const open = (claims: object, address = url): SharedClient => {
    const made = shared(address, { ...options, WebSocket: CountedSocket, token: () => token(claims) });
    clients.push(made);
    return made;
  };
  const same = [open({ sub: user, exp: 1 }), open({ exp: 2, jti: 'x', sub: user })];
  const others = [open({ sub: `${user}2` }), open({ sub: user, millrace: { publish: ['a'] } }), open({ sub: user }, url.replace('127.0.0.1', 'localhost'))];
  await Promise.all([...same, ...others].map((each) => each.ready().catch(() => {})));
  await seen(() => same.filter((each) => each.stats().share.role === 'leader').length === 1);
  await seen(() => same.filter((each) => each.stats().share.role === 'follower').length === 1);
  await seen(() => others.every((each) => each.stats().share.role === 'leader'));
});

test('a leader whose token changes its user closes; the others go on with their own', async () => {
  let subject = user;
  const made = (of: () => string): SharedClient => {
    const each = shared(url, { WebSocket: CountedSocket, transports: ['websocket'], token: () => token({ sub: of() }) });
    clients.push(each);
    return each;
  };
  const [a, b] = [made(() => subject), made(() => user)];
  // The identity is read first, then the connection is opened.
  const ready = a.ready();
  await seen(() => a.stats().share.role === 'leader' || sockets.size > 0);
  subject = 'other';
  await ready.catch(() => {});
  await b.ready();
  for (const socket of sockets) socket.dispatchEvent(new CloseEvent('close', { code: 1006 }));
  await seen(() => a.state.name === 'closed');
  expect(a.state).toMatchObject({ cause: { code: 'auth', reason: 'other_identity' } });
  await seen(() => b.stats().share.role === 'leader' && b.state.name === 'open');
});

test('malformed messages, and those of another version, are ignored', async () => {
  const [a, b] = await three();
  const names = (await navigator.locks.query()).held!.map(({ name }) => name!).filter((name) => name.startsWith('millrace:'));
  const junk = [null, 1, 'x', [], {}, { v: 2, kind: 'lead', from: 'z', epoch: 99, hidden: false }, { v: 1, kind: 'lead', from: 'z', epoch: 1e300, hidden: false }, { v: 1, kind: 'lead', from: 'z', epoch: -1 },
    { v: 1, kind: 'toString', from: 'z' }, { v: 1, kind: 'up', from: 'z', link: 'z', text: 'not json' }, { v: 1, kind: 'down', from: 'z', link: 7, text: {} }, { v: 1, kind: 'upstream', from: 'z', link: 'z', state: 3, stats: null, tabs: 1 },
    { v: 1, kind: 'open', from: 'x'.repeat(1000), to: 'z', link: 'z' }, { v: 1, kind: 'who', from: 'z' }, { v: 1, kind: 'end', from: 'z', link: 'z', error: 4 }, new Map(), new Uint8Array(10)];
  for (const name of names) {
    const channel = new BroadcastChannel(name);
    for (const each of junk) channel.postMessage(each);
    channel.close();
  }
  await a.publish(`${user}/x`, 1);
  await b.publish(`${user}/x`, 2);
  expect(roles()).toEqual(['leader', 'follower', 'follower']);
  expect(sockets.size).toBe(1);
});

test('a leader that is told of a higher epoch leads again when nobody else answers', async () => {
  const [a] = await three();
  const name = (await navigator.locks.query()).held!.map(({ name }) => name!).find((name) => /^millrace:\d+:\w+$/.test(name))!;
  const channel = new BroadcastChannel(name);
  channel.postMessage({ v: 1, kind: 'lead', from: 'nobody', epoch: 50, hidden: false });
  await seen(() => clients.some((each) => each.stats().share.epoch > 50 && each.stats().share.role === 'leader' && each.state.name === 'open'));
  channel.close();
  await a.publish(`${user}/x`, 1);
  expect(roles().filter((role) => role === 'leader').length).toBe(1);
});

test('more clients than one leader serves have a connection of their own', async () => {
  const many = Array.from({ length: TABS_MAX + 2 }, () => connect());
  await Promise.all(many.map((each) => each.ready()));
  expect(roles().filter((role) => role === 'alone').length).toBe(2);
  expect(sockets.size).toBe(3);
  const alone = many.find((each) => each.stats().share.role === 'alone')!;
  expect(alone.stats().share.reason).toContain('too many tabs');
  await alone.publish(`${user}/x`, 1);
});

test('the state, a switch of the transport, and the end are those of the connection', async () => {
  const [a, b] = await three({ transports: ['websocket', 'sse'] });
  const states: string[] = [];
  b.onState((state) => states.push(state.name + ('transport' in state ? ` ${state.transport}` : '')));
  await b.use('sse');
  await seen(() => b.state.name === 'open' && b.state.transport === 'sse');
  expect(a.stats().transport).toBe('sse');
  expect(states.at(-1)).toBe('open sse');
  await expect(b.use('nothing' as never)).rejects.toMatchObject({ code: 'rejected', message: expect.stringContaining('nothing is not available') });
  b.wake();
  await b.close();
  expect(b.state).toEqual({ name: 'closed' });
  await a.publish(`${user}/x`, 1);
  await expect(b.ready()).rejects.toMatchObject({ code: 'aborted' });
});

test('a refusal of the origin closes every client with its cause', async () => {
  const refused = [0, 1].map(() => {
    const made = shared(inject('closedUrl'), { identity: user, transports: ['websocket'] });
    clients.push(made);
    return made;
  });
  for (const each of refused) await expect(each.ready()).rejects.toMatchObject({ code: 'auth', message: expect.stringContaining('origin not allowed') });
  for (const each of refused) expect(each.state).toMatchObject({ name: 'closed', cause: { code: 'auth', retryable: false } });
});

test('without Web Locks, a client has a connection of its own and says so', async () => {
  vi.stubGlobal('navigator', {});
  const [a, b] = await three();
  expect(sockets.size).toBe(2 + 1);
  for (const each of [a, b]) expect(each.stats().share).toEqual({ role: 'alone', reason: 'this runtime has no Web Locks', tabs: 1, epoch: 0 });
});

test('a browser that refuses Web Locks is no obstacle', async () => {
  vi.spyOn(navigator.locks, 'request').mockRejectedValue(new DOMException('no locks here', 'SecurityError'));
  const mr = connect();
  await mr.publish(`${user}/x`, 1);
  expect(mr.stats().share).toMatchObject({ role: 'alone', reason: expect.stringContaining('no locks here') });
});

test.each<TransportName>(['websocket', 'http-stream', 'poll'])('%s: the latency of a follower includes the way through the leader', async (transport) => {
  const [, b] = await three({ transports: [transport], pollMs: 20 });
  const mr = latency(b);
  const subscription = mr.subscribe(`${user}/latency`);
  let count = 0;
  subscription.on(() => count++);
  await subscription.ready;
  await seen(() => mr.stats().latency.errorMs !== undefined);
  for (let n = 0; n < 20; n++) await b.publish(`${user}/latency`, n);
  await seen(() => count === 20);
  const { p50, errorMs, offsetMs } = mr.stats().latency;
  // Page and server have the same clock; the browser rounds it.
  expect(Math.abs(offsetMs!)).toBeLessThanOrEqual(errorMs! + 3);
  expect(p50!).toBeGreaterThan(-errorMs! - 3);
});
