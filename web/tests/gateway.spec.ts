// A gateway in a tab: message handling without a browser, real tabs with real data channels, and accessibility of the
// page.
import { expect, test, type Browser, type BrowserContext, type Page, type TestInfo } from '@playwright/test';
import { Bundle, read } from '../src/pages/gateway/bundle.ts';
import { Forwarder, MESSAGE_BYTES_MAX, JoinRefused, type Config } from '../src/pages/gateway/forwarder.ts';
import { Order, readSample, write } from '../src/pages/gateway/sample.ts';
import { readOffer } from '../src/pages/gateway/signals.ts';
import type {} from '../src/pages/gateway/window';
import type { Plan } from '../src/pages/gateway/simulated-devices.ts';
import { BEST, LOOKS, url, violations } from './page.ts';

test.describe.configure({ timeout: 120_000 });

const PATIENCE = { timeout: 40_000 };

/** A forwarder with a manual clock. */
class Bench {
  readonly forwarder: Forwarder;
  nowMs = 1_000;

  constructor(config: Partial<Config> = {}) {
    this.forwarder = new Forwarder(config);
  }

  join(name: string, to?: string): number {
    return this.forwarder.join({ name, urgent: '!', ...(to && { to }) });
  }

  send(from: number, text: string | Uint8Array<ArrayBuffer>): void {
    this.forwarder.handle(this.nowMs, from, text);
  }

  wait(ms: number): void {
    this.nowMs += ms;
    this.forwarder.handleTimeout(this.nowMs);
  }

  received(id: number): (string | Uint8Array)[] {
    const received: (string | Uint8Array)[] = [];
    for (let message; (message = this.forwarder.pollOutput(id)); ) received.push(message.data);
    return received;
  }

  /** Returns the received bundles; each part is formatted as `sender text`. */
  bundles(id: number): string[][] {
    return this.received(id).map((text) => read(text as string)!.parts.map(({ peer, data }) => `${peer} ${data as string}`));
  }
}

/** Returns the error code with which `join` fails, if it fails. */
function refusal(join: () => unknown): string | undefined {
  try {
    join();
    return undefined;
  } catch (error) {
    return (error as JoinRefused).code;
  }
}

