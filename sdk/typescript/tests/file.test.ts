// Files between this client, the real server and `millrace file`.
import { execFile, spawn } from 'node:child_process';
import { createHash, randomBytes } from 'node:crypto';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { afterAll, afterEach, beforeAll, expect, test } from 'vitest';
import { WebSocket } from 'ws';
import { receiveFile, sendFile, Sha256, type FileProgress } from '../src/file.js';
import { millrace, type ConnectOptions } from '../src/index.js';
import { until } from './faulty-server.js';
import { binary, startMillrace, type RunningServer } from './millrace.js';

const run = promisify(execFile);
let server: RunningServer;
let folder: string;
let clients: { close(): Promise<void> }[] = [];
let channels = 0;

beforeAll(async () => {
  folder = mkdtempSync(join(tmpdir(), 'millrace-file-'));
  server = await startMillrace(['namespaces.files.bytes_max=67108864', 'namespaces.small.bytes_max=600000']);
});
afterAll(async () => {
  await server?.stop();
  rmSync(folder, { recursive: true });
});
afterEach(async () => {
  for (const each of clients) await each.close();
  clients = [];
});

function connect(options: ConnectOptions = {}) {
  const made = millrace(server.url, { WebSocket, pollMs: 20, retry: { min: 5, max: 50 }, ...options });
  clients.push(made);
  return made;
}

const fresh = (namespace = 'files'): string => `${namespace}/${++channels}`;
const sha256 = (bytes: Uint8Array): string => createHash('sha256').update(bytes).digest('hex');
const blobOf = (bytes: Uint8Array, name = 'drive.log'): Blob & { name: string } => Object.assign(new Blob([Uint8Array.from(bytes)]), { name });
const bytesOf = async (blob: Blob): Promise<Buffer> => Buffer.from(await blob.arrayBuffer());

test('the hash in parts is that of another library', () => {
  for (const length of [0, 1, 55, 56, 63, 64, 65, 119, 120, 1000, 262_144 + 3]) {
    const bytes = randomBytes(length);
    const hash = new Sha256();
    for (let at = 0; at < length; at += 37 + (at % 101)) hash.update(bytes.subarray(at, Math.min(length, at + 37 + (at % 101))));
    expect(hash.hex(), `${length} bytes`).toBe(sha256(bytes));
  }
});

test.each(['websocket', 'http-stream', 'long-poll'] as const)('a file goes from client to client over %s', async (transport) => {
  const channel = fresh();
  const bytes = randomBytes(900_001);
  const sent: FileProgress[] = [];
  const receiving = receiveFile(connect({ transports: [transport] }), channel);
  const manifest = await sendFile(connect({ transports: [transport] }), channel, blobOf(bytes), { onProgress: (progress) => sent.push(progress) }).done;
  expect(manifest).toEqual({ name: 'drive.log', bytes: 900_001, sha256: sha256(bytes), chunk_bytes: 262_144 });
  expect(sent.map(({ phase, bytes: so }) => `${phase} ${so}`)).toEqual(['hashing', 'sending'].flatMap((phase) => [262144, 524288, 786432, 900001].map((so) => `${phase} ${so}`)));
  const received = await receiving.done;
  expect(received.manifest).toEqual(manifest);
  expect((await bytesOf(received.blob)).equals(bytes)).toBe(true);
});

test('files go to the command and come from it', async () => {
  const bytes = randomBytes(600_000);
  const [path, out] = [join(folder, 'sent.bin'), join(folder, 'received.bin')];
  writeFileSync(path, bytes);
  const [there, back] = [fresh(), fresh()];
  const { sha256: hash } = await sendFile(connect(), there, blobOf(bytes)).done;
  await run(binary(), ['file', 'receive', there, '--out', out, '--to', server.url]);
  expect(readFileSync(out).equals(bytes)).toBe(true);
  const { stdout } = await run(binary(), ['file', 'send', back, path, '--to', server.url]);
  expect(stdout.trim()).toBe(hash);
  const { blob, manifest } = await receiveFile(connect(), back).done;
  expect(manifest.name).toBe('sent.bin');
  expect((await bytesOf(blob)).equals(bytes)).toBe(true);
});

test('an empty file has an end', async () => {
  const channel = fresh();
  await sendFile(connect(), channel, blobOf(new Uint8Array(), 'empty')).done;
  const { blob, manifest } = await receiveFile(connect(), channel).done;
  expect([blob.size, manifest.name]).toEqual([0, 'empty']);
});

