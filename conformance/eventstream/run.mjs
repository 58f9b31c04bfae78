// Tests event streams with third-party parsers: node run.mjs BINARY. The test has three parts:
// 1. Chromium's EventSource and eventsource-parser parse the vectors, to verify the vectors that our own parsers are
//    tested with.
// 2. Both parse the server's output for payloads that are difficult to encode.
// 3. An EventSource reconnects, stops, and is refused for other origins.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import http from 'node:http';
import { createRequire } from 'node:module';
import net from 'node:net';

const require = createRequire(new URL('../../sdk/typescript/package.json', import.meta.url));
const { chromium } = require('playwright');
const { createParser } = require('eventsource-parser');
const vectors = JSON.parse(readFileSync(new URL('vectors.json', import.meta.url), 'utf8'));
const bytesOf = ({ stream, hex }) => (stream === undefined ? Buffer.from(hex, 'hex') : Buffer.from(stream));
const PATIENCE_MS = 15_000;

// --- set-up --------------------------------------------------------------------------------------------------------

/** Serves an empty page, and the vectors as event streams. */
const pages = http.createServer((request, response) => {
  const vector = /^\/vector\/(\d+)$/.exec(request.url);
  if (!vector) return void response.writeHead(200, { 'content-type': 'text/html' }).end('<!doctype html><title>event streams</title>');
  response.writeHead(200, { 'content-type': 'text/event-stream' }).end(bytesOf(vectors[vector[1]]));
});
pages.listen(0, '127.0.0.1');
await once(pages, 'listening');
// Two origins of one page server. The configuration allows only the first to read.
const [origin, stranger] = ['127.0.0.1', 'localhost'].map((host) => `http://${host}:${pages.address().port}`);

const child = spawn(process.argv[2], ['serve', '--listen', '127.0.0.1:0', '--set', `limits.allowed_origins=["${origin}"]`, '--set', 'log.level=error'], { stdio: ['ignore', 'pipe', 'inherit'] });
process.once('exit', () => child.kill());
const server = await new Promise((resolve, reject) => {
  let said = '';
  const timer = setTimeout(() => reject(new Error(`the server did not start: ${said}`)), 10_000);
  child.stdout.on('data', (piece) => {
    said += piece;
    const url = /listening on (http:\/\/[^/\s]+)/.exec(said)?.[1];
    if (url) resolve(url), clearTimeout(timer);
  });
  child.once('exit', (code) => reject(new Error(`the server ended with ${code}`)));
});

const browser = await chromium.launch({ executablePath: process.env.CHROMIUM, args: ['--no-sandbox'] });
const page = await browser.newPage();
await page.goto(origin);

/**
 * Returns the events of an EventSource in the page as [type, data, lastEventId]: the first `count` events, or all
 * events until the first error. `types`: event types to listen for. `closed`: the EventSource does not reconnect after
 * the error.
 */
const hear = (url, count, types, where = page) =>
  where.evaluate(
    ([url, count, types, patience]) =>
      new Promise((resolve, reject) => {
        const source = new EventSource(url);
        const events = [];
        const end = (closed) => (source.close(), clearTimeout(timer), resolve({ events, closed }));
        const timer = setTimeout(() => (source.close(), reject(new Error(`after ${patience} ms: ${JSON.stringify(events)}`))), patience);
        for (const type of types) {
          source.addEventListener(type, ({ data, lastEventId }) => {
            events.push([type, data, lastEventId]);
            if (events.length === count) end(false);
          });
        }
        source.onerror = () => end(source.readyState === EventSource.CLOSED);
      }),
    [url, count, types, PATIENCE_MS],
  );

/** Returns the events that eventsource-parser reads from text in pieces. */
function parse(pieces) {
  const heard = { events: [], retry: undefined };
  let lastId = '';
  const parser = createParser({
    onEvent: ({ event, data, id }) => heard.events.push([event || 'message', data, (lastId = id ?? lastId)]),
    onRetry: (ms) => (heard.retry = ms),
  });
  for (const piece of pieces) parser.feed(piece);
  return heard;
}

/** Returns the text of a response, read until `enough` returns true or the response ends. */
async function read(url, enough) {
  const abort = new AbortController();
  const timer = setTimeout(() => abort.abort(new Error(`nothing came from ${url}`)), PATIENCE_MS);
  const response = await fetch(url, { headers: { accept: 'text/event-stream' }, signal: abort.signal });
  let text = '';
  for await (const piece of response.body.pipeThrough(new TextDecoderStream('utf-8', { ignoreBOM: true }))) {
    text += piece;
    if (enough(text)) break;
  }
  clearTimeout(timer);
  return text;
}

async function publish(channel, body, type) {
  const response = await fetch(`${server}/v1/channels/${channel}`, { method: 'POST', headers: { 'content-type': type }, body });
  assert.equal(response.status, 200, await response.clone().text());
  return (await response.json()).position;
}