test.describe('without a browser', () => {
  test('messages go to the receiver of their sender', () => {
    const bench = new Bench();
    const [a, b, c] = [bench.join('a', 'b'), bench.join('b', 'a'), bench.join('c')];
    bench.send(a, 'to b');
    bench.send(b, 'to a');
    bench.send(c, 'to nobody');
    bench.send(a, Uint8Array.of(0, 255));
    bench.send(a, new TextEncoder().encode('é'));
    const { forwarder } = bench;
    expect([forwarder.pollReady(), forwarder.pollReady(), forwarder.pollReady()]).toEqual([b, a, undefined]);
    expect([bench.received(b), bench.received(a), bench.received(c)]).toEqual([['to b', Uint8Array.of(0, 255), 'é'], ['to a'], []]);
    expect(forwarder.stats).toMatchObject({ received: 5, sent: 4, nowhere: 1 });
    forwarder.leave(b);
    bench.send(a, 'too late');
    expect(forwarder.stats.nowhere).toBe(2);
    const again = bench.join('b');
    bench.send(a, 'for the next of this name');
    expect(bench.received(again)).toEqual(['for the next of this name']);
  });

  test('missing receivers are listed, up to a limit', () => {
    const bench = new Bench({ splits: true });
    const [a, up] = [bench.join('a', 'b'), bench.join('up')];
    bench.send(a, '1');
    bench.send(a, '2');
    expect([...bench.forwarder.missing()]).toEqual([['b', 2]]);
    bench.join('b');
    bench.send(a, '3');
    expect([...bench.forwarder.missing()]).toEqual([]);
    bench.send(up, JSON.stringify(Array.from({ length: 100 }, (_, i) => ({ peer: `x${i}`, data: '' }))));
    expect([bench.forwarder.missing().size, bench.forwarder.stats.nowhere]).toEqual([8, 102]);
  });

  test('a bundle is sent when its window ends', () => {
    const bench = new Bench({ gathers: true });
    const [a, b, up] = [bench.join('a', 'up'), bench.join('b', 'up'), bench.join('up')];
    bench.send(a, '1');
    expect(bench.forwarder.timeout()).toBe(bench.nowMs + 250);
    bench.wait(100);
    bench.send(b, '2');
    bench.wait(149);
    bench.send(a, '3');
    expect([bench.bundles(up), bench.forwarder.pollReady()]).toEqual([[], undefined]);
    bench.wait(1);
    expect([bench.forwarder.pollReady(), bench.bundles(up)]).toEqual([up, [['a 1', 'b 2', 'a 3']]]);
    bench.wait(1_000);
    expect([bench.forwarder.timeout(), bench.bundles(up)]).toEqual([undefined, []]);
    bench.send(b, '4');
    bench.wait(250);
    expect(bench.bundles(up)).toEqual([['b 4']]);
  });

  test('a bundle is sent before it exceeds its size', () => {
    const limit = 200;
    const bench = new Bench({ gathers: true, bundleBytesMax: limit });
    const [a, up] = [bench.join('a', 'up'), bench.join('up')];
    for (let i = 0; i < 20; i++) bench.send(a, 'ä123456789');
    const sizes = bench.received(up).map((text) => new TextEncoder().encode(text as string).length);
    expect(sizes.length).toBeGreaterThanOrEqual(3);
    expect(Math.max(...sizes)).toBeLessThanOrEqual(limit);
    // A message larger than the limit is sent alone and at once, after the pending bundle.
    bench.send(a, 'x'.repeat(2 * limit));
    const last = bench.bundles(up);
    expect([last.length, last[1]!.length, last[1]![0]!.length]).toEqual([2, 1, 2 * limit + 2]);
    expect(bench.forwarder.timeout()).toBeUndefined();
  });

  test('an urgent message sends the bundle at once', () => {
    const bench = new Bench({ gathers: true });
    const [a, b, up] = [bench.join('a', 'up'), bench.join('b', 'up'), bench.join('up')];
    bench.send(b, '1');
    bench.send(a, '!2');
    expect(bench.bundles(up)).toEqual([['b 1', 'a !2']]);
    // The window that the urgent message ended does not shorten the next window.
    bench.wait(249);
    bench.send(b, '3');
    bench.wait(249);
    expect(bench.bundles(up)).toEqual([]);
    bench.wait(1);
    expect([bench.bundles(up), bench.forwarder.stats.urgent]).toEqual([[['b 3']], 1]);
  });

  test('bundles are split to the named receivers', () => {
    const bench = new Bench({ splits: true });
    const hub = bench.join('hub');
    const arms = Array.from({ length: 10 }, (_, i) => bench.join(`arm-${i}`, 'hub'));
    const bundle = new Bundle();
    bundle.pushLost(1);
    arms.forEach((_, i) => bundle.push(`arm-${i}`, `move ${i}`));
    bundle.push('nobody', 'x');
    bundle.push('arm-3', Uint8Array.of(255));
    bench.send(hub, bundle.take());
    arms.forEach((arm, i) => expect(bench.received(arm)).toEqual([`move ${i}`, ...(i === 3 ? [Uint8Array.of(255)] : [])]));
    bench.send(arms[0]!, 'as it is');
    expect(bench.received(hub)).toEqual(['as it is']);
    bench.send(hub, 'no bundle');
    expect(bench.forwarder.stats).toMatchObject({ split_bundles: 1, nowhere: 1, refused: 1 });

    bench.forwarder.configure({ gathers: true });
    bench.send(arms[1]!, 'up');
    bench.send(arms[2]!, 'up, too');
    bench.wait(250);
    bench.send(hub, bench.received(hub)[0] as string);
    expect([bench.received(arms[1]!), bench.received(arms[2]!)]).toEqual([['up'], ['up, too']]);
  });

  test('a mode change keeps the order per sender', () => {
    let seed = 7;
    const below = (n: number): number => {
      seed = (Math.imul(seed, 1_103_515_245) + 12_345) & 0x7fffffff;
      return (seed >> 15) % n;
    };
    const bench = new Bench({ gathers: true, bundleBytesMax: 300 });
    const up = bench.join('up');
    const senders = Array.from({ length: 5 }, (_, i) => bench.join(`s${i}`, 'up'));
    const [sent, received] = [[0, 0, 0, 0, 0], [[], [], [], [], []] as number[][]];
    const take = (): void => {
      for (const text of bench.received(up)) {
        const parts = read(text as string)?.parts ?? [{ data: text }];
        for (const { data } of parts) {
          const [, sender, number] = /^!?(\d) (\d+)/.exec(data as string)!;
          received[Number(sender)]!.push(Number(number));
        }
      }
    };
    for (let i = 0; i < 3_000; i++) {
      const sender = below(5);
      if (below(200) === 0) bench.forwarder.configure({ gathers: below(2) === 0, windowMs: 50 + below(400) });
      bench.send(senders[sender]!, `${below(10) ? '' : '!'}${sender} ${sent[sender]!++} ${'.'.repeat(below(60))}`);
      bench.wait(below(30));
      if (!below(4)) take();
    }
    bench.wait(1_000);
    take();
    expect(received).toEqual(sent.map((count) => Array.from({ length: count }, (_, i) => i)));
  });

  test('a slow receiver has a bounded queue and loss report', () => {
    const waitingBytesMax = 4_096;
    const bench = new Bench({ gathers: true, bundleBytesMax: 300, waitingBytesMax });
    const [a, up] = [bench.join('a', 'up'), bench.join('up')];
    for (let i = 0; i < 1_000; i++) bench.send(a, String(i).padStart(100, '0'));
    bench.wait(250);
    const held = bench.forwarder.peers().find(({ id }) => id === up)!.waitingBytes;
    expect(held).toBeLessThanOrEqual(waitingBytesMax);
    expect(held).toBeGreaterThan(2_000);
    const { lost } = bench.forwarder.stats;
    bench.send(a, 'next');
    bench.wait(250);
    const bundles = bench.received(up).map((text) => read(text as string)!);
    const parts = bundles.flatMap(({ parts }) => parts);
    expect(lost).toBeGreaterThan(900);
    expect(parts.at(-2)!.data).toMatch(/999$/);
    expect([parts.length + lost, bundles.reduce((sum, { lost }) => sum + lost, 0)]).toEqual([1_001, lost]);
  });

  test('invalid joins and oversized messages are refused', () => {
    const bench = new Bench({ peersMax: 2, gathers: true, splits: true });
    const a = bench.join('a', 'b');
    expect(refusal(() => bench.join('a'))).toBe('name_taken');
    for (const [name, to] of [['', 'b'], ['x\n', 'b'], ['y', '\x7f'], ['ü'.repeat(33), 'b']] as const) expect(refusal(() => bench.join(name, to)), name).toBe('bad_request');
    const b = bench.join('b');
    expect(refusal(() => bench.join('c'))).toBe('unavailable');
    bench.send(a, 'ü'.repeat(MESSAGE_BYTES_MAX / 2 + 1));
    bench.send(b, `[${' '.repeat(256 * 1024)}]`);
    expect([bench.forwarder.stats.refused, bench.forwarder.timeout()]).toEqual([2, undefined]);
  });

  test('bundles round-trip, and invalid bundles are refused', () => {
    const bundle = new Bundle();
    const messages = [['a', 'text'], ['"b"', '\x01\n\u00e9"\u{1f600}'], ['c', Uint8Array.of(0, 255)], ['a', '']] as const;
    bundle.pushLost(3);
    for (const [peer, data] of messages) bundle.push(peer, data);
    const { bytes } = bundle;
    const text = bundle.take();
    expect([new TextEncoder().encode(text).length, bundle.bytes, bundle.count]).toEqual([bytes + 1, 0, 0]);
    expect(text.startsWith('[{"lost":3},{"peer":"a","data":"text"},')).toBe(true);
    expect(read(text)).toEqual({ parts: messages.map(([peer, data]) => ({ peer, data })), lost: 3 });
    expect(read('[]')).toEqual({ parts: [], lost: 0 });
    for (const bad of ['', 'hello', '{}', '[1]', '[{"peer":"a"}]', '[{"lost":-1}]', '[{"peer":"a","data":"!","encoding":"base64"}]', '[{"peer":"a","data":"A P8=","encoding":"base64"}]', '[{"peer":"a","data":"x","encoding":"rot13"}]', '[{"peer":"a","data":"\\ud800"}]'])
      expect(read(bad), bad).toBeUndefined();
  });

  test('only data channel offers with a name are accepted', () => {
    const offer = 'v=0\r\nm=application 9 UDP/DTLS/SCTP webrtc-datachannel\r\n';
    const good = { id: 'abcdefgh', name: 'arm', to: 'up', urgent: '', offer };
    expect(readOffer(good)).toEqual(good);
    expect(readOffer({ ...good, to: null, more: 1 })).toEqual({ id: good.id, name: 'arm', urgent: '', offer });
    const bads = [null, 'x', {}, { ...good, id: 'a/b/c/d/e' }, { ...good, name: 1 }, { ...good, to: 1 }, { ...good, urgent: 'x'.repeat(257) }, { ...good, offer: 'v=0' }, { ...good, offer: `${offer}m=video 9 UDP/TLS/RTP/SAVPF 96\r\n` }, { ...good, offer: offer + 'a'.repeat(65_536) }];
    for (const bad of bads) expect(refusal(() => readOffer(bad))).toBe('bad_request');
  });

  test('a sample encodes number, time and sender', () => {
    const sample = { number: 17, atMs: 1_700_000_000_123.25, from: 'arm 1' };
    const text = write(sample, 100);
    expect([text.length, readSample(text), readSample('hello')]).toEqual([100, sample, undefined]);
    const order = new Order();
    for (const number of [1, 2, 5, 5, 4, 1, 2]) order.observe('a', number);
    expect([order.missing, order.duplicates]).toEqual([2, 2]);
  });
});

