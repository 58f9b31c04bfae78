import { playwright } from '@vitest/browser-playwright';
import { defineConfig, type TestProjectInlineConfiguration } from 'vitest/config';
import type { BrowserProviderOption } from 'vitest/node';
import { firefox } from './tests/browser/firefox.js';
import { missing } from './tests/firefox.js';

/** The tests of a real browser, in a page and in a worker. */
const inBrowser = (browser: 'chromium' | 'firefox', groupOrder: number, provider: BrowserProviderOption): TestProjectInlineConfiguration => ({
  extends: true,
  test: {
    name: browser,
    sequence: { groupOrder },
    include: browser === 'firefox' && missing ? [] : ['tests/browser/*.test.ts'],
    globalSetup: ['tests/browser/setup.ts'],
    testTimeout: 20_000,
    browser: { enabled: true, headless: true, screenshotFailures: false, api: { host: '127.0.0.1' }, provider, instances: [{ browser }] },
  },
});

// Three projects, one after the other, because two browsers that start at the same time are slow to start: Node,
// Chromium and Firefox. CHROMIUM and FIREFOX name other browsers than Debian's.
export default defineConfig({
  test: {
    fileParallelism: false,
    // A test that fails and then passes is flaky, not red; the second reporter names it.
    retry: 1,
    reporters: ['default', './tests/flaky.ts'],
    projects: [
      {
        extends: true,
        test: { name: 'node', environment: 'node', include: ['tests/*.test.ts', 'tests/share/*.test.ts'], testTimeout: 20_000, hookTimeout: 20_000 },
      },
      {
        extends: true,
        // Applications that Vite builds, in both browsers.
        test: { name: 'apps', environment: 'node', include: ['tests/apps/*.test.ts'], testTimeout: 20_000, hookTimeout: 20_000, sequence: { groupOrder: 3 } },
      },
      inBrowser('chromium', 1, playwright({ launchOptions: { executablePath: process.env['CHROMIUM'] ?? '/usr/bin/chromium', args: ['--no-sandbox'] } })),
      inBrowser('firefox', 2, firefox()),
    ],
  },
});
