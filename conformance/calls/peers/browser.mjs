// A browser as a participant of a room: browser.mjs chromium|firefox URL ROOM TOPOLOGY FOLDER
//
// Prints one line of JSON per second (see ../README.md) until SIGTERM. FOLDER receives the profile and the log of the
// browser, from which RTCP is counted.
import { mkdirSync, openSync, readSync, readdirSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { dumpReader } from '../rtcp.mjs';

const [name, url, room, topology, folder, size = '640x480'] = process.argv.slice(2);
const sdk = createRequire(new URL('../../../sdk/typescript/package.json', import.meta.url));
const puppeteer = sdk('puppeteer-core').default ?? sdk('puppeteer-core');
const { build } = sdk('esbuild');
const [width, height] = size.split('x').map(Number);
mkdirSync(folder, { recursive: true });

/** Returns a program that starts Chromium with its standard error in a file: only there, all processes log. */
function logged(chromium) {
  const program = join(folder, 'chromium.sh');
  writeFileSync(program, `#!/bin/sh\nexec '${chromium}' "$@" 2>'${join(folder, 'chromium.log')}'\n`, { mode: 0o755 });
  return program;
}

const BROWSERS = {
  chromium: () => ({
    browser: 'chrome',
    executablePath: logged(process.env.CHROMIUM ?? '/usr/bin/chromium'),
    pipe: true,
    args: [
      '--no-sandbox',
      '--disable-dev-shm-usage',
      '--disable-gpu',
      '--disable-features=WebRtcHideLocalIpsWithMdns',
      '--autoplay-policy=no-user-gesture-required',
      '--enable-logging=stderr',
      '--vmodule=srtp_session=1',
      '--force-fieldtrials=WebRTC-Debugging-RtpDump/Enabled/',
    ],
  }),
  firefox: () => ({
    browser: 'firefox',
    executablePath: process.env.FIREFOX ?? '/usr/bin/firefox-esr',
    env: { ...process.env, MOZ_LOG: 'timestamp,sync,RtpLogger:5', MOZ_LOG_FILE: join(folder, 'firefox'), MOZ_DISABLE_CONTENT_SANDBOX: '1' },
    extraPrefsFirefox: { 'media.autoplay.default': 0, 'media.peerconnection.ice.obfuscate_host_addresses': false },
  }),
};

/** Counts RTCP in all logs of the browser: Firefox has one per process. */
function logs() {
  const open = new Map();
  const reader = { sent: {}, received: {} };
  return () => {
    for (const file of readdirSync(folder).filter((file) => /\.(log|moz_log)$/.test(file))) {
      if (!open.has(file)) open.set(file, { file: openSync(join(folder, file)), at: 0, dump: dumpReader() });
      const log = open.get(file);
      const bytes = Buffer.alloc(1 << 20);
      for (let read; (read = readSync(log.file, bytes, 0, bytes.length, log.at)) > 0; log.at += read) log.dump.feed(bytes.toString('latin1', 0, read));
    }
    for (const direction of ['sent', 'received']) {
      reader[direction] = {};
      for (const { dump } of open.values())
        for (const [kind, n] of Object.entries(dump.counts[direction])) reader[direction][kind] = (reader[direction][kind] ?? 0) + n;
    }
    return reader;
  };
}

const { outputFiles } = await build({ entryPoints: [fileURLToPath(new URL('page.js', import.meta.url))], bundle: true, format: 'iife', target: 'es2022', write: false });
const browser = await puppeteer.launch({ headless: true, ...BROWSERS[name]() });
let stopping = false;
process.on('SIGTERM', async () => {
  stopping = true;
  await browser.close().catch(() => {});
  process.exit(0);
});
const version = (await browser.version()).replace(/^\D*/, '');
const page = await browser.newPage();
page.on('console', (message) => console.error(`${name}: ${message.text()}`));
await page.goto(`${url}/healthz`);
await page.evaluate(outputFiles[0].text);
await page.evaluate((...all) => window.start(...all), room, topology, { width, height, fps: 15 });
const rtcp = logs();
for (;;) {
  const read = await page.evaluate(() => window.read()).catch((error) => {
    if (!stopping) throw error;
  });
  if (stopping) break;
  const { sent, received } = rtcp();
  console.log(JSON.stringify({ at: Date.now(), version, ...read, rtcp_sent: sent, rtcp_received: received }));
  await new Promise((resolve) => setTimeout(resolve, 1000));
}