let gateways = 0;
const uniqueName = (): string => `gateway-${process.pid}-${++gateways}`;

/** Opens a tab that is a gateway. */
async function open(context: BrowserContext, mode: string): Promise<{ name: string; page: Page }> {
  const name = uniqueName();
  const page = await context.newPage();
  await page.goto(url(`/gateway/${name}?mode=${mode}&window=250`));
  await expect(page.getByText('Ready for devices')).toBeVisible(PATIENCE);
  return { name, page };
}

/** Opens a tab with devices, starts them, and waits until all have joined. */
async function startDevices(context: BrowserContext, gateway: string, plan: Partial<Plan>): Promise<Page> {
  const page = await context.newPage();
  await page.goto(url(`/gateway/${gateway}?device`));
  const { name = 'arm', count = 1, sends = 'messages', to = 'hub', parts = [] } = plan;
  await page.getByLabel('Name').fill(name);
  await page.getByLabel('Number of devices').fill(String(count));
  await page.getByLabel('What to send').selectOption(sends);
  if (sends === 'bundles') await page.getByLabel('Receiver').fill(parts.join(', '));
  else await page.getByLabel('Receiver').fill(to);
  await page.getByRole('button', { name: 'Start' }).click();
  await expect(page.getByText(`${count} of ${count} joined`)).toBeVisible(PATIENCE);
  return page;
}

