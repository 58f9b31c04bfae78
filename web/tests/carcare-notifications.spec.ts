// Notifications of CarCare: the settings, the real server, a local push service, and the service worker in Chromium.
import { execFileSync } from 'node:child_process';
import { createECDH, randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import http from 'node:http';
import { createRequire } from 'node:module';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, type BrowserContext, type CDPSession, type Page } from '@playwright/test';
import { BEST, LOOKS, test, url, violations } from './page.ts';
import { binary, serve, type Server } from './server.ts';

const ece = createRequire(new URL('../../sdk/typescript/package.json', import.meta.url))('http_ece') as {
  decrypt(body: Buffer, options: { version: string; privateKey: unknown; authSecret: Buffer }): Buffer;
};
interface Message {
  readonly title: string;
  readonly body: string;
}

test.use({ contextOptions: { reducedMotion: 'reduce' } });

const keys = createECDH('prime256v1');
keys.generateKeys();
const auth = randomBytes(16);
/** Bodies that the push service has received. */
const received: Buffer[] = [];
const service = http.createServer((request, response) => {
  const chunks: Buffer[] = [];
  request.on('data', (chunk: Buffer) => chunks.push(chunk)).on('end', () => {
    received.push(Buffer.concat(chunks));
    response.writeHead(201).end();
  });
});
let server: Server, folder: string, endpoint: string;

test.beforeAll(async () => {
  folder = mkdtempSync(join(tmpdir(), 'millrace-push-'));
  execFileSync(binary(), ['token', 'key', '--alg', 'ES256', '--out', join(folder, 'key.pem')]);
  service.listen(0, '127.0.0.1');
  await once(service, 'listening');
  const origin = `http://127.0.0.1:${(service.address() as AddressInfo).port}`;
  endpoint = `${origin}/browser`;
  const settings = { 'push.key': join(folder, 'key.pem'), 'push.contact': 'mailto:ops@example.org', 'push.hosts': JSON.stringify([origin]), 'carcare.feedback': 'true' };
  server = await serve('127.0.0.1:0', Object.entries(settings).flatMap(([name, value]) => ['--set', `${name}=${value}`]));
});
test.afterAll(async () => {
  await server?.stop();
  service.close();
  rmSync(folder, { recursive: true });
});

/** Chromium subscribes at a push service in the internet only. So this page gets a subscription at the local one. */
async function subscribeHere(page: Page): Promise<void> {
  await page.addInitScript(
    ({ endpoint, p256dh, auth }) => {
      const bytes = (text: string) => Uint8Array.from(atob(text.replace(/-/g, '+').replace(/_/g, '/')), (c) => c.charCodeAt(0)).buffer;
      let held: unknown = null;
      PushManager.prototype.getSubscription = async () => held as PushSubscription | null;
      PushManager.prototype.subscribe = async (options) => {
        held = {
          endpoint,
          options: { userVisibleOnly: true, applicationServerKey: bytes(options!.applicationServerKey as string) },
          toJSON: () => ({ endpoint, expirationTime: null, keys: { p256dh, auth } }),
          unsubscribe: async () => ((held = null), true),
        };
        return held as PushSubscription;
      };
    },
    { endpoint, p256dh: keys.getPublicKey('base64url'), auth: auth.toString('base64url') },
  );
}

async function open(page: Page, path: string): Promise<void> {
  await page.goto(`${server.url}${path}`);
  await page.locator('[data-loaded=true]').waitFor({ timeout: 30_000 });
}

async function openPanel(page: Page, title = 'Notifications'): Promise<void> {
  const tab = page.getByRole('button', { name: /^(Fleet|Flotte)/ });
  if (await tab.isVisible()) await tab.click();
  await page.locator('summary', { hasText: title }).click();
}

/** Waits for the next push message, and decrypts it as the browser does. */
async function nextPush(since: number): Promise<{ message: Message; text: string }> {
  await expect.poll(() => received.length, { timeout: 20_000 }).toBeGreaterThan(since);
  const text = ece.decrypt(received.at(-1)!, { version: 'aes128gcm', privateKey: keys, authSecret: auth }).toString();
  return { text, message: JSON.parse(text) as Message };
}