let passed = 0;
const failures = [];
async function check(name, judge) {
  try {
    await judge();
    passed++;
  } catch (error) {
    failures.push(name);
    console.log(`FAILED: ${name}\n    ${String(error.message).split('\n').slice(0, 12).join('\n    ')}`);
  }
}

// --- the vectors ---------------------------------------------------------------------------------------------------

/** Returns whether a parser reads the vector as the standard requires. `differs` lists those that do not. */
const judges = (judge, { differs }) => !differs?.includes(judge);
for (const [number, vector] of vectors.entries()) {
  if (!judges('Chromium', vector)) continue;
  const types = [...new Set(['message', ...vector.events.map(([type]) => type)])];
  await check(`Chromium, ${vector.name}`, async () => assert.deepEqual((await hear(`/vector/${number}`, -1, types)).events, vector.events));
}
for (const vector of vectors.filter((vector) => judges('eventsource-parser', vector))) {
  await check(`eventsource-parser, ${vector.name}`, () => {
    const text = new TextDecoder('utf-8', { ignoreBOM: true }).decode(bytesOf(vector));
    for (const size of [1, 5, text.length || 1]) {
      const { events, retry } = parse(text.match(new RegExp(`[^]{1,${size}}`, 'g')) ?? []);
      assert.deepEqual(events, vector.events, `${size} characters at a time`);
      assert.equal(retry, vector.retry);
    }
  });
}

// --- output of the server ------------------------------------------------------------------------------------------

const TEXT = 'text/plain; charset=utf-8';
const payloads = [
  '', ' ', '  two spaces first', '\ttab', 'trailing ', 'a\nb', 'a\n', '\n', '\n\n', '\na', 'a\r\nb', 'a\rb', '\r', '\r\n', 'a\r\n', '\n\r', '\r\r\n\n',
  '\0', 'a\0b', '\uFEFF', '\uFEFFa', 'a\uFEFF', 'data: a', ': a', ':', 'id: 1:1', 'event: gap', 'retry: 1',
  'a\n\nid: ffffffff:9\nevent: gap\ndata: {}\n\nretry: 1\n\n', 'a\r\rid: ffffffff:9\r\revent: drain\rdata: {}\r\r', '\n: comment\n', '\u2028\u2029\u0085\v\f',
  'žluťoučký kůň 日本 🚗', '\u{10FFFF}', 'x'.repeat(100_000), '{"a":', '"', '\\n\\r',
].map((text) => ({ body: text, type: TEXT, text }));
const json = '{\r\n\t"a": "line\\nbreak\\r\\u0000",\r "b": [1,\n2]\n}';
payloads.push({ body: json, type: 'application/json', text: json });
const binary = Buffer.from([0, 10, 13, 239, 187, 191, 255, 254]);
payloads.push({ body: binary, type: 'application/octet-stream', text: binary.toString('base64') });
/**
 * Returns the text with all line breaks as LF: the format cannot carry their kind. Source: docs/reference/protocol.md,
 * "How one publication looks".
 */
const carried = (text) => text.replace(/\r\n?/g, '\n');

const positions = [];
for (const { body, type } of payloads) positions.push(await publish('hard', body, type));
const one = `${server}/v1/channels/hard?since=earliest`;
const expected = payloads.map(({ text }, i) => ['message', carried(text), positions[i]]);
const types = ['message', 'gap', 'drain', 'end'];
const heard = (await hear(one, payloads.length, types)).events;
const parsed = parse([await read(one, (text) => text.includes(positions.at(-1)) && text.endsWith('\n\n'))]);
for (const [i, { text }] of payloads.entries()) {
  const name = JSON.stringify(text.slice(0, 40));
  await check(`the server's ${name} in Chromium`, () => assert.deepEqual(heard[i], expected[i]));
  await check(`the server's ${name} in eventsource-parser`, () => assert.deepEqual(parsed.events[i], expected[i]));
}
await check('the server asks to wait 2 s', () => assert.equal(parsed.retry, 2000));

// Envelopes preserve the payload exactly, line breaks included.
const many = `${server}/v1/stream?channel=hard&since=earliest`;
const envelopes = (await hear(many, payloads.length, types)).events;
for (const [i, { body, type, text }] of payloads.entries()) {
  await check(`the envelope of ${JSON.stringify(text.slice(0, 40))}`, () => {
    const said = JSON.parse(envelopes[i][1]);
    assert.equal(said.position, positions[i]);
    assert.equal(envelopes[i][2], `hard@${positions[i]}`);
    assert.deepEqual(type === 'application/json' ? said.data : (said.encoding ? Buffer.from(said.data, said.encoding) : said.data), type === 'application/json' ? JSON.parse(body) : body);
  });
}

// --- reconnecting, stopping, other origins -------------------------------------------------------------------------