const snapshot = (page: Page) => page.evaluate(() => ({ ...window.devices!.snapshot(), received: window.devices!.received }));
const stats = (page: Page) => page.evaluate(() => window.gateway!.snapshot().stats);
const ARMS = Array.from({ length: 10 }, (_, i) => `arm-${i + 1}`);

/**
 * Checks that each device received every number of each sender once and in order, from the first received number on.
 */
function checkOrder({ received }: Awaited<ReturnType<typeof snapshot>>): void {
  const next = new Map<string, number>();
  for (const { device, from, number } of received) {
    const key = `${from} to ${device}`;
    if (next.has(key)) expect(number, key).toBe(next.get(key));
    next.set(key, number + 1);
  }
}

function logResult(mode: string, { received, p50, p99, bundles }: Awaited<ReturnType<typeof snapshot>>, more: object = {}): void {
  const round = (ms: number | undefined) => Math.round((ms ?? NaN) * 10) / 10;
  console.log(JSON.stringify({ gateway: mode, messages: received.length, bundles, delay_p50_ms: round(p50), delay_p99_ms: round(p99), ...more }));
}

async function run(browser: Browser, mode: string, body: (context: BrowserContext, name: string, gateway: Page) => Promise<void>): Promise<void> {
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 } });
  const { name, page } = await open(context, mode);
  await body(context, name, page);
  await context.close();
}

