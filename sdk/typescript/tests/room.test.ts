// Tests of rooms without a browser: links, mutes, and data that arrives once and in order in spite of losses.
import { createHmac } from 'node:crypto';
import { expect, test, vi } from 'vitest';
import { ActiveSpeakerDetector } from '../src/room/active-speaker.js';
import { LinkFlow, type FlowHost } from '../src/room/flow.js';
import type { Link } from '../src/room/link.js';
import { joinRoom, neighbours, type RoomState } from '../src/room/index.js';
import { MutedTracks } from '../src/room/muted-tracks.js';
import { hasSeat, keepSeat, takeSeat, type FlowSnapshot } from '../src/room/seat.js';
import { TreeFlow } from '../src/room/tree.js';
import type { Subscription } from '../src/types.js';
import { startMillrace } from './millrace.js';

const people = (...ids: string[]): RoomState['participants'] => ids.map((id) => ({ id, name: id, role: 'member', since_ms: 0 }));
const state = (topology: RoomState['topology'], rest: Partial<RoomState> = {}): RoomState => ({ version: 1, topology, participants: people('1', '2', '3', '4'), ...rest });

test.each([
  [state('mesh'), '2', ['1', '3', '4']],
  [state('relay'), '2', ['1', '3', '4']],
  [state('star', { hub: '1' }), '1', ['2', '3', '4']],
  [state('star', { hub: '1' }), '2', ['1']],
  [state('tree', { parents: { '2': '1', '3': '1', '4': '2' } }), '2', ['1', '4']],
  [state('tree', { parents: { '2': '1', '3': '1', '4': '2' } }), '3', ['1']],
  [state('switch'), '2', ['switch']],
  [state('mixer'), '2', ['switch']],
])('neighbors by topology: %#', (state, me, expected) => {
  expect(neighbours(state, me)).toEqual(expected);
});

test('the loudest participant becomes the active speaker', () => {
  const detector = new ActiveSpeakerDetector();
  let now = 0;
  /** Returns the active speaker after `ms`, and the number of changes. */
  const run = (ms: number, levels: Record<string, number>): [string | undefined, number] => {
    let changes = 0;
    for (const end = now + ms; now < end; ) changes += Number(detector.update(new Map(Object.entries(levels)), (now += 100)));
    return [detector.speaker, changes];
  };
  const [noise, speech, shout] = [0.001, 0.1, 1];
  expect(run(3_000, { a: noise, b: noise })).toEqual([undefined, 0]);
  expect(run(1_500, { a: noise, b: speech })).toEqual(['b', 1]);
  expect(run(300, { a: shout, b: speech })).toEqual(['b', 0]);
  expect(run(3_000, { a: speech, b: speech })).toEqual(['b', 0]);
  expect(run(2_000, { a: shout, b: speech })).toEqual(['a', 1]);
  expect(run(1_000, { a: 0, b: noise })).toEqual(['a', 0]);
  expect(run(3_000, { a: 0, b: noise })).toEqual([undefined, 1]);
  expect(run(1_500, { a: speech, b: noise })).toEqual(['a', 1]);
  expect(run(100, { b: noise })).toEqual([undefined, 1]);
});

test('muted tracks return to their last setting', () => {
  const muted = new MutedTracks();
  const track = (enabled: boolean) => ({ enabled }) as MediaStreamTrack;
  const [on, off, other] = [track(true), track(false), track(true)];
  const enabled = (): boolean[] => [on, off, other].map((one) => one.enabled);
  muted.setMuted([on, off]);
  muted.setMuted([on, off, on]);
  expect(enabled()).toEqual([false, false, true]);
  expect([on, off, other].map((one) => muted.has(one))).toEqual([true, true, false]);
  muted.setMuted([on, off, other]);
  expect(enabled()).toEqual([false, false, false]);
  muted.setMuted([]);
  expect(enabled(), 'as they were').toEqual([true, false, true]);

  muted.setMuted([on, off, other]);
  muted.setEnabled(on, false);
  // The page itself enables the track.
  off.enabled = true;
  muted.setMuted([on, off]);
  expect(enabled()).toEqual([false, false, true]);
  muted.setMuted([]);
  expect(enabled(), 'as they are wanted').toEqual([false, true, true]);
  muted.setEnabled(on, true);
  expect(on.enabled).toBe(true);
});