/** Passes messages to the service worker, as the push service of Chromium does. */
async function pusher(context: BrowserContext, page: Page): Promise<(data: string) => Promise<void>> {
  const cdp: CDPSession = await context.newCDPSession(page);
  const registered = new Promise<string>((resolve) =>
    cdp.on('ServiceWorker.workerRegistrationUpdated', ({ registrations }) => registrations[0] && resolve(registrations[0].registrationId)),
  );
  await cdp.send('ServiceWorker.enable');
  const registrationId = await registered;
  return async (data) => void (await cdp.send('ServiceWorker.deliverPushMessage', { origin: server.url, registrationId, data }));
}

const shown = (page: Page): Promise<[string, string][]> =>
  page.evaluate(async () => (await (await navigator.serviceWorker.ready).getNotifications()).map((one) => [one.title, one.body] as [string, string]));

/** Sends a drive whose last seconds have a trouble code. */
async function drive(carId: number): Promise<void> {
  const start = Math.floor(Date.now() / 1000) - 60;
  const records = Array.from({ length: 60 }, (_, i) => ({
    carId, timestamp: (start + i) * 1000, speed: Math.min(i, 14), gpsLatitude: 47.53 + i * 1e-4, gpsLongitude: 19.08, heading: 0, accuracy: 4,
    rpm: 1500, coolantTemperature: 90, gear: 4, ...(i > 40 ? { troubleCodes: ['P0301'] } : {}),
  }));
  const body = records.map((record) => JSON.stringify(record)).join('\n');
  expect((await fetch(`${server.url}/rest/input`, { method: 'POST', headers: { 'Content-Type': 'application/x-ndjson' }, body })).status).toBe(200);
}

test('trouble of a chosen car arrives as a notification, and a click opens the car', async ({ page, context }) => {
  await context.grantPermissions(['notifications'], { origin: server.url });
  await subscribeHere(page);
  await open(page, '/carcare?car=2');
  await openPanel(page);
  await expect(page.getByText('This browser gets no notifications.')).toBeVisible();
  await page.getByRole('button', { name: 'Notify me about car 2' }).click();
  await expect(page.getByText('This browser is notified about:')).toBeVisible();
  const stored = async (car: number) => (await fetch(`${server.url}/v1/channels/push-subscriptions/car-${car}?state`)).text();
  expect(await stored(2)).toContain(endpoint);
  const push = await pusher(context, page);

  let before = received.length;
  await page.getByRole('button', { name: 'Send a test for car 2' }).click();
  await expect(page.getByText('The test is on its way to 1 browser')).toBeVisible();
  const test_ = await nextPush(before);
  expect(test_.message.title).toBe('Car 2: test');
  await push(test_.text);
  await expect.poll(() => shown(page)).toContainEqual(['Car 2: test', 'Notifications about this car arrive on this device.']);

  before = received.length;
  await drive(2);
  const trouble = await nextPush(before);
  expect(trouble.message.title).toBe('Car 2: Trouble code P0301');
  await push(trouble.text);
  await expect.poll(() => shown(page)).toContainEqual(['Car 2: Trouble code P0301', expect.stringContaining('Cylinder 1 misfires. Drive gently')]);
  // A car without a subscription sends nothing.
  await drive(3);
  await expect.poll(async () => (await fetch(`${server.url}/v1/channels/carcare/alerts?state`)).text()).toContain('3/trouble-code');
  expect(received.length).toBe(before + 1);

  // Another car is selected; the click on the notification returns to its car without loading the page again.
  await page.getByRole('button', { name: /Car 3/ }).first().click();
  await expect(page.getByRole('heading', { name: 'Car 3' })).toBeVisible();
  const [worker] = context.serviceWorkers();
  await worker!.evaluate(async () => {
    const scope = self as unknown as { registration: ServiceWorkerRegistration } & EventTarget;
    const notification = (await scope.registration.getNotifications()).find((one) => one.title.includes('P0301'))!;
    const Click = (self as unknown as { NotificationEvent: new (type: string, init: object) => Event }).NotificationEvent;
    scope.dispatchEvent(new Click('notificationclick', { notification }));
  });
  await expect(page.getByRole('heading', { name: 'Car 2' })).toBeVisible();
  await expect.poll(async () => (await shown(page)).map(([title]) => title)).not.toContain('Car 2: Trouble code P0301');

  // The same message in the language of the page.
  await page.locator('summary', { hasText: 'Units and language' }).click();
  await page.getByLabel('Language').selectOption('de');
  await expect(page.getByRole('button', { name: 'Probe für Auto 2 senden' })).toBeVisible();
  await expect.poll(() => page.evaluate(async () => (await caches.match('/carcare-words'))?.text())).toContain('Fehlzündungen');
  await push(trouble.text);
  await expect.poll(() => shown(page)).toContainEqual(['Auto 2: Fehlercode P0301', expect.stringContaining('Zylinder 1 mit Fehlzündungen. Fahren Sie sanft')]);
  await page.getByLabel('Sprache').selectOption('en');

  await page.getByRole('button', { name: 'No more notifications about car 2' }).click();
  await expect(page.getByText('This browser gets no notifications.')).toBeVisible();
  expect(await stored(2)).not.toContain(endpoint);
});