test('forward: ten senders, each message once and in order', async ({ browser }) => {
  await run(browser, 'forward', async (context, name, gateway) => {
    const hub = await startDevices(context, name, { name: 'hub', sends: 'nothing', to: '' });
    const arms = await startDevices(context, name, { count: 10 });
    await expect.poll(async () => (await snapshot(hub)).received.length, PATIENCE).toBeGreaterThan(200);
    await arms.getByRole('button', { name: 'Stop' }).click();
    const sent = (await snapshot(arms)).sent;
    await expect.poll(async () => (await snapshot(hub)).received.length, PATIENCE).toBe(sent);
    const result = await snapshot(hub);
    checkOrder(result);
    logResult('forward', result);
    expect(new Set(result.received.map(({ from }) => from))).toEqual(new Set(ARMS));
    expect(result).toMatchObject({ missing: 0, duplicates: 0, bundles: 0 });
    expect(result.p50).toBeLessThan(150);
    expect(await stats(gateway)).toMatchObject({ received: sent, sent, lost: 0, nowhere: 0, refused: 0 });
    // A device that leaves is removed at once, and its name is free.
    await expect(gateway.getByRole('rowheader')).toHaveText(['hub'], PATIENCE);
  });
});

test('multiplex: ten senders yield four bundles per second', async ({ browser }) => {
  await run(browser, 'multiplex', async (context, name, gateway) => {
    const hub = await startDevices(context, name, { name: 'hub', sends: 'nothing', to: '' });
    const arms = await startDevices(context, name, { count: 10 });
    const [from, began] = [await snapshot(hub), performance.now()];
    await expect.poll(async () => (await snapshot(hub)).received.length, PATIENCE).toBeGreaterThan(from.received.length + 200);
    const [to, seconds] = [await snapshot(hub), (performance.now() - began) / 1000];
    await arms.getByRole('button', { name: 'Stop' }).click();
    const sent = (await snapshot(arms)).sent;
    await expect.poll(async () => (await snapshot(hub)).received.length, PATIENCE).toBe(sent);
    const result = await snapshot(hub);
    checkOrder(result);
    const perSecond = (to.bundles - from.bundles) / seconds;
    logResult('multiplex', result, { bundles_per_s: Math.round(perSecond * 10) / 10 });
    expect(perSecond).toBeGreaterThan(2.5);
    expect(perSecond).toBeLessThan(4.5);
    expect(result.received.length / result.bundles).toBeGreaterThan(7);
    expect(result).toMatchObject({ missing: 0, duplicates: 0, lost: 0 });
    expect(await stats(gateway)).toMatchObject({ received: sent, sent, gathered_bundles: result.bundles, lost: 0 });
  });
});

test('demultiplex: each part reaches its receiver', async ({ browser }) => {
  await run(browser, 'demultiplex', async (context, name, gateway) => {
    const arms = await startDevices(context, name, { count: 10, sends: 'nothing', to: '' });
    const hub = await startDevices(context, name, { name: 'hub', sends: 'bundles', parts: ARMS });
    await expect.poll(async () => (await snapshot(arms)).received.length, PATIENCE).toBeGreaterThan(200);
    await hub.getByRole('button', { name: 'Stop' }).click();
    const sent = (await snapshot(hub)).sent;
    await expect.poll(async () => (await snapshot(arms)).received.length, PATIENCE).toBe(sent);
    const result = await snapshot(arms);
    checkOrder(result);
    logResult('demultiplex', result);
    const each = new Map(ARMS.map((arm) => [arm, result.received.filter(({ device }) => device === arm).length]));
    expect(new Set(each.values())).toEqual(new Set([sent / 10]));
    expect(result).toMatchObject({ missing: 0, duplicates: 0, bundles: 0 });
    expect(await stats(gateway)).toMatchObject({ received: sent / 10, split_bundles: sent / 10, sent, nowhere: 0, refused: 0 });
  });
});

