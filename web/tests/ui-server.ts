// Servers and clients for the tests of the operator pages: keys, streams, slow readers and publishers.
import { execFileSync } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { mkdtempSync, rmSync } from 'node:fs';
import { request, type ClientRequest } from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { Readable } from 'node:stream';
import { expect, type Page, type TestInfo } from '@playwright/test';
import { BEST, LOOKS, violations } from './page.ts';
import { binary } from './server.ts';

/** A key for the tokens of a server. */
export interface Keys {
  /** Flags of a server that accepts the tokens. */
  readonly args: string[];
  /** Creates a token. `flags`: those of `millrace token create`. */
  token(...flags: string[]): string;
  remove(): void;
}

export function keys(): Keys {
  const home = mkdtempSync(join(tmpdir(), 'millrace-ui-'));
  const file = join(home, 'millrace.key');
  execFileSync(binary(), ['token', 'key', '--out', file]);
  return {
    args: ['--set', `auth.keys=["${file}.pub"]`],
    token: (...flags) => execFileSync(binary(), ['token', 'create', '--key', file, ...flags], { encoding: 'utf8' }).trim(),
    remove: () => rmSync(home, { recursive: true }),
  };
}

/** Checks the page in every look: no axe violations, no sideways scrolling. Takes a picture of each. */
export async function inspect(page: Page, info: TestInfo, name: string): Promise<void> {
  for (const look of LOOKS) {
    await page.setViewportSize(look.viewport);
    await page.emulateMedia({ colorScheme: look.colorScheme });
    expect.soft(await violations(page, BEST), `${name}, ${look.name}`).toEqual([]);
    expect.soft(await page.evaluate(() => document.documentElement.scrollWidth - innerWidth), `${name}, ${look.name}: no sideways scrolling`).toBeLessThanOrEqual(0);
    await page.screenshot({ path: info.outputPath(`${name} ${look.name}.png`), fullPage: true });
  }
}

export interface Reader {
  /** Settles when the server has ended the stream. */
  readonly ended: Promise<void>;
  close(): void;
}

/** An unsolicited pong, which shows that the client is alive. Source: RFC 6455, section 5.5.3. */
const PONG = Buffer.from([0x8a, 0x80, 0, 0, 0, 0]);
const PONG_MS = 5_000;

type Kind = 'text/event-stream' | 'application/x-ndjson' | 'websocket';

interface Reading {
  kind?: Kind;
  /** The client never reads from its socket. */
  isSlow?: boolean;
  token?: string;
}

/** Opens a stream or a bare WebSocket. `channel`: its name, and optionally a query. */
export async function read(server: string, channel: string, { kind = 'text/event-stream', isSlow = false, token }: Reading = {}): Promise<Reader> {
  const headers =
    kind === 'websocket'
      ? { connection: 'Upgrade', upgrade: 'websocket', 'sec-websocket-version': '13', 'sec-websocket-key': randomBytes(16).toString('base64') }
      : { accept: kind };
  let sent!: ClientRequest;
  const stream = await new Promise<Readable>((resolve, reject) => {
    sent = request(`${server}/v1/channels/${channel}`, { headers: { ...headers, ...bearer(token) }, agent: false }, resolve);
    sent.once('upgrade', (_, socket) => {
      const alive = setInterval(() => socket.write(PONG), PONG_MS);
      socket.once('close', () => clearInterval(alive));
      resolve(socket);
    });
    sent.once('error', reject);
    sent.end();
  });
  if (!isSlow) stream.resume();
  const ended = new Promise<void>((resolve) => (['close', 'error'] as const).forEach((event) => stream.once(event, () => resolve())));
  return {
    ended,
    close: () => {
      sent.destroy();
      stream.destroy();
    },
  };
}

const bearer = (token?: string): Record<string, string> => (token ? { authorization: `Bearer ${token}` } : {});

export async function publish(server: string, channel: string, body: string | Uint8Array<ArrayBuffer>, { key, token }: { key?: string; token?: string } = {}): Promise<void> {
  const headers = { 'content-type': 'application/json', ...(key && { 'millrace-key': key }), ...bearer(token) };
  const answer = await fetch(`${server}/v1/channels/${channel}`, { method: 'POST', body, headers });
  expect(answer.status, await answer.text()).toBeLessThan(300);
}

/** Publishes `count` messages in one request. */
export async function publishMany(server: string, channel: string, count: number, data: unknown = 'x', token?: string): Promise<void> {
  const line = JSON.stringify({ channel, data });
  const answer = await fetch(`${server}/v1/publish`, { method: 'POST', body: `${line}\n`.repeat(count), headers: { 'content-type': 'application/x-ndjson', ...bearer(token) } });
  expect(answer.status, await answer.text()).toBe(200);
}

/** Opens the overview, and checks that it shows an event of this kind. */
export async function expectEvent(page: Page, server: string, kind: string): Promise<void> {
  await page.goto(`${server}/ui`);
  await expect.poll(() => figure(page, 'Connections')).toBeGreaterThan(0);
  // Parts below the first screen are loaded when they come near.
  await page.evaluate(() => scrollTo(0, document.body.scrollHeight));
  await expect(page.getByRole('region', { name: 'Events' })).toContainText(kind);
}

/** Returns a figure of the overview, in its unit without a prefix for thousands. */
export const figure = (page: Page, name: string): Promise<number> =>
  page
    .locator(`[data-figure="${name}"] .figure`)
    .textContent({ timeout: 5_000 })
    .then((text) => parseFloat((text ?? '').replaceAll(',', '')) * (/\sk/.test(text ?? '') ? 1000 : 1), () => NaN);
