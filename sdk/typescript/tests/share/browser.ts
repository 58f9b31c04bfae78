// Three tabs of one real browser that share a connection, and the means to kill and to freeze one.
import { readdirSync, readFileSync } from 'node:fs';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { build } from 'esbuild';
import puppeteer, { type Browser, type Page } from 'puppeteer-core';
import type { SharedStats } from '../../src/share/index.js';
import { launchFirefox } from '../firefox.js';

/** Events and publications that a page has recorded. */
export interface Recorded {
  /** Data of all events of the watched channel. */
  readonly got: number[];
  /** Positions of the page's own publications, in the order of the calls, and the errors. */
  readonly published: string[];
  readonly errors: string[];
  readonly gaps: number;
}

const SCRIPT = `
import { shared } from './src/share/index.ts';
import { latency } from './src/latency.ts';
const page = (globalThis.tab = { got: [], published: [], errors: [] });
page.open = (url, options) => (page.mr = shared(url, options));
page.watch = async (channel, from) => {
  page.subscription = page.mr.subscribe(channel, from && { from });
  page.subscription.on(({ data }) => page.got.push(data), (cause) => page.errors.push('ended: ' + cause));
  await page.subscription.ready;
};
// A timer of a hidden page would fire once per second.
page.echo = (channel) => page.subscription.on(({ data }) => {
  if (data % 4 === 0) page.mr.publish(channel, data).then(({ position }) => page.published.push(position), (error) => page.errors.push(String(error)));
});
page.recorded = () => ({ got: page.got, published: page.published, errors: page.errors, gaps: page.subscription?.gaps });
page.busy = (ms) => { for (const end = performance.now() + ms; performance.now() < end; ); };
page.latency = latency;
`;

/** Serves one page on a loopback origin, which is a secure context. */
export async function servePage(): Promise<{ readonly url: string; readonly server: Server }> {
  const { outputFiles } = await build({
    stdin: { contents: SCRIPT, resolveDir: new URL('../..', import.meta.url).pathname, loader: 'ts' },
    bundle: true, format: 'esm', target: 'es2022', write: false, logLevel: 'error',
  });
  const server = createServer((request, response) => {
    const isScript = request.url === '/page.js';
    response.setHeader('Content-Type', isScript ? 'text/javascript' : 'text/html');
    response.end(isScript ? outputFiles[0]!.text : '<!doctype html><title>tab</title><script type="module" src="/page.js"></script>');
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  return { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}/`, server };
}

export const launchChromium = (): Promise<Browser> =>
  puppeteer.launch({ executablePath: process.env['CHROMIUM'] ?? '/usr/bin/chromium', headless: true, args: ['--no-sandbox'] });

/** Each tab gets a process of its own, so that one can be killed. */
export const launchFirefoxTabs = (): Promise<Browser> => launchFirefox({ 'dom.ipc.processCount.webIsolated': 8, 'dom.ipc.keepProcessesAlive.webIsolated.max': 0 });

export async function openTab(browser: Browser, url: string, server: string, options = {}): Promise<Page> {
  const page = await browser.newPage();
  await page.goto(url);
  await page.waitForFunction('globalThis.tab');
  await page.evaluate(`tab.open(${JSON.stringify(server)}, ${JSON.stringify(options)}) && 0`);
  return page;
}

export const statsOf = (page: Page): Promise<SharedStats & { readonly state: string }> =>
  page.evaluate('({ ...tab.mr.stats(), state: tab.mr.state.name })') as Promise<SharedStats & { readonly state: string }>;

export const recordedOf = (page: Page): Promise<Recorded> => page.evaluate('tab.recorded()') as Promise<Recorded>;

/** Ids of the browser's process and all its descendants. */
function descendants(root: number): number[] {
  const parents = new Map<number, number>();
  for (const name of readdirSync('/proc')) {
    if (!/^\d+$/.test(name)) continue;
    try {
      parents.set(+name, +readFileSync(`/proc/${name}/stat`, 'utf8').split(') ').at(-1)!.split(' ')[1]!);
    } catch {
      // The process has ended.
    }
  }
  const found = [root];
  for (const each of found) for (const [pid, parent] of parents) if (parent === each) found.push(pid);
  return found;
}

/** CPU time of a process, in ticks of 10 ms. */
function cpu(pid: number): number {
  try {
    const fields = readFileSync(`/proc/${pid}/stat`, 'utf8').split(') ').at(-1)!.split(' ');
    return +fields[11]! + +fields[12]!;
  } catch {
    return 0;
  }
}

/** Returns the id of the process that runs the scripts of a page: the one that works while the page is busy. */
export async function pidOf(browser: Browser, page: Page): Promise<number> {
  const pids = descendants(browser.process()!.pid!);
  const before = new Map(pids.map((pid) => [pid, cpu(pid)]));
  await page.evaluate('tab.busy(500)');
  const [best] = pids.map((pid) => [cpu(pid) - before.get(pid)!, pid] as const).sort(([a], [b]) => b - a);
  return best![1];
}