test('both: gathers up, splits down, changes mode live', async ({ browser }) => {
  await run(browser, 'both', async (context, name, gateway) => {
    const arms = await startDevices(context, name, { count: 10 });
    const hub = await startDevices(context, name, { name: 'hub', sends: 'bundles', parts: ARMS });
    await expect.poll(async () => (await snapshot(hub)).received.length, PATIENCE).toBeGreaterThan(200);
    await expect.poll(async () => (await snapshot(arms)).received.length, PATIENCE).toBeGreaterThan(200);
    const up = await snapshot(hub);
    expect(up.received.length / up.bundles).toBeGreaterThan(7);
    expect(gateway.url()).toContain('mode=both');
    await gateway.getByLabel('Mode').selectOption('demultiplex');
    await expect.poll(async () => (await snapshot(hub)).received.length, PATIENCE).toBeGreaterThan(up.received.length + 100);
    const [above, below] = [await snapshot(hub), await snapshot(arms)];
    checkOrder(above);
    checkOrder(below);
    logResult('both, up', above);
    logResult('both, down', below);
    expect(above).toMatchObject({ missing: 0, duplicates: 0, lost: 0 });
    expect(below).toMatchObject({ missing: 0, duplicates: 0, bundles: 0 });
    expect(gateway.url()).toContain('mode=demultiplex');
    // After a reload the page is the same gateway, and the devices reconnect automatically.
    await gateway.reload();
    await expect(gateway.getByLabel('Mode')).toHaveValue('demultiplex');
    await expect(gateway.getByRole('rowheader')).toHaveCount(11, { timeout: 60_000 });
    await expect.poll(async () => (await stats(gateway)).sent, PATIENCE).toBeGreaterThan(50);
  });
});

test('default devices receive their own messages', async ({ browser }) => {
  await run(browser, 'both', async (context, name, gateway) => {
    const devices = await context.newPage();
    await devices.goto(url(`/gateway/${name}?device`));
    await devices.getByRole('button', { name: 'Start' }).click();
    await expect(devices.getByText('3 of 3 joined')).toBeVisible(PATIENCE);
    await expect.poll(async () => (await snapshot(devices)).received.length, PATIENCE).toBeGreaterThan(20);
    expect(await stats(gateway)).toMatchObject({ lost: 0, nowhere: 0 });
    await expect(gateway.getByText('has joined:')).toHaveCount(0);
  });
});

test('both pages name a missing receiver', async ({ browser }) => {
  await run(browser, 'forward', async (context, name, gateway) => {
    const arms = await startDevices(context, name, { name: 'arm' });
    await expect(gateway.getByText('No device named “hub” has joined:')).toBeVisible(PATIENCE);
    await expect(arms.getByText('No device named “hub” has joined the gateway')).toBeVisible(PATIENCE);
    expect(await violations(gateway, BEST)).toEqual([]);
    expect(await violations(arms, BEST)).toEqual([]);
    await startDevices(context, name, { name: 'hub', sends: 'nothing', to: '' });
    await expect(gateway.getByText('No device named “hub”')).toHaveCount(0, PATIENCE);
    await expect(arms.getByText('No device named “hub”')).toHaveCount(0, PATIENCE);
  });
});

test('loopback shows a notice, a network shows a code', async ({ page }) => {
  await page.goto(url(`/gateway/${uniqueName()}`));
  await expect(page.getByText('Other devices cannot open this address.')).toBeVisible();
  await expect(page.getByRole('img', { name: /^QR code/ })).toHaveCount(0);
  await page.route('**/v1/info', async (route) => {
    const info = (await (await route.fetch()).json()) as object;
    await route.fulfill({ json: { ...info, listen: ['http://127.0.0.1:8080', 'http://192.168.1.20:8080'] } });
  });
  await page.reload();
  await expect(page.getByRole('img', { name: /^QR code for http:\/\/192\.168\.1\.20:8080\/gateway\/.*\?device$/ })).toBeVisible();
  await expect(page.getByText('Other devices cannot open this address.')).toHaveCount(0);
});

