// Plays browsers and their push service for the real binary: node run.mjs BINARY FOLDER. FOLDER has key.pem.
// Sources: RFC 8030 (push services), RFC 8291 (encryption), RFC 8292 (identification of the server).
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { createECDH, createPublicKey, randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { existsSync, readFileSync } from 'node:fs';
import http from 'node:http';
import { createRequire } from 'node:module';

const require = createRequire(new URL('../../sdk/typescript/package.json', import.meta.url));
const ece = require('http_ece');
const { jwtVerify } = require('jose');
const [binary, folder] = process.argv.slice(2);
const PATIENCE_MS = 20_000;
let checks = 0;
const check = (what, run) => Promise.resolve(run()).then(() => { checks++; }, (error) => { throw new Error(`${what}: ${error.message}`, { cause: error }); });

// --- the push service: one path per browser, with answers that the test sets ---------------------------------------

/** Requests per path, and the answers that are still to give. */
const received = {};
const answers = {};
const waiting = [];
const service = http.createServer((request, response) => {
  const chunks = [];
  request.on('data', (chunk) => chunks.push(chunk)).on('end', () => {
    (received[request.url] ??= []).push({ headers: request.headers, body: Buffer.concat(chunks), at: Date.now() });
    const answer = answers[request.url]?.shift() ?? { status: 201 };
    if (answer.status) response.writeHead(answer.status, answer.headers).end();
    waiting.splice(0).forEach((wake) => wake());
  });
});
service.listen(0, '127.0.0.1');
await once(service, 'listening');
const origin = `http://127.0.0.1:${service.address().port}`;

async function until(what, condition) {
  const end = Date.now() + PATIENCE_MS;
  while (!condition()) {
    assert(Date.now() < end, `not in time: ${what}`);
    await Promise.race([new Promise((wake) => waiting.push(wake)), new Promise((wake) => setTimeout(wake, 1000))]);
  }
}

// --- the server ----------------------------------------------------------------------------------------------------

const settings = { 'push.key': `${folder}/key.pem`, 'push.contact': 'mailto:ops@example.org', 'push.hosts': JSON.stringify([origin]), 'push.timeout': '500ms' };
const server = spawn(binary, ['serve', '--listen', '127.0.0.1:0', ...Object.entries(settings).flatMap(([name, value]) => ['--set', `${name}=${value}`])], { stdio: ['ignore', 'pipe', 'inherit'] });
process.on('exit', () => server.kill('SIGKILL'));
let output = '';
const url = await new Promise((resolve, reject) => {
  server.stdout.on('data', (data) => { output += data; const found = /listening on (\S+)/.exec(output); if (found) resolve(found[1].replace(/\/$/, '')); });
  server.on('exit', () => reject(new Error('the server did not start')));
});
const post = (path, body, method = 'POST') => fetch(url + path, { method, body: typeof body === 'string' ? body : JSON.stringify(body) });
const notify = async (message, query = '') => (await (await post(`/v1/push/alice${query}`, message)).json()).pushes;

class Browser {
  constructor(name) {
    this.path = `/${name}`;
    this.keys = createECDH('prime256v1');
    this.keys.generateKeys();
    this.auth = randomBytes(16);
  }
  get subscription() {
    return { endpoint: origin + this.path, expirationTime: null, keys: { p256dh: this.keys.getPublicKey('base64url'), auth: this.auth.toString('base64url') } };
  }
  decrypt({ body }) {
    return ece.decrypt(body, { version: 'aes128gcm', privateKey: this.keys, authSecret: this.auth }).toString();
  }
}

// --- checks --------------------------------------------------------------------------------------------------------

const [phone, laptop] = [new Browser('phone'), new Browser('laptop')];
const { key } = await (await fetch(`${url}/v1/push`)).json();
const jwk = createPublicKey(readFileSync(`${folder}/key.pem`)).export({ format: 'jwk' });
await check('the key is the public key of the file', () => assert.deepEqual(Buffer.from(key, 'base64url'), Buffer.concat([Buffer.from([4]), Buffer.from(jwk.x, 'base64url'), Buffer.from(jwk.y, 'base64url')])));
for (const browser of [phone, laptop, phone]) assert.equal((await post('/v1/push/alice/subscriptions', browser.subscription)).status, 204);

const message = JSON.stringify({ title: 'Car 7', body: 'Too hot: 121 °C', tag: 'coolant' });
await check('a browser that has subscribed twice gets one message', async () => assert.equal(await notify(message, '?urgency=high&ttl=60'), 2));
for (const browser of [phone, laptop]) {
  await until(browser.path, () => received[browser.path]);
  const [request] = received[browser.path];
  await check(`${browser.path} decrypts`, () => assert.equal(browser.decrypt(request), message));
  await check('headers', () => assert.deepEqual([request.headers.ttl, request.headers.urgency, request.headers['content-encoding']], ['60', 'high', 'aes128gcm']));
  const [, token, k] = /^vapid t=([^,]+), k=(.+)$/.exec(request.headers.authorization);
  assert.equal(k, key);
  const { payload } = await jwtVerify(token, createPublicKey({ key: jwk, format: 'jwk' }), { audience: origin, subject: 'mailto:ops@example.org' });
  await check('the token ends within a day', () => assert(payload.exp <= Date.now() / 1000 + 86_400));
}
const large = JSON.stringify('x'.repeat(3991));
await check('the largest message', async () => assert.equal(await notify(large), 2));
await until('the largest message', () => received['/phone'].length === 2);
await check('the largest message decrypts', () => assert.equal(phone.decrypt(received['/phone'][1]), large));
await check('a larger one is refused', async () => assert.equal((await post('/v1/push/alice', JSON.stringify('x'.repeat(3992)))).status, 413));

// The phone has unsubscribed at its push service; the laptop must wait; then the service does not answer.
answers['/phone'] = [{ status: 410 }];
answers['/laptop'] = [{ status: 429, headers: { 'retry-after': '2' } }];
await until('the laptop', () => received['/laptop'].length === 2);
await notify('3');
await until('the repetition', () => received['/laptop'].length === 4);
const [, , refused, repeated] = received['/laptop'];
await check('Retry-After is respected', () => assert(repeated.at - refused.at >= 1900, `${repeated.at - refused.at} ms`));
await check('a repetition has another salt', () => assert.notDeepEqual(refused.body.subarray(0, 16), repeated.body.subarray(0, 16)));
await check('a subscription that is gone is removed', async () => assert.equal(await notify('4'), 1));
await until('the laptop', () => received['/laptop'].length === 5);
answers['/laptop'] = [{}];
await notify('5');
await until('the next attempt after silence', () => received['/laptop'].length === 7);
await check('the message arrives after a service was silent', () => assert.equal(laptop.decrypt(received['/laptop'][6]), '5'));

const reader = await fetch(`${url}/v1/channels/notifications/alice`, { headers: { accept: 'text/event-stream' } });
const lines = reader.body.pipeThrough(new TextDecoderStream()).getReader();
await lines.read();
await check('a page that is open gets the message, and no push is sent', async () => assert.equal(await notify('"open"'), 0));
for (let text = ''; !text.includes('"open"'); ) text += (await lines.read()).value;
await lines.cancel();

for (const endpoint of ['http://10.0.0.1/x', 'http://[::1]/x', 'https://fcm.googleapis.com/x', `${origin}.evil.example/x`, 'file:///etc/passwd', 7]) {
  await check(`${endpoint} is refused`, async () => assert.equal((await post('/v1/push/alice/subscriptions', { ...phone.subscription, endpoint })).status, 400));
}
await check('a bad key is refused', async () => assert.equal((await post('/v1/push/alice/subscriptions', { ...phone.subscription, keys: { p256dh: Buffer.alloc(65, 4).toString('base64url'), auth: phone.auth.toString('base64url') } })).status, 400));
await check('unsubscribe', async () => assert.equal((await post('/v1/push/alice/subscriptions', { endpoint: laptop.subscription.endpoint }, 'DELETE')).status, 204));
await check('nothing is sent without a subscription', async () => assert.equal(await notify('6'), 0));

await showInChromium();
console.log(`${checks} checks passed`);
process.exit(0);

/** The service worker of the guide shows a notification in Chromium. */
async function showInChromium() {
  const playwright = new URL('../../web/node_modules/@playwright/test/index.mjs', import.meta.url);
  if (!existsSync(playwright)) return console.log('skipped: web/node_modules is not there; Chromium was not checked');
  const guide = readFileSync(new URL('../../docs/how-to/notify-closed-pages.md', import.meta.url), 'utf8');
  const worker = /<!-- file: sw.js -->\n```js\n([^]*?)```/.exec(guide)[1];
  const site = http.createServer((request, response) => {
    const isWorker = request.url === '/sw.js';
    response.setHeader('content-type', isWorker ? 'text/javascript' : 'text/html').end(isWorker ? worker : '<!doctype html><title>site</title>');
  });
  site.listen(0, '127.0.0.1');
  await once(site, 'listening');
  const page_url = `http://localhost:${site.address().port}`;
  const { chromium } = await import(playwright);
  const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium', args: ['--no-sandbox'] });
  try {
    const context = await browser.newContext();
    await context.grantPermissions(['notifications'], { origin: page_url });
    const page = await context.newPage();
    const cdp = await context.newCDPSession(page);
    const registered = new Promise((resolve) => cdp.on('ServiceWorker.workerRegistrationUpdated', ({ registrations }) => registrations.length && resolve(registrations[0].registrationId)));
    await cdp.send('ServiceWorker.enable');
    await page.goto(page_url);
    await page.evaluate(async () => { await navigator.serviceWorker.register('/sw.js'); await navigator.serviceWorker.ready; });
    await cdp.send('ServiceWorker.deliverPushMessage', { origin: page_url, registrationId: await registered, data: message });
    const shown = await page.waitForFunction(async () => {
      const [notification] = await (await navigator.serviceWorker.ready).getNotifications();
      return notification && [notification.title, notification.body, notification.tag];
    });
    await check('Chromium shows the notification', async () => assert.deepEqual(await shown.jsonValue(), ['Car 7', 'Too hot: 121 °C', 'coolant']));
  } finally {
    await browser.close();
    site.close();
  }
}