test('a message that is no JSON and a link to another site are shown without harm', async ({ page, context }) => {
  await context.grantPermissions(['notifications'], { origin: server.url });
  await open(page, '/carcare?car=2');
  await page.evaluate(() => navigator.serviceWorker.ready);
  const push = await pusher(context, page);
  await push('no json');
  await expect.poll(() => shown(page)).toContainEqual(['CarCare', '']);
  await push(JSON.stringify({ title: 'x', url: 'https://example.org/', tag: 'x' }));
  await expect.poll(() => shown(page)).toContainEqual(['x', '']);
});

test('each obstacle is named with what to do', async ({ page, browser }) => {
  // The shared server has no key.
  await page.goto(url('/carcare?car=1'));
  await page.locator('[data-loaded=true]').waitFor({ timeout: 30_000 });
  await openPanel(page);
  await expect(page.getByText('This server has no key for Web Push yet')).toBeVisible();
  await expect(page.getByText('millrace token key --alg ES256')).toBeVisible();

  const other = await browser.newContext({ reducedMotion: 'reduce' });
  for (const [what, script, text] of [
    ['blocked', `Object.defineProperty(Notification, 'permission', { get: () => 'denied' })`, 'This browser blocks notifications of this page'],
    ['unsupported', `delete window.PushManager`, 'This browser has no Web Push'],
    ['insecure', `Object.defineProperty(window, 'isSecureContext', { get: () => false })`, 'Browsers allow notifications only on pages with HTTPS'],
  ] as const) {
    const tab = await other.newPage();
    await tab.addInitScript(script);
    await open(tab, '/carcare?car=1');
    await openPanel(tab);
    await expect(tab.getByText(text), what).toBeVisible();
    await tab.close();
  }
  const tab = await other.newPage();
  await tab.addInitScript(() => {
    Object.defineProperty(Notification, 'permission', { get: () => 'default' });
    Notification.requestPermission = async () => 'granted';
    PushManager.prototype.subscribe = async () => Promise.reject(new DOMException('Registration failed - push service not available', 'AbortError'));
  });
  await open(tab, '/carcare?car=1');
  await openPanel(tab);
  await tab.getByRole('button', { name: 'Notify me about car 1' }).click();
  await expect(tab.getByRole('alert')).toContainText('push service not available');
  await other.close();
});

for (const { name, ...look } of LOOKS)
  test(`notifications are accessible: ${name}`, async ({ browser }) => {
    const context = await browser.newContext({ ...look, reducedMotion: 'reduce' });
    await context.grantPermissions(['notifications'], { origin: server.url });
    const page = await context.newPage();
    await subscribeHere(page);
    await open(page, '/carcare?car=4');
    await openPanel(page);
    await page.getByRole('button', { name: 'Notify me about car 4' }).click();
    await expect(page.getByRole('button', { name: 'Send a test for car 4' })).toBeVisible();
    expect(await violations(page, BEST)).toEqual([]);
    const shots = process.env.CARCARE_SHOTS;
    if (shots) await page.screenshot({ path: `${shots}/notifications-${name.replace(' ', '-')}.png` });
    await page.goto(url('/carcare?car=1'));
    await page.locator('[data-loaded=true]').waitFor({ timeout: 30_000 });
    await openPanel(page);
    await expect(page.getByText('This server has no key for Web Push yet')).toBeVisible();
    expect(await violations(page, BEST)).toEqual([]);
    if (shots) await page.screenshot({ path: `${shots}/no-key-${name.replace(' ', '-')}.png` });
    await context.close();
  });