test('a taken name and invalid offers are refused', async ({ browser }) => {
  await run(browser, 'forward', async (context, name, gateway) => {
    const first = await startDevices(context, name, { name: 'arm', sends: 'nothing', to: '' });
    const second = await context.newPage();
    await second.goto(url(`/gateway/${name}?device`));
    await second.getByLabel('Name').fill('arm');
    await second.getByLabel('Number of devices').fill('1');
    await second.getByLabel('What to send').selectOption('nothing');
    await second.getByRole('button', { name: 'Start' }).click();
    await expect(second.getByText('a device named “arm” has already joined; choose another name')).toBeVisible(PATIENCE);
    await first.getByRole('button', { name: 'Stop' }).click();
    await expect(second.getByText('1 of 1 joined')).toBeVisible(PATIENCE);
    const dropped = () => gateway.evaluate(() => window.gateway!.snapshot().dropped);
    const before = await dropped();
    const publish = (body: object) => gateway.request.post(url(`/v1/channels/gateways/${name}/offers`), { data: body });
    await publish({ hello: 1 });
    await publish({ id: 'somebody-1', name: 'x', offer: 'v=0' });
    await expect.poll(dropped, PATIENCE).toBe(before + 2);
    const answer = async () => (await gateway.request.get(url(`/v1/channels/gateways/${name}/answers/somebody-1?since=earliest`))).text();
    await expect.poll(answer, PATIENCE).toContain('"error":"bad_request"');
  });
});

/** Checks accessibility (axe), the size of touch targets, and that the page does not scroll sideways. */
async function check(page: Page, what: string, info: TestInfo): Promise<void> {
  expect(await violations(page, BEST), what).toEqual([]);
  const { sideways, small } = await page.evaluate(() => ({
    sideways: document.documentElement.scrollWidth - innerWidth,
    small: [...document.querySelectorAll<HTMLElement>('button, a[href], input, select, summary')]
      .map((element) => ({ box: element.getBoundingClientRect(), html: element.outerHTML.slice(0, 90) }))
      .filter(({ box }) => box.width < 44 || box.height < 44)
      .map(({ box, html }) => `${box.width} x ${box.height}: ${html}`),
  }));
  expect(sideways, `${what}: no sideways scrolling`).toBeLessThanOrEqual(0);
  expect(small, `${what}: touch targets are large enough`).toEqual([]);
  await page.screenshot({ path: info.outputPath(`${what}.png`), fullPage: true });
}

for (const { name: look, ...options } of LOOKS) {
  test(`gateway pages are accessible: ${look}`, async ({ browser }, info) => {
    const context = await browser.newContext(options);
    const page = await context.newPage();
    await page.goto(url('/gateway'));
    await expect(page.getByLabel('Gateway name')).toBeVisible();
    await check(page, 'choose', info);
    const name = uniqueName();
    await page.getByLabel('Gateway name').fill(name);
    await page.getByLabel('Mode').selectOption('multiplex');
    await page.getByLabel('Mode').focus();
    await page.keyboard.press('Tab');
    await expect(page.getByLabel('Bundle window, ms')).toBeFocused();
    await page.keyboard.press('Enter');
    await expect(page.getByText('Ready for devices')).toBeVisible(PATIENCE);
    await expect(page.getByRole('link', { name: new RegExp(`/gateway/${name}\\?device$`) })).toBeVisible();
    const devices = await startDevices(context, name, { count: 5, to: 'arm-1' });
    await expect.poll(async () => (await snapshot(devices)).received.length, PATIENCE).toBeGreaterThan(20);
    await check(devices, 'devices', info);
    await expect.poll(() => page.getByRole('img', { name: /^Gateway with 5 devices/ }).getAttribute('aria-label'), PATIENCE).toMatch(/arm-1 sends [34]\.\d, receives 1?\d?\d\.\d/);
    await check(page, 'gateway', info);
    await context.close();
  });
}

test('an invalid gateway name is refused', async ({ page }) => {
  await page.goto(url('/gateway/a%20b'));
  await expect(page.getByRole('alert')).toContainText('“a b” is not a valid gateway name.');
});
