// Rosters against the real server, over all transports.
import { createHmac } from 'node:crypto';
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import { WebSocket } from 'ws';
import { millrace, type ConnectOptions, type TransportName } from '../src/index.js';
import { members, roster } from '../src/roster.js';
import { until } from './faulty-server.js';
import { startMillrace, type RunningServer } from './millrace.js';

const SECRET = 'a secret of thirty-two bytes or more';
let server: RunningServer;
let clients: { close(): Promise<void> }[] = [];
let channels = 0;

beforeAll(async () => {
  server = await startMillrace(['namespaces.chat.roster=true', 'namespaces.chat.roster_grace=300ms', `auth.secret=${SECRET}`]);
});
afterAll(() => server?.stop());
afterEach(async () => {
  for (const each of clients) await each.close();
  clients = [];
});

/** Returns a token of `sub` with all permissions, or with some. */
function tokenOf(sub: string, permissions = ['subscribe', 'publish', 'presence', 'history']): string {
  const encode = (part: object): string => Buffer.from(JSON.stringify(part)).toString('base64url');
  const millrace = Object.fromEntries(permissions.map((permission) => [permission, ['#', '+/+/:members']]));
  const text = `${encode({ alg: 'HS256', typ: 'JWT' })}.${encode({ sub, exp: Math.floor(Date.now() / 1000) + 60, millrace })}`;
  return `${text}.${createHmac('sha256', SECRET).update(text).digest('base64url')}`;
}

function connect(sub: string, options: ConnectOptions = {}) {
  const made = millrace(server.url, { WebSocket, pollMs: 20, token: tokenOf(sub), ...options });
  clients.push(made);
  return made;
}

const fresh = (): string => `chat/${++channels}`;

describe.each<TransportName>(['websocket', 'http-stream', 'sse', 'long-poll', 'poll'])('%s', (transport) => {
  test('members join, connect twice and leave', async () => {
    const channel = fresh();
    const first = connect('ann');
    await first.subscribe(channel).ready;
    const present = roster(connect('observer', { transports: [transport] }), channel);
    await present.ready;
    await until(() => present.size === 1, 'the first member');
    const ids: string[] = [];
    present.on(({ key, entry }) => ids.push(`${key} ${entry?.value.connections ?? 'left'}`));
    const [second, bob] = [connect('ann'), connect('bob')];
    await second.subscribe(channel).ready;
    await until(() => present.get('ann')?.connections === 2, 'the second connection');
    await bob.subscribe(channel).ready;
    await until(() => present.size === 2, 'the second member');
    expect([...present].map(({ key, value }) => [key, value.connections]).sort()).toEqual([['ann', 2], ['bob', 1]]);
    expect(present.connections).toBe(3);
    expect(Math.abs(present.get('bob')!.since_ms - Date.now())).toBeLessThan(10_000);
    await bob.close();
    await second.close();
    await until(() => present.size === 1 && present.connections === 1, 'the leaves');
    expect(ids).toEqual(expect.arrayContaining(['ann 2', 'bob 1', 'bob left', 'ann 1']));
    // A reader of the roster is no member of the channel.
    expect(present.get('observer')).toBeUndefined();
  });

  test('pages contain each member once', async () => {
    const channel = fresh();
    const names = ['ann', 'bob', 'cid', 'dan', 'eve'];
    await Promise.all(names.map((name) => connect(name).subscribe(channel).ready));
    const observer = connect('observer', { transports: [transport] });
    const present = roster(observer, channel);
    await until(() => present.size === names.length, 'the members');
    const pages = [];
    for await (const page of members(observer, channel, { limit: 2, timeoutMs: 5000 })) pages.push(page);
    expect(pages.map((page) => [page.count, page.members.length])).toEqual([[5, 2], [5, 2], [5, 1]]);
    expect(pages.flatMap((page) => page.members.map(({ id, connections }) => `${id} ${connections}`)).sort()).toEqual(names.map((name) => `${name} 1`));
    await expect(members(observer, channel, { signal: AbortSignal.abort() }).next()).rejects.toMatchObject({ code: 'aborted' });
    await expect(members(observer, 'plain/1').next()).rejects.toMatchObject({ reason: 'bad_request' });
  });
});

test('a roster needs the permission presence, and a namespace with rosters', async () => {
  const forbidden = connect('eve', { token: tokenOf('eve', ['subscribe']) });
  await expect(roster(forbidden, fresh()).ready).rejects.toMatchObject({ code: 'auth', reason: 'forbidden' });
  await expect(roster(connect('ann'), 'plain/1').ready).rejects.toMatchObject({ reason: 'bad_request' });
  // The permission to subscribe is not needed.
  const present = roster(connect('bob', { token: tokenOf('bob', ['presence']) }), fresh());
  await present.ready;
});
