// One connection for three tabs of a real browser. A publisher sends 200 messages per second; the leading tab is
// closed, killed, frozen or busy, and another must lead within 2 s, without loss or duplicates.
import type { Server } from 'node:http';
import type { Browser, Page } from 'puppeteer-core';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test, vi } from 'vitest';
import { millrace, type Client } from '../../src/index.js';
import { missing } from '../firefox.js';
import { startMillrace, type RunningServer } from '../millrace.js';
import { launchChromium, launchFirefoxTabs, openTab, pidOf, recordedOf, servePage, statsOf } from './browser.js';

const LEADS_WITHIN = 2_000;
const PER_SECOND = 200;

interface Stage {
  readonly browser: Browser;
  readonly pages: Page[];
  readonly leader: Page;
  readonly followers: Page[];
}

let server: RunningServer;
let rounds = 0;
let site: { readonly url: string; readonly server: Server };
beforeAll(async () => {
  server = await startMillrace();
  site = await servePage();
});
afterAll(async () => {
  site.server.close();
  await server.stop();
});

const soon = (assertion: () => unknown, timeout = 8_000): Promise<void> => vi.waitFor(async () => void (await assertion()), { timeout, interval: 25 });

/** Open WebSocket sessions, by the server's count. */
async function connections(): Promise<number> {
  const text = await (await fetch(`${server.url}/metrics`)).text();
  return [...text.matchAll(/^millrace_connections\{[^}]*transport="websocket[^}]*\} (\d+)/gm)].reduce((sum, [, count]) => sum + +count!, 0);
}

/** Returns the tab that leads with an open connection. */
async function leaderOf(pages: readonly Page[]): Promise<Page | undefined> {
  const all = await Promise.all(pages.map(async (page) => ({ page, stats: await statsOf(page) })));
  return all.find(({ stats }) => stats.share.role === 'leader' && stats.state === 'open')?.page;
}

const browsers = [
  { name: 'chromium', launch: launchChromium, skip: false },
  { name: 'firefox', launch: launchFirefoxTabs, skip: missing !== undefined },
] as const;

describe.each(browsers)('$name', ({ name, launch, skip }) => {
  if (skip) return void test.skip(missing!);
  let browser: Browser;
  let publisher: Client;
  let round = '';
  beforeEach(async () => {
    browser = await launch();
    publisher = millrace(server.url, { transports: ['http-stream'] });
    round = `${name}/${++rounds}`;
  }, 60_000);
  afterEach(async () => {
    await publisher.close();
    await browser.close();
    await soon(async () => expect(await connections()).toBe(0));
  });

  async function stage(): Promise<Stage> {
    const pages = [];
    for (let n = 0; n < 3; n++) {
      const page = await openTab(browser, site.url, server.url);
      await page.evaluate(`tab.watch('ticks/${round}').then(() => 0)`);
      pages.push(page);
    }
    const leader = (await leaderOf(pages))!;
    expect(leader).toBeDefined();
    expect(await connections()).toBe(1);
    for (const page of pages) expect(await statsOf(page)).toMatchObject({ state: 'open', transport: 'websocket', share: { tabs: 3 } });
    return { browser, pages, leader, followers: pages.filter((page) => page !== leader) };
  }

  /** Publishes while `act` runs and until another tab leads. Returns the time until then, ms. */
  async function takeover({ leader, followers }: Stage, act: () => Promise<unknown>, after?: () => Promise<unknown>): Promise<number> {
    const channel = `ticks/${round}`;
    for (const [n, page] of followers.entries()) await page.evaluate(`tab.echo('own/${round}/${n}') && 0`);
    // Browsers limit the timers of hidden pages to one per second, so one follower is visible.
    await followers[0]!.bringToFront();
    const sent: Promise<unknown>[] = [];
    const timer = setInterval(() => sent.push(publisher.publish(channel, sent.length)), 1000 / PER_SECOND);
    try {
      await soon(() => expect(sent.length).toBeGreaterThan(100));
      const start = performance.now();
      await act();
      await soon(async () => expect(await leaderOf(followers)).toBeDefined());
      const took = performance.now() - start;
      const more = sent.length + 100;
      await soon(() => expect(sent.length).toBeGreaterThan(more));
      await after?.();
      return took;
    } finally {
      clearInterval(timer);
      await Promise.all(sent);
      await whole(followers, sent.length);
      if (after) await whole([leader], sent.length);
      await ownPublications(followers, sent.length);
    }
  }

  /** Every tab has received every number once and in order. */
  async function whole(pages: readonly Page[], count: number): Promise<void> {
    for (const page of pages) {
      await soon(async () => expect((await recordedOf(page)).got.length).toBeGreaterThanOrEqual(count));
      const { got, errors, gaps } = await recordedOf(page);
      expect(errors).toEqual([]);
      expect(gaps).toBe(0);
      expect(got).toEqual(Array.from({ length: count }, (_, n) => n));
    }
  }

  /** Every publication of a follower was acknowledged, in order, and exists once. */
  async function ownPublications(followers: readonly Page[], ticks: number): Promise<void> {
    const all = Array.from({ length: Math.ceil((ticks) / 4) }, (_, n) => n * 4);
    for (const [n, page] of followers.entries()) {
      await soon(async () => expect((await recordedOf(page)).published.length).toBe(all.length));
      const stored = await publisher.history(`own/${round}/${n}`, { limit: 1000 });
      expect(stored.map(({ data }) => data)).toEqual(all);
      expect(stored.map(({ position }) => position)).toEqual((await recordedOf(page)).published);
    }
  }

  test('the leader is closed', async () => {
    const all = await stage();
    const took = await takeover(all, () => all.leader.close());
    console.info(`${name}: closed: another tab led after ${Math.round(took)} ms`);
    expect(took).toBeLessThan(LEADS_WITHIN);
    expect(await connections()).toBe(1);
  }, 60_000);

  test('the process of the leader is killed', async () => {
    const all = await stage();
    const pid = await pidOf(all.browser, all.leader);
    for (const page of all.followers) expect(await pidOf(all.browser, page)).not.toBe(pid);
    const took = await takeover(all, async () => process.kill(pid, 'SIGKILL'));
    console.info(`${name}: killed: another tab led after ${Math.round(took)} ms`);
    expect(took).toBeLessThan(LEADS_WITHIN);
    await soon(async () => expect(await connections()).toBe(1));
  }, 60_000);

  test('the process of the leader stands still and continues', async () => {
    const all = await stage();
    const pid = await pidOf(all.browser, all.leader);
    const took = await takeover(all, async () => process.kill(pid, 'SIGSTOP'), async () => process.kill(pid, 'SIGCONT'));
    console.info(`${name}: stopped: another tab led after ${Math.round(took)} ms`);
    expect(took).toBeLessThan(LEADS_WITHIN);
    await soon(async () => expect(await connections()).toBe(1));
    expect((await statsOf(all.leader)).share.role).toBe('follower');
  }, 60_000);

  test('the leader is busy for 4 s', async () => {
    const all = await stage();
    const took = await takeover(all, async () => void all.leader.evaluate('tab.busy(4000)'), () => all.leader.evaluate('0'));
    console.info(`${name}: busy: another tab led after ${Math.round(took)} ms`);
    expect(took).toBeLessThan(LEADS_WITHIN);
    await soon(async () => expect(await connections()).toBe(1));
    await soon(async () => expect((await statsOf(all.leader)).share.role).toBe('follower'));
  }, 60_000);

  test.runIf(name === 'chromium')('the leader is frozen by the browser and continues', async () => {
    const all = await stage();
    const session = await all.leader.createCDPSession();
    const freeze = (state: 'frozen' | 'active'): Promise<void> => session.send('Page.setWebLifecycleState', { state });
    const took = await takeover(all, () => freeze('frozen'), () => freeze('active'));
    console.info(`${name}: frozen: another tab led after ${Math.round(took)} ms`);
    expect(took).toBeLessThan(LEADS_WITHIN);
    await soon(async () => expect(await connections()).toBe(1));
    await soon(async () => expect((await statsOf(all.leader)).share.role).toBe('follower'));
  }, 60_000);
});
