// Fixtures of the page tests in Firefox. Playwright's runner runs the tests; puppeteer-core drives Debian's Firefox
// over WebDriver BiDi, because Playwright needs a Firefox of its own.
import { expect, test as base } from '@playwright/test';
import { launchFirefox, missing, udpHost, type Browser, type BrowserContext, type Page } from '../../../sdk/typescript/tests/firefox.ts';
import { serve, simulate } from '../server.ts';

export { udpHost, type Page } from '../../../sdk/typescript/tests/firefox.ts';

export const SCHEMES = ['light', 'dark'] as const;
type Scheme = (typeof SCHEMES)[number];

/**
 * Firefox logs one of these messages, as a console message or as an error of the page, also when a page closes a
 * WebSocket that is not open yet. The client does so if another transport connects first, as on a busy machine.
 */
const ABANDONED = /^(Firefox can’t establish a connection to the server at wss?:|The connection to wss?:\S+ was interrupted)/;

/** Preferences of Firefox. Most of them correspond to the flags of Chromium (../camera.ts). */
const preferences = (scheme: Scheme): Record<string, unknown> => ({
  'layout.css.prefers-color-scheme.content-override': SCHEMES.indexOf(scheme) === 0 ? 1 : 0,
  // A camera and a microphone without a device, a question or a click.
  'media.navigator.streams.fake': true,
  'media.navigator.permission.disabled': true,
  'media.autoplay.default': 0,
  // Addresses instead of mDNS names: no test depends on multicast.
  'media.peerconnection.ice.obfuscate_host_addresses': false,
});

interface Fixtures {
  /** Firefox follows this color scheme. */
  scheme: Scheme;
  /** Whether the test expects the page to log errors, for example because the test stops the server. */
  mayComplain: boolean;
  /** Opens a tab. All tabs of a test share a profile that no other test sees. `at`: path on the server. */
  open(at: string, prepare?: (page: Page) => Promise<unknown>): Promise<Page>;
}

interface WorkerFixtures {
  /** URL of a server with six simulated cars. Its UDP port is not on loopback, where Firefox does not connect to it. */
  server: string;
  firefox(scheme: Scheme): Promise<Browser>;
}

/** Settings of a server that Firefox can connect to by WebRTC. */
export const reachable = (): string[] =>
  udpHost ? [`rtc.listen="${udpHost}:0"`, `turn.listen="${udpHost}:0"`, `turn.peers_allowed=["${udpHost}/32"]`].flatMap((setting) => ['--set', setting]) : [];

export const test = base.extend<Fixtures, WorkerFixtures>({
  server: [
    async ({}, use) => {
      const server = await serve(undefined, reachable());
      const fleet = simulate(server.url);
      await use(server.url);
      await fleet.stop();
      await server.stop();
    },
    { scope: 'worker' },
  ],
  firefox: [
    async ({}, use) => {
      const browsers = new Map<Scheme, Promise<Browser>>();
      await use((scheme) => {
        if (!browsers.has(scheme)) browsers.set(scheme, launchFirefox(preferences(scheme)));
        return browsers.get(scheme)!;
      });
      for (const browser of browsers.values()) await (await browser).close();
    },
    { scope: 'worker' },
  ],
  scheme: ['light', { option: true }],
  mayComplain: [false, { option: true }],
  open: async ({ server, firefox, scheme, mayComplain }, use, info) => {
    const log: string[] = [];
    const complaints: string[] = [];
    const strangers: string[] = [];
    const complain = (text: string): void => void (ABANDONED.test(text) || complaints.push(text));
    let context: BrowserContext | undefined;
    await use(async (at, prepare) => {
      context ??= await (await firefox(scheme)).createBrowserContext();
      const page = await context.newPage();
      page.on('console', (message) => {
        log.push(`${message.type()}: ${message.text()}`);
        if (message.type() === 'error') complain(message.text());
      });
      page.on('pageerror', (error) => {
        const text = error instanceof Error ? error.message : String(error);
        log.push(`uncaught: ${text}`);
        complain(text);
      });
      page.on('request', (request) => {
        const { protocol, hostname } = new URL(request.url());
        if (/^(https?|wss?):$/.test(protocol) && hostname !== new URL(server).hostname) strangers.push(request.url());
      });
      await page.setViewport({ width: 1280, height: 800 });
      await prepare?.(page);
      await page.goto(new URL(at, server).href);
      return page;
    });
    await context?.close();
    if (!mayComplain) expect.soft(complaints, 'console errors').toEqual([]);
    expect.soft(strangers, 'requests to other machines').toEqual([]);
    if (info.errors.length > 0) console.log(['Console of the pages:', ...log].join('\n  '));
  },
});

test.skip(!!missing, missing);

/** Skips a test with WebRTC between Firefox and the server if Firefox cannot connect. */
export const needsUdp = (): void => test.skip(!udpHost, 'skipped: Firefox opens no data channel to a loopback address, and this machine has no other IPv4 address');

/** Clicks an element as soon as it is there and can be clicked. */
export const click = (page: Page, selector: string): Promise<void> => page.locator(selector).setTimeout(20_000).click();

/** Returns the text of the first element of this selector, or an empty text. */
export const textOf = (page: Page, selector: string): Promise<string> => page.evaluate((selector) => document.querySelector(selector)?.textContent ?? '', selector);

/** Returns whether an element of this selector is visible. */
export const isVisible = (page: Page, selector: string): Promise<boolean> =>
  page.evaluate((selector) => document.querySelector(selector)?.checkVisibility({ visibilityProperty: true }) ?? false, selector);
