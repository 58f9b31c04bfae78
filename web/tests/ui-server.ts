// Clients of a server for the tests of the operator pages: streams, slow readers and publishers.
import { randomBytes } from 'node:crypto';
import { request, type ClientRequest } from 'node:http';
import type { Readable } from 'node:stream';
import { expect, type Page } from '@playwright/test';

export interface Reader {
  /** Settles when the server has ended the stream. */
  readonly ended: Promise<void>;
  close(): void;
}

/** An unsolicited pong, which shows that the client is alive. Source: RFC 6455, section 5.5.3. */
const PONG = Buffer.from([0x8a, 0x80, 0, 0, 0, 0]);
const PONG_MS = 5_000;

type Kind = 'text/event-stream' | 'application/x-ndjson' | 'websocket';

/** Opens a stream or a bare WebSocket. `isSlow`: the client never reads from its socket. */
export async function read(server: string, channel: string, { kind = 'text/event-stream', isSlow = false }: { kind?: Kind; isSlow?: boolean } = {}): Promise<Reader> {
  const headers =
    kind === 'websocket'
      ? { connection: 'Upgrade', upgrade: 'websocket', 'sec-websocket-version': '13', 'sec-websocket-key': randomBytes(16).toString('base64') }
      : { accept: kind };
  let sent!: ClientRequest;
  const stream = await new Promise<Readable>((resolve, reject) => {
    sent = request(`${server}/v1/channels/${channel}`, { headers, agent: false }, resolve);
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

export async function publish(server: string, channel: string, body: string | Uint8Array<ArrayBuffer>, type = 'application/json'): Promise<void> {
  const answer = await fetch(`${server}/v1/channels/${channel}`, { method: 'POST', body, headers: { 'content-type': type } });
  expect(answer.status, await answer.text()).toBeLessThan(300);
}

/** Publishes `count` messages in one request. */
export async function publishMany(server: string, channel: string, count: number, data: unknown = 'x'): Promise<void> {
  const line = JSON.stringify({ channel, data });
  const answer = await fetch(`${server}/v1/publish`, { method: 'POST', body: `${line}\n`.repeat(count), headers: { 'content-type': 'application/x-ndjson' } });
  expect(answer.status, await answer.text()).toBe(200);
}

/** Returns a figure of the overview, in its unit without a prefix for thousands. */
export const figure = (page: Page, name: string): Promise<number> =>
  page
    .locator(`[data-figure="${name}"] .figure`)
    .textContent({ timeout: 5_000 })
    .then((text) => parseFloat((text ?? '').replaceAll(',', '')) * (/\sk/.test(text ?? '') ? 1000 : 1), () => NaN);
