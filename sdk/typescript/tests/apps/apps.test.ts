// The bindings in applications that Vite has built, in Chromium and Firefox, against the real server.
import { mkdtemp, rm } from 'node:fs/promises';
import { createServer as createHttpServer } from 'node:http';
import { createServer as createTcpServer, type AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import puppeteer, { type Browser, type Page } from 'puppeteer-core';
import { createServer } from 'vite';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { WebSocket as NodeWebSocket } from 'ws';
import { millrace, type Client } from '../../src/index.js';
import { until } from '../faulty-server.js';
import { launchFirefox, missing } from '../firefox.js';
import { startMillrace, type RunningServer } from '../millrace.js';
import { APPS, buildAll, rootOf } from './built.js';

const SETTINGS = ['namespaces.fleet.state=true', 'namespaces.chat.roster=true', 'namespaces.chat.roster_grace=0s'];
/** Messages per second and in total of the flood. */
const RATE = 1000;
const FLOOD = 1000;
let built: Awaited<ReturnType<typeof buildAll>>;
/** Contains the database of the server. */
let data: string;
let server: RunningServer;
let publisher: Client;

const start = (listen?: string): Promise<RunningServer> => startMillrace([...SETTINGS, `engine.url=sqlite:${data}/data.db`], listen);

beforeAll(async () => {
  data = await mkdtemp(`${tmpdir()}/millrace-data-`);
  [built, server] = await Promise.all([buildAll(), start()]);
  publisher = millrace(server.url, { WebSocket: NodeWebSocket, retry: { max: 50 } });
}, 60_000);
afterAll(async () => {
  await publisher?.close();
  await Promise.all([built?.stop(), server?.stop()]);
  await rm(data, { recursive: true, force: true });
});

const launchers = {
  Chromium: () => puppeteer.launch({ browser: 'chrome', executablePath: process.env['CHROMIUM'] ?? '/usr/bin/chromium', headless: true, args: ['--no-sandbox'] }),
  Firefox: () => launchFirefox(),
};

describe.each(Object.entries(launchers))('%s', (browserName, launch) => {
  const inBrowser = test.skipIf(browserName === 'Firefox' && missing !== undefined);
  let browser: Browser | undefined;
  let page: Page;
  let errors: string[];

  beforeAll(async () => {
    if (browserName === 'Chromium' || !missing) browser = await launch();
  });
  afterAll(() => browser?.close());
  beforeEach(async () => {
    if (!browser) return;
    page = await browser.newPage();
    errors = [];
    page.on('pageerror', (error) => errors.push(String(error)));
    page.on('console', (message) => {
      // The browser reports each connection to the stopped server.
      if (/error|warn/.test(message.type()) && !/connect|ERR_|ECONN/i.test(message.text())) errors.push(message.text());
    });
    // Records the commands that the page sends.
    await page.evaluateOnNewDocument(() => {
      const { send } = WebSocket.prototype;
      const sent: string[] = ((globalThis as unknown as { sent: string[] }).sent = []);
      WebSocket.prototype.send = function (data: string) {
        sent.push(data);
        return send.call(this, data);
      };
    });
  });
  afterEach(async () => {
    await page?.close();
    expect(errors).toEqual([]);
  });

  const open = async (name: string): Promise<void> => void (await page.goto(`${built.urls.get(name)}?server=${server.url}`));
  const textOf = (selector: string): Promise<string> => page.evaluate((selector) => document.querySelector(selector)?.textContent?.trim() ?? 'absent', selector);
  const textsOf = (selector: string): Promise<string[]> => page.evaluate((selector) => [...document.querySelectorAll(selector)].map((one) => one.textContent!.trim()), selector);
  /** Waits until the elements have these texts. */
  const lists = async (selector: string, wanted: readonly string[]): Promise<void> => {
    const isShown = (selector: string, wanted: string): boolean => JSON.stringify([...document.querySelectorAll(selector)].map((one) => one.textContent!.trim())) === wanted;
    try {
      await page.waitForFunction(isShown, { polling: 20, timeout: 8000 }, selector, JSON.stringify(wanted));
    } catch {
      expect(await textsOf(selector), selector).toEqual(wanted);
    }
  };
  const shows = (selector: string, wanted: string): Promise<void> => lists(selector, [wanted]);
  const click = (selector: string): Promise<void> => page.evaluate((selector) => document.querySelector<HTMLButtonElement>(selector)!.click(), selector);
  /** The commands of this name for this channel that the page has sent. */
  const sent = async (name: string, channel: string): Promise<number> =>
    (await page.evaluate(() => (globalThis as unknown as { sent: string[] }).sent)).filter((command) => command.includes(`"${name}"`) && command.includes(`"${channel}"`)).length;

  describe.each(APPS)('$name', ({ name, folder, nodeEnv }) => {
    inBrowser('components share one subscription, and follow their properties', async () => {
      await publisher.publish('cars/1/telemetry', { speed: 50 });
      await publisher.publish('cars/2/telemetry', { speed: 80 });
      await open(name);
      await lists('.car', Array(3).fill('1: 50 km/h'));
      expect(await textOf('#connection')).toBe('open');
      expect(await textOf('#transport')).toBe('websocket');
      await shows('#refused', 'rejected, open');
      expect(await sent('subscribe', 'cars/1/telemetry')).toBe(1);
      expect(await sent('history', 'cars/1/telemetry')).toBe(1);
      expect(await sent('unsubscribe', 'cars/1/telemetry')).toBe(0);
      await publisher.publish('cars/1/telemetry', { speed: 51 });
      await lists('.car', Array(3).fill('1: 51 km/h'));
      await click('#next');
      await lists('.car', Array(3).fill('2: 80 km/h'));
      await until(async () => (await sent('unsubscribe', 'cars/1/telemetry')) === 1, 'the end of the first subscription');
      expect(await sent('subscribe', 'cars/2/telemetry')).toBe(1);
      await click('#toggle');
      await until(async () => (await sent('unsubscribe', 'cars/2/telemetry')) === 1, 'the end of the subscription');
      expect(await textsOf('.car')).toEqual([]);
      await until(async () => (await sent('unsubscribe', 'chat/kitchen/:members')) === 1, 'the end of the roster');
      await click('#toggle');
      await lists('.car', Array(3).fill('2: 80 km/h'));
      expect(await sent('subscribe', 'cars/2/telemetry')).toBe(2);
      // Three components read the newest message with one request, also those that React has mounted twice.
      expect(await sent('history', 'cars/2/telemetry')).toBe(2);
    });

    inBrowser('a keyed state, a roster, publishing and its errors', async () => {
      const other = millrace(server.url, { WebSocket: NodeWebSocket });
      await other.subscribe('chat/kitchen').ready;
      await open(name);
      await shows('#fleet-status', '0 entries');
      await publisher.publish('fleet', { speed: 7 }, { key: 'car-7' });
      await lists('#fleet li', ['car-7 7']);
      for (const speed of [1, 2]) {
        await click('#set');
        await lists('#fleet li', ['car-7 7', `mine ${speed}`]);
      }
      await click('#delete');
      await shows('#fleet-status', '1 entries');
      await click('#publish');
      await shows('#chat', 'hello');
      await shows('#publishing', '0 pending');
      await click('#too-large');
      await shows('#publishing', '0 pending too_large');
      await click('#publish');
      await shows('#publishing', '0 pending');
      await fetch(`${server.url}/v1/channels/fleet?key=car-7`, { method: 'DELETE' });
      await shows('#fleet-status', '0 entries');
      await shows('#members', '2 members, 2 connections');
      await other.close();
    });

    if (nodeEnv === 'production' && browserName === 'Chromium') {
      inBrowser('the page of a server is hydrated without a difference', async () => {
        const html = await rendered(folder);
        const target = built.urls.get(name)!;
        const relay = createHttpServer(async ({ url }, response) => {
          const answer = await fetch(new URL(url!, target));
          response.setHeader('Content-Type', answer.headers.get('Content-Type')!);
          response.end((await answer.text()).replace('<div id="app"></div>', () => `<div id="app">${html}</div>`));
        });
        await new Promise<void>((resolve) => relay.listen(0, '127.0.0.1', resolve));
        try {
          await page.goto(`http://127.0.0.1:${(relay.address() as AddressInfo).port}/?server=${server.url}`);
          await shows('#refused', 'rejected, open');
          await shows('#fleet-status', '0 entries');
          await click('#click');
          await shows('#click', '1');
        } finally {
          relay.close();
          relay.closeAllConnections();
        }
      });
    }

    // One of the two builds for development is enough for tests that take seconds.
    if (name === 'React 19, development') return;

    inBrowser('after a restart of the server, nothing is lost', async () => {
      await open(name);
      await shows('#feed-status', '0 received, 0 gaps');
      await page.evaluate(() => {
        const seen: string[] = ((globalThis as unknown as { seen: string[] }).seen = []);
        const target = document.querySelector('#connection')!;
        new MutationObserver(() => seen.push(target.textContent!.trim())).observe(target, { childList: true, characterData: true, subtree: true });
      });
      const numbers = Array.from({ length: 40 }, (_, n) => n);
      for (const n of numbers.slice(0, 20)) await publisher.publish('feed', { n });
      await lists('#feed li', numbers.slice(0, 20).map(String));
      const { host } = new URL(server.url);
      await server.kill();
      await shows('#connection', 'reconnecting');
      server = await start(host);
      for (const n of numbers.slice(20)) await publisher.publish('feed', { n });
      await shows('#connection', 'open');
      await shows('#feed-status', '40 received, 0 gaps');
      expect(await textsOf('#feed li')).toEqual(numbers.map(String));
      expect(await page.evaluate(() => (globalThis as unknown as { seen: string[] }).seen)).toEqual(['reconnecting', 'open']);
    });

    inBrowser('a list of 1,000 messages per second stays responsive', async () => {
      await open(name);
      await shows('#feed-status', '0 received, 0 gaps');
      await page.evaluate(() => {
        (globalThis as unknown as { renders: number }).renders = 0;
        const frames: number[] = ((globalThis as unknown as { frames: number[] }).frames = []);
        let last = performance.now();
        const next = (now: number): void => {
          frames.push(now - last);
          last = now;
          requestAnimationFrame(next);
        };
        requestAnimationFrame(next);
      });
      const began = performance.now();
      const all: Promise<unknown>[] = [];
      const flooded = until(() => {
        const due = Math.min(FLOOD, Math.floor(((performance.now() - began) * RATE) / 1000));
        while (all.length < due) all.push(publisher.publish('feed', { n: all.length }));
        return all.length === FLOOD;
      }, 'the end of the flood');
      await shows('#click', '0');
      await click('#click');
      await shows('#click', '1');
      await flooded;
      await Promise.all(all);
      await shows('#feed-status', `${FLOOD} received, 0 gaps`);
      expect(await textsOf('#feed li')).toEqual(Array.from({ length: 100 }, (_, n) => String(FLOOD - 100 + n)));
      const { frames, rendered } = await page.evaluate(() => ({ frames: (globalThis as unknown as { frames: number[] }).frames, rendered: (globalThis as unknown as { renders: number }).renders }));
      // React renders every component of a StrictMode twice, if it was built for development.
      expect(rendered).toBeLessThan((name.includes('development') ? 2 : 1) * frames.length + 10);
      expect(rendered).toBeGreaterThan(10);
      const sorted = frames.sort((a, b) => a - b);
      expect(sorted[Math.floor(sorted.length * 0.9)]).toBeLessThan(100);
    });
  });
});

/** Renders each application on a server, once. */
const pages = new Map<string, Promise<string>>();
function rendered(folder: string): Promise<string> {
  const page = pages.get(folder) ?? renderOnServer(folder);
  pages.set(folder, page);
  return page;
}

async function renderOnServer(folder: string): Promise<string> {
  let connections = 0;
  const idle = createTcpServer((socket) => {
    connections++;
    socket.destroy();
  });
  await new Promise<void>((resolve) => idle.listen(0, '127.0.0.1', resolve));
  const vite = await createServer({ root: rootOf(folder), appType: 'custom', logLevel: 'error', server: { middlewareMode: true, ws: false } });
  try {
    const { render } = await vite.ssrLoadModule(`/server.${folder === 'react' ? 'tsx' : 'ts'}`);
    const html: string = await render(`http://127.0.0.1:${(idle.address() as AddressInfo).port}`);
    // A connection would be opened in the next turns of the event loop.
    await fetch(built.urls.values().next().value!);
    expect(connections).toBe(0);
    return html;
  } finally {
    await vite.close();
    idle.close();
  }
}

test.each(['react', 'svelte', 'vue'])('%s: a server renders the page and does not connect', async (folder) => {
  const html = (await rendered(folder)).replace(/<!--.*?-->/g, '');
  expect(html).toContain('<p id="connection">idle</p>');
  expect(html).toContain('1: no message yet');
  expect(html).toMatch(/<p id="feed-status">reading *<\/p>/);
  expect(html).toContain('0 members, 0 connections');
});