/** A proxy that records the heads of requests and can cut all connections. */
const requests = [];
const open = new Set();
const proxy = net.createServer((client) => {
  const upstream = net.connect(Number(new URL(server).port), '127.0.0.1');
  let head = '';
  client.on('data', (piece) => {
    head += piece;
    if (/\r\n\r\n$/.test(head)) requests.push({ head, at: performance.now() }), (head = '');
  });
  for (const socket of [client, upstream]) socket.on('error', () => {}), socket.on('close', () => (client.destroy(), upstream.destroy(), open.delete(client)));
  open.add(client);
  client.pipe(upstream).pipe(client);
});
proxy.listen(0, '127.0.0.1');
await once(proxy, 'listening');
const through = `http://127.0.0.1:${proxy.address().port}`;
const lastEventId = ({ head }) => /^last-event-id: (.*)\r$/im.exec(head)?.[1];
async function until(what, condition) {
  for (const deadline = performance.now() + PATIENCE_MS; !condition(); ) {
    if (performance.now() > deadline) throw new Error(`${what}: not within ${PATIENCE_MS} ms`);
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}

/** Like `hear`, but continues after a connection is cut. `heardAcross` has the events received so far. */
let heardAcross = [];
async function hearAcross(url, count) {
  heardAcross = [];
  await page.exposeFunction('tell', (data) => void heardAcross.push(data));
  await page.evaluate((url) => {
    globalThis.source = new EventSource(url);
    globalThis.source.onmessage = ({ data }) => globalThis.tell(data);
  }, url);
  await until(`${count} events`, () => heardAcross.length >= count);
  await page.evaluate(() => globalThis.source.close());
  return heardAcross;
}
async function presence(channel, count) {
  for (const deadline = performance.now() + PATIENCE_MS; ; ) {
    if ((await (await fetch(`${server}/v1/presence/${channel}`)).json()).count === count) return;
    assert.ok(performance.now() < deadline, `never ${count} readers of ${channel}`);
  }
}

await check('an EventSource that is cut goes on where it was, after the time it was told, also before its first event', async () => {
  const first = await publish('cut', '0', TEXT);
  const hearing = hearAcross(`${through}/v1/channels/cut`, 3);
  await until('the first request', () => requests.length === 1);
  await presence('cut', 1);
  open.forEach((socket) => socket.destroy());
  const cutAt = performance.now();
  await publish('cut', '1', TEXT);
  await until('the second request', () => requests.length === 2);
  assert.equal(lastEventId(requests[0]), undefined);
  assert.equal(lastEventId(requests[1]), first, 'the `id:` that begins the stream counts');
  assert.ok(requests[1].at - cutAt > 1900, `came back after ${requests[1].at - cutAt} ms`);
  const second = await publish('cut', '2', TEXT);
  await until('the second event', () => heardAcross.length === 2);
  open.forEach((socket) => socket.destroy());
  await publish('cut', '3', TEXT);
  assert.deepEqual(await hearing, ['1', '2', '3']);
  assert.equal(lastEventId(requests[2]), second);
});

await check('204 stops an EventSource that has come back after the end of its range', async () => {
  for (const n of [1, 2]) await publish('range', String(n), TEXT);
  requests.length = 0;
  const closed = page.evaluate(
    (url) => new Promise((resolve) => {
      const source = new EventSource(url);
      const seen = [];
      for (const type of ['message', 'end']) source.addEventListener(type, ({ type, data }) => seen.push(type === 'end' ? type : data));
      source.onerror = () => source.readyState === EventSource.CLOSED && resolve(seen);
    }),
    `${through}/v1/channels/range?since=earliest&until=now`,
  );
  assert.deepEqual(await closed, ['1', '2', 'end']);
  assert.equal(requests.length, 2, 'it came back once');
});

await check('another answer than 200 stops it, too', async () => {
  assert.deepEqual(await hear(`${server}/v1/channels/range?since=nonsense`, 1, types), { events: [], closed: true });
});

await check('a page of another origin hears nothing', async () => {
  const other = await browser.newPage();
  await other.goto(stranger);
  const { events, closed } = await hear(one, 1, types, other);
  assert.deepEqual({ events, closed }, { events: [], closed: true });
  await other.close();
});

await check('with cookies no page of another origin hears anything, allowed or not', async () => {
  const closed = page.evaluate(
    (url) => new Promise((resolve) => {
      const source = new EventSource(url, { withCredentials: true });
      source.onmessage = () => resolve('an event');
      source.onerror = () => resolve(source.readyState === EventSource.CLOSED);
    }),
    one,
  );
  assert.equal(await closed, true);
});

await browser.close();
child.kill();
proxy.close();
pages.close();
const differing = vectors.flatMap(({ name, differs = [] }) => differs.map((judge) => `${judge}: ${name}`));
console.log(`differs from the standard by itself, not asked: ${differing.join('; ')}`);
console.log(`${passed + failures.length} checks (${vectors.length} vectors): ${passed} passed, ${failures.length} failed`);
process.exit(failures.length ? 1 : 0);
