import { defineBrowserProvider } from '@vitest/browser';
import type { BrowserProvider, BrowserProviderOption } from 'vitest/node';
import { launchFirefox, type Browser } from '../firefox.js';

/** Lets vitest run tests in Firefox. Its Playwright provider requires a patched Firefox that Debian does not have. */
export const firefox = (): BrowserProviderOption =>
  defineBrowserProvider({ name: 'puppeteer', supportedBrowser: ['firefox'], providerFactory: () => new Provider() });

class Provider implements BrowserProvider {
  readonly name = 'puppeteer';
  readonly supportsParallelism = false;
  private browser: Promise<Browser> | undefined;

  getCommandsContext(): Record<string, unknown> {
    return {};
  }

  async openPage(_: string, url: string): Promise<void> {
    this.browser ??= launchFirefox();
    const page = await (await this.browser).newPage();
    await page.goto(url, { timeout: 0 });
  }

  async close(): Promise<void> {
    await (await this.browser)?.close();
  }
}
