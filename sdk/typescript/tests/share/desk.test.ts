// The bounds of the leader's side of a link, without a browser.
import { expect, test } from 'vitest';
import { CHANNELS_MAX, COMMANDS_MAX, Desk, TABS_MAX, UNREAD_MAX } from '../../src/share/desk.js';
import { decode, VERSION, type Draft, type Message } from '../../src/share/messages.js';
import { Relay } from '../../src/share/relay.js';

interface Stand {
  readonly desk: Desk;
  readonly relay: Relay;
  /** Messages to the tabs. */
  readonly sent: { readonly tab: string; readonly message: Draft }[];
  readonly gone: Map<string, () => void>;
  up(tab: string, text: string): void;
  /** Replies and pushes to a tab. */
  texts(tab: string): Record<string, any>[];
}

function stand(): Stand {
  const relay = new Relay(() => {}, () => Promise.resolve());
  const sent: Stand['sent'] = [];
  const gone = new Map<string, () => void>();
  const upstream = { state: { name: 'open', transport: 'websocket', rtt: 1, resumed: false }, stats: () => ({ transport: 'websocket' }), ask: () => new Promise(() => {}), use: async () => {}, wake() {} };
  const host = {
    send: (tab: string, message: Draft): void => void sent.push({ tab, message }),
    watch: (tab: string, fn: () => void) => {
      gone.set(tab, fn);
      return () => void gone.delete(tab);
    },
    linked() {},
  };
  const desk = new Desk(host, upstream as never, relay, () => relay);
  return {
    desk,
    relay,
    sent,
    gone,
    up: (tab, text) => desk.handleMessage({ v: VERSION, from: tab, kind: 'up', link: `${tab}.1`, text }),
    texts: (tab) => sent.flatMap((each) => (each.tab === tab && each.message.kind === 'down' ? [JSON.parse(each.message.text)] : [])),
  };
}

test('a tab has a limited number of channels; other tabs are not affected', () => {
  const { desk, relay, up, texts } = stand();
  desk.open('a', 'a.1');
  desk.open('b', 'b.1');
  for (let n = 0; n <= CHANNELS_MAX; n++) up('a', JSON.stringify({ id: n + 1, subscribe: { channel: `x/${n}`, policy: 'every' } }));
  expect(texts('a').at(-1)).toMatchObject({ id: CHANNELS_MAX + 1, error: { reason: 'too_many', retry: false } });
  up('b', JSON.stringify({ id: 1, subscribe: { channel: 'y', policy: 'every' } }));
  expect(relay.size).toBe(CHANNELS_MAX + 1);
});

test('a tab has a limited number of unanswered requests', () => {
  const { desk, up, texts } = stand();
  desk.open('a', 'a.1');
  for (let n = 1; n <= COMMANDS_MAX + 1; n++) up('a', JSON.stringify({ id: n, publish: { channel: 'x', data: n, idempotency_key: `${n}` } }));
  const answers = texts('a').filter(({ id }) => id);
  expect(answers).toEqual([{ id: COMMANDS_MAX + 1, error: expect.objectContaining({ reason: 'too_many' }) }]);
});

test('the link of a tab that does not read is ended, and its channels too', () => {
  const { desk, relay, sent, up } = stand();
  desk.open('a', 'a.1');
  up('a', JSON.stringify({ id: 1, subscribe: { channel: 'x', policy: 'every' } }));
  relay.hub.wanted();
  relay.hub.started('x', { position: 'e:0', time: 1 });
  for (let n = 1; n <= UNREAD_MAX + 10; n++) relay.hub.receive({ channel: 'x', position: `e:${n}`, time: n, data: n });
  expect(sent.filter(({ message }) => message.kind === 'down').length).toBeLessThanOrEqual(UNREAD_MAX);
  expect(sent.at(-1)).toMatchObject({ tab: 'a', message: { kind: 'end', link: 'a.1', error: { code: 'network', retryable: true } } });
  expect([relay.size, desk.tabs]).toEqual([0, 0]);
});

test('a tab that confirms what it reads receives without an end', () => {
  const { desk, relay, sent, up } = stand();
  desk.open('a', 'a.1');
  up('a', JSON.stringify({ id: 1, subscribe: { channel: 'x', policy: 'every' } }));
  relay.hub.wanted();
  relay.hub.started('x', { position: 'e:0', time: 1 });
  for (let n = 1; n <= 3 * UNREAD_MAX; n++) {
    relay.hub.receive({ channel: 'x', position: `e:${n}`, time: n, data: n });
    if (n % 1000 === 0) desk.handleMessage({ v: VERSION, from: 'a', kind: 'ack', link: 'a.1', count: n });
  }
  expect(sent.some(({ message }) => message.kind === 'end')).toBe(false);
});

test('the channels of a tab that has ended are not read any longer', () => {
  const { desk, relay, gone, up } = stand();
  for (const tab of ['a', 'b']) {
    desk.open(tab, `${tab}.1`);
    up(tab, JSON.stringify({ id: 1, subscribe: { channel: 'both', policy: 'every' } }));
    up(tab, JSON.stringify({ id: 2, subscribe: { channel: tab, policy: 'every' } }));
  }
  gone.get('a')!();
  expect(relay.hub.wanted().map(({ channel }) => channel)).toEqual(['both', 'b']);
  gone.get('b')!();
  expect(relay.hub.wanted()).toEqual([]);
});

test('one leader serves a limited number of tabs', () => {
  const { desk, sent } = stand();
  for (let n = 0; n <= TABS_MAX; n++) desk.open(`t${n}`, `t${n}.1`);
  expect(sent.at(-1)).toEqual({ tab: `t${TABS_MAX}`, message: { kind: 'full', link: `t${TABS_MAX}.1` } });
  expect(desk.tabs).toBe(TABS_MAX);
});

test('no malformed message or command throws', () => {
  const { desk, up } = stand();
  desk.open('a', 'a.1');
  for (const text of ['', 'null', '1', '[]', '{}', '{"id":1}', '{"id":"x","publish":{}}', '{"id":1,"subscribe":null}', '{"id":1,"subscribe":{"channel":7}}', '{"id":1,"subscribe":{"channel":"../x"}}', '{"id":1,"subscribe":{"channel":"a/#/b"}}']) {
    desk.open('a', 'a.1');
    up('a', text);
  }
  const kinds = ['who', 'lead', 'take', 'resign', 'open', 'up', 'down', 'ack', 'started', 'upstream', 'end', 'full', 'constructor', '__proto__'];
  const values = [undefined, null, 0, -1, 1e300, NaN, '', 'x'.repeat(100), [], {}, true, () => {}, Symbol('x')];
  let decoded: Message | undefined;
  for (const kind of kinds) for (const value of values) {
    decoded = decode({ v: VERSION, from: 'z', kind, link: value, to: value, text: value, epoch: value, hidden: value, visible: value, count: value, channel: value, time: value, state: value, stats: value, tabs: value, error: value });
    if (decoded) desk.handleMessage(decoded);
  }
  expect(decode({ v: VERSION + 1, from: 'z', kind: 'who', visible: true })).toBeUndefined();
  expect(decode({ v: VERSION, from: 'z', kind: 'who', visible: true })).toBeDefined();
});