/** Data of one participant, with links that a test opens, breaks and reads. */
class Peer {
  readonly links = new Map<string, Link>();
  readonly delivered: [string, unknown][] = [];
  readonly published: object[] = [];
  lost = 0;
  readonly flow: LinkFlow;

  constructor(readonly me: string, before?: FlowSnapshot) {
    const host: FlowHost = {
      me,
      links: this.links,
      deliver: ({ from, data }) => this.delivered.push([from, data]),
      lost: (_, count) => (this.lost += count),
      publish: (message) => this.published.push(message),
    };
    this.flow = new LinkFlow(host, before);
  }

  numbersOf(from: string): unknown[] {
    return this.delivered.flatMap(([sender, data]) => (sender === from ? [data] : []));
  }
}

/** Messages in flight between two peers. The test decides when they arrive, or that they are lost. */
class TestPath {
  readonly #queue: (() => void)[] = [];
  readonly #ends: [Peer, Link][];

  constructor(one: Peer, other: Peer) {
    const end = (to: Peer, from: Peer): Link =>
      ({ to: to.me, isOpen: true, isIdle: true, send: (message: object) => !!this.#queue.push(() => to.flow.received(to.links.get(from.me)!, structuredClone(message) as Record<string, unknown>)) }) as Link;
    this.#ends = [
      [one, end(other, one)],
      [other, end(one, other)],
    ];
    for (const [peer, link] of this.#ends) peer.links.set(link.to, link);
    for (const [peer, link] of this.#ends) peer.flow.opened(link);
  }

  deliver(count = Infinity): void {
    for (let i = 0; i < count && this.#queue.length; i++) this.#queue.shift()!();
  }

  cut(): void {
    this.#queue.length = 0;
    for (const [peer, link] of this.#ends) {
      peer.links.delete(link.to);
      peer.flow.closed(link);
    }
  }
}

const upTo = (count: number): number[] => Array.from({ length: count }, (_, i) => i);

test('broken links cause no loss and no duplicates', () => {
  const [one, two] = [new Peer('1'), new Peer('2')];
  const room = state('p2p', { participants: people('1', '2') });
  for (const peer of [one, two]) peer.flow.follow(room);
  for (let round = 0; round < 10; round++) {
    const path = new TestPath(one, two);
    path.deliver(round % 4);
    for (let i = 0; i < 10; i++) {
      one.flow.send(round * 10 + i);
      two.flow.send(round * 10 + i);
    }
    path.deliver(round);
    path.cut();
  }
  new TestPath(one, two).deliver();
  expect(two.numbersOf('1')).toEqual(upTo(100));
  expect(one.numbersOf('2')).toEqual(upTo(100));
  for (const peer of [one, two]) peer.flow.end();
});

test('a new hub repairs the loss of the old one', () => {
  const peers = ['1', '2', '3', '4'].map((id) => new Peer(id));
  const [one, two, three, four] = peers as [Peer, Peer, Peer, Peer];
  const room = state('star', { hub: '1' });
  for (const peer of peers) peer.flow.follow(room);
  const paths = [two, three, four].map((peer) => new TestPath(one, peer));
  // A new participant starts at the same number everywhere, whatever the order of the messages.
  for (const path of [...paths].reverse()) path.deliver();
  for (const path of paths) path.deliver();
  for (let i = 0; i < 20; i++) two.flow.send(i);
  paths[0]!.deliver();
  paths[1]!.deliver();
  // The first hub delivers only some messages to the fourth participant.
  paths[2]!.deliver(7);
  for (const path of paths) path.cut();
  const next = state('star', { hub: '3', participants: people('2', '3', '4') });
  for (const peer of [two, three, four]) peer.flow.follow(next);
  const others = [two, four].map((peer) => new TestPath(three, peer));
  for (let i = 20; i < 30; i++) two.flow.send(i);
  for (let turn = 0; turn < 4; turn++) for (const path of others) path.deliver();
  for (const peer of [three, four]) expect(peer.numbersOf('2')).toEqual(upTo(30));
  for (const peer of peers) peer.flow.end();
});

test('a reload repeats nothing, and reports own lost messages as a gap', () => {
  const [one, two] = [new Peer('1'), new Peer('2')];
  const room = state('p2p', { participants: people('1', '2') });
  for (const peer of [one, two]) peer.flow.follow(room);
  const path = new TestPath(one, two);
  for (const peer of [one, two]) for (let i = 0; i < 5; i++) peer.flow.send(i);
  path.deliver();
  one.flow.send('lost with the page');
  path.cut();
  two.flow.send(5);
  const again = new Peer('1', structuredClone(one.flow.snapshot('epoch:7')));
  again.flow.follow(room);
  again.flow.send('after the reload');
  new TestPath(again, two).deliver();
  expect(again.numbersOf('2')).toEqual([5]);
  expect(two.numbersOf('1')).toEqual([...upTo(5), 'after the reload']);
  expect([again.lost, two.lost]).toEqual([0, 1]);
  for (const peer of [one, two, again]) peer.flow.end();
});

test('a seat is taken once, and a broken one not at all', () => {
  const stored = new Map<string, string>();
  vi.stubGlobal('sessionStorage', { getItem: (key: string) => stored.get(key) ?? null, setItem: (key: string, value: string) => stored.set(key, value), removeItem: (key: string) => stored.delete(key) });
  try {
    const seat = { participant: '1', ticket: 'secret', flow: { at: 'epoch:7', seq: 3, delivered: { 2: 4 } } };
    keepSeat('kitchen', seat);
    expect([hasSeat('kitchen'), hasSeat('attic')]).toEqual([true, false]);
    expect(takeSeat('attic')).toBeUndefined();
    expect(takeSeat('kitchen')).toEqual(seat);
    expect(takeSeat('kitchen')).toBeUndefined();
    const until = Date.now() + 9_000;
    const [good, old, wrong] = [{ ...seat, until }, { ...seat, until: Date.now() - 1 }, { ...seat, participant: 1, until }].map((one) => JSON.stringify(one)) as [string, string, string];
    stored.set('millrace-seat kitchen', good);
    expect(takeSeat('kitchen')).toEqual(seat);
    for (const broken of ['', '{', '7', 'null', '{"participant":"1"}', JSON.stringify(seat), old, wrong]) {
      stored.set('millrace-seat kitchen', broken);
      expect(takeSeat('kitchen'), broken).toBeUndefined();
    }
  } finally {
    vi.unstubAllGlobals();
  }
});

test('unlinked participants receive data by the channel', () => {
  const [one, two] = [new Peer('1'), new Peer('2')];
  const room = state('mesh', { participants: people('1', '2') });
  for (const peer of [one, two]) peer.flow.follow(room);
  one.flow.send(0);
  expect(one.published).toEqual([]);
  one.flow.unreachable('2');
  one.flow.send(1);
  for (const message of [...one.published, ...one.published].reverse()) two.flow.read(message);
  expect(one.published.map((message) => (message as { data: unknown }).data)).toEqual([0, 1]);

  const [far, near] = [new Peer('1'), new Peer('2')];
  for (const peer of [far, near]) peer.flow.follow(room);
  for (let i = 0; i < 5000; i++) far.flow.send(i);
  new TestPath(far, near).deliver();
  expect(near.lost).toBe(5000 - 4096);
  expect(near.numbersOf('1')).toEqual(upTo(5000).slice(-4096));
  for (const peer of [one, two, far, near]) peer.flow.end();
});

test.each(['switch', 'mixer'] as const)('%s: data uses the channel at once', (topology) => {
  const [one, two] = [new Peer('1'), new Peer('2')];
  for (const peer of [one, two]) peer.flow.follow(state(topology, { participants: people('1', '2') }));
  one.flow.send(0);
  one.flow.send(1);
  for (const message of one.published) two.flow.read(message);
  expect(two.numbersOf('1')).toEqual([0, 1]);
  for (const peer of [one, two]) peer.flow.end();
});

test('a silent parent is bypassed and reported as lost', () => {
  vi.useFakeTimers();
  try {
    const parent = { to: '1', isOpen: true, createdAt: 0, receivedAt: performance.now(), send: () => true };
    let [reads, reports] = [0, 0];
    const flow = new TreeFlow(
      {
        me: '2',
        links: new Map([['1', parent as unknown as Link]]),
        deliver: () => {},
        lost: () => {},
        publish: () => {},
        read: () => (reads++, { close: async () => void reads-- }) as unknown as Subscription,
        report: () => void reports++,
      },
      'epoch:7',
    );
    const speak = (ms: number): void => {
      for (let passed = 0; passed < ms; passed += 250) {
        parent.receivedAt = performance.now();
        vi.advanceTimersByTime(250);
      }
    };
    flow.follow(state('tree', { parents: { '2': '1', '3': '1', '4': '1' } }));
    speak(5_000);
    expect([reads, reports, flow.reportFields()]).toEqual([0, 0, {}]);
    vi.advanceTimersByTime(2_000);
    expect([reads, reports], 'the channel replaces the parent').toEqual([1, 0]);
    vi.advanceTimersByTime(1_500);
    expect([reads, reports, flow.reportFields()]).toEqual([1, 1, { parent_lost: '1' }]);
    speak(500);
    expect([reads, reports, flow.reportFields()]).toEqual([0, 1, {}]);
    parent.isOpen = false;
    vi.advanceTimersByTime(250);
    expect([reads, reports], 'a closed parent is lost at once').toEqual([1, 2]);
    flow.follow(state('tree', { parents: { '3': '1', '4': '1', '2': '3' } }));
    expect([reads, reports, flow.reportFields()], 'another parent is assigned').toEqual([1, 2, {}]);
    flow.end();
  } finally {
    vi.useRealTimers();
  }
});

test('a client rejoins after a server restart', async () => {
  const first = await startMillrace();
  const options = { retry: { min: 50, max: 200 } };
  let second: Awaited<ReturnType<typeof startMillrace>> | undefined;
  try {
    const one = await joinRoom(first.url, 'kitchen', { name: 'Ann', topology: 'star', role: 'hub', ...options });
    const [id, events]: [string, unknown[]] = [one.id, []];
    one.on('rejoined', (rejoined) => events.push([rejoined.was, rejoined.id]));
    one.on('end', (cause) => events.push(cause));
    await first.kill();
    second = await startMillrace([], new URL(first.url).host);
    await expect.poll(() => events.length, { timeout: 15_000 }).toBe(1);
    expect(events).toEqual([[id, one.id]]);
    expect(one.id).not.toBe(id);
    const chat: string[] = [];
    one.on('chat', ({ text }) => chat.push(text));
    // A client that asks for another topology gets a conflict.
    await expect(joinRoom(first.url, 'kitchen', { topology: 'mesh' })).rejects.toMatchObject({ reason: 'conflict' });
    const two = await joinRoom(first.url, 'kitchen', { name: 'Bob', ...options });
    await two.say('still here');
    await expect.poll(() => chat).toEqual(['still here']);
    expect(two.state).toMatchObject({ topology: 'star', hub: one.id, participants: [{ name: 'Ann', role: 'hub' }, { name: 'Bob' }] });
    await two.leave();
    await one.leave();
  } finally {
    await first.stop();
    await second?.stop();
  }
});

test('only a moderator mutes and unmutes', async () => {
  const secret = 'a secret of thirty-two bytes or more';
  const part = (value: object): string => Buffer.from(JSON.stringify(value)).toString('base64url');
  const token = (sub: string, publish: string[]): string => {
    const message = `${part({ alg: 'HS256' })}.${part({ sub, exp: Math.floor(Date.now() / 1000) + 600, millrace: { subscribe: ['rooms/kitchen/#'], publish } })}`;
    return `${message}.${createHmac('sha256', secret).update(message).digest('base64url')}`;
  };
  const server = await startMillrace([`auth.secret=${secret}`]);
  try {
    const ann = await joinRoom(server.url, 'kitchen', { name: 'Ann', token: token('ann', ['rooms/kitchen/#']) });
    const bob = await joinRoom(server.url, 'kitchen', { name: 'Bob', token: token('bob', ['rooms/kitchen/chat', 'rooms/kitchen/data']) });
    const muted = () => bob.state.participants.map((one) => one.muted_by_host);
    await ann.mute(bob.id, { audio: true });
    await expect.poll(muted).toEqual([undefined, ['audio']]);
    await ann.mute(bob.id, { video: true });
    await expect.poll(muted).toEqual([undefined, ['audio', 'video']]);
    await ann.mute(bob.id, { audio: false });
    await expect.poll(muted).toEqual([undefined, ['video']]);
    await expect(bob.mute(bob.id, { video: false })).rejects.toMatchObject({ code: 'auth', reason: 'forbidden' });
    await expect(ann.mute('nobody', { audio: true })).rejects.toMatchObject({ reason: 'not_found' });
    await expect(ann.mute(bob.id, {})).rejects.toMatchObject({ reason: 'bad_request' });
    await ann.mute(bob.id, { video: false });
    await expect.poll(muted).toEqual([undefined, undefined]);
    await bob.leave();
    await ann.leave();
  } finally {
    await server.stop();
  }
});

test('mixer rooms require a server with mixers', async () => {
  const [none, some] = await Promise.all([startMillrace(), startMillrace(['rooms.mixers_max=1'])]);
  try {
    await expect(joinRoom(none.url, 'hall', { topology: 'mixer' })).rejects.toMatchObject({ reason: 'bad_request' });
    const room = await joinRoom(some.url, 'hall', { topology: 'mixer' });
    expect(room.state).toMatchObject({ topology: 'mixer' });
    await room.leave();
  } finally {
    await Promise.all([none.stop(), some.stop()]);
  }
});

test('without WebRTC, chat and data use channels', async () => {
  const server = await startMillrace();
  try {
    const one = await joinRoom(server.url, 'kitchen', { name: 'Ann' });
    const chat: string[] = [];
    const data: unknown[] = [];
    one.on('chat', ({ text }) => chat.push(text));
    one.on('data', (message) => data.push(message.data));
    const two = await joinRoom(server.url, 'kitchen', { name: 'Bob', transports: ['long-poll'] });
    await expect.poll(() => one.state.participants.length).toBe(2);
    await two.say('hello');
    two.send({ number: 1 });
    two.send({ number: 2 });
    await expect.poll(() => chat).toEqual(['hello']);
    await expect.poll(() => data, { timeout: 15_000 }).toEqual([{ number: 1 }, { number: 2 }]);
    await two.leave();
    await expect.poll(() => one.state.participants.map(({ name }) => name)).toEqual(['Ann']);
    await expect(joinRoom(server.url, 'kitchen', { topology: 'star' })).rejects.toMatchObject({ reason: 'conflict' });
    await one.leave();
  } finally {
    await server.stop();
  }
});