test('a paused file stands still, and a resumed one is complete', async () => {
  const channel = fresh();
  const bytes = randomBytes(3_000_000);
  const [mr, reader] = [connect(), connect()];
  let [sent, got] = [0, 0];
  const sending = sendFile(mr, channel, blobOf(bytes), {
    onProgress({ phase, bytes: so }) {
      if (phase !== 'sending') return;
      sent = so;
      if (so === 262_144) sending.pause();
    },
  });
  const receiving = receiveFile(reader, channel, {
    onProgress({ bytes: so }) {
      got = so;
      if (so === 262_144) receiving.pause();
    },
  });
  await until(() => sent > 0 && got > 0, 'the first chunk');
  expect([sending.paused, receiving.paused]).toEqual([true, true]);
  sending.resume();
  await sending.done;
  // The sender is done, and the receiver still has the first chunk only.
  expect([sent, got]).toEqual([3_000_000, 262_144]);
  receiving.resume();
  expect((await bytesOf((await receiving.done).blob)).equals(bytes)).toBe(true);
});

test('cancel ends both sides', async () => {
  const channel = fresh();
  const sending = sendFile(connect(), channel, blobOf(randomBytes(2_000_000)), { onProgress: ({ phase }) => phase === 'sending' && sending.cancel() });
  await expect(sending.done).rejects.toMatchObject({ code: 'aborted' });
  const stopping = new AbortController();
  const receiving = receiveFile(connect(), channel, { signal: stopping.signal, onProgress: ({ bytes }) => bytes > 0 && stopping.abort() });
  await expect(receiving.done).rejects.toMatchObject({ code: 'aborted' });
});

test('only the wanted file is received, and written in order', async () => {
  const channel = fresh();
  const mr = connect();
  const wanted = randomBytes(300_000);
  await sendFile(mr, channel, blobOf(randomBytes(10))).done;
  await sendFile(mr, channel, blobOf(wanted, 'wanted')).done;
  const parts: Uint8Array[] = [];
  const { blob, manifest } = await receiveFile(mr, channel, { sha256: sha256(wanted), write: (bytes) => void parts.push(bytes) }).done;
  expect([manifest.name, blob.size]).toEqual(['wanted', 0]);
  expect(Buffer.concat(parts).equals(wanted)).toBe(true);
});

test('damaged, large and expired files are refused with their reason', async () => {
  const mr = connect();
  const channel = fresh();
  await mr.publish(channel, { file: { name: 'x', bytes: 3, sha256: 'aa', chunk_bytes: 3 } }, { key: 'aa' });
  await mr.publish(channel, new Uint8Array([1, 2, 3]), { key: 'aa/0' });
  await expect(receiveFile(mr, channel).done).rejects.toMatchObject({ reason: 'damaged' });
  await expect(receiveFile(mr, channel, { bytesMax: 2 }).done).rejects.toMatchObject({ reason: 'too_large' });
  for (const file of [{ name: 'x' }, { name: 'x', bytes: -1, sha256: 'b', chunk_bytes: 1 }, { name: 'x', bytes: 1, sha256: 'b', chunk_bytes: 0 }]) await mr.publish(channel, { file }, { key: 'b' });
  const odd = receiveFile(mr, channel, { sha256: 'b' });
  // The history keeps two chunks only, and a sender that begins anew has published the manifest a second time.
  const small = fresh('small');
  await sendFile(mr, small, blobOf(randomBytes(1_500_000))).done;
  const [{ key } = { key: '' }] = await mr.history(small, { limit: 1 });
  const of = key!.split('/')[0]!;
  await mr.publish(small, { file: { name: 'y', bytes: 1_500_000, sha256: of, chunk_bytes: 262_144 } }, { key: of });
  await mr.publish(small, new Uint8Array(5), { key: `${of}/4` });
  await expect(receiveFile(mr, small).done).rejects.toMatchObject({ reason: 'missing' });
  odd.cancel();
  await expect(odd.done).rejects.toMatchObject({ code: 'aborted' });
});

test('a file survives a kill of the command that sends it', async () => {
  const channel = fresh();
  const path = join(folder, 'long.bin');
  const bytes = randomBytes(12_000_000);
  writeFileSync(path, bytes);
  let got = 0;
  const receiving = receiveFile(connect(), channel, { onProgress: ({ bytes: so }) => (got = so) });
  const sender = spawn(binary(), ['file', 'send', channel, path, '--to', server.url], { stdio: 'ignore' });
  const gone = new Promise((resolve) => sender.once('exit', resolve));
  await until(() => got > 0, 'the first chunk');
  sender.kill('SIGKILL');
  await gone;
  await run(binary(), ['file', 'send', channel, path, '--to', server.url]);
  expect((await bytesOf((await receiving.done).blob)).equals(bytes)).toBe(true);
});
