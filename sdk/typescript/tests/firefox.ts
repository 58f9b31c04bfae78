// Starts Firefox through puppeteer-core over WebDriver BiDi. The tests of the pages start Firefox from here, too.
import { existsSync } from 'node:fs';
import { networkInterfaces } from 'node:os';
import puppeteer, { type Browser } from 'puppeteer-core';

export type { Browser, BrowserContext, ConsoleMessage, ElementHandle, HTTPRequest, Page } from 'puppeteer-core';

const executablePath = process.env['FIREFOX'] ?? '/usr/bin/firefox-esr';

/** Why the tests in Firefox cannot run on this machine, if they cannot. */
export const missing =
  process.env['FIREFOX'] === undefined && !existsSync(executablePath)
    ? 'skipped: firefox-esr is not installed, so no test ran in Firefox (scripts/setup.sh installs it)'
    : undefined;

/** Starts Firefox without a window, with a new profile and a free port. The caller must close the browser. */
export const launchFirefox = (preferences: Record<string, unknown> = {}): Promise<Browser> =>
  puppeteer.launch({
    browser: 'firefox',
    executablePath,
    headless: true,
    // Without a display, Firefox finds WebGL only in Mesa's EGL.
    env: { ...process.env, MOZ_WEBGL_FORCE_EGL: '1' },
    extraPrefsFirefox: { 'webgl.force-enabled': true, ...preferences },
  });

/**
 * Firefox never connects its data channels to a loopback address. This is the address at which the server must receive
 * UDP instead; `undefined` if this machine has no network.
 */
export const udpHost = Object.values(networkInterfaces()).flat().find((one) => one && !one.internal && one.family === 'IPv4')?.address;
