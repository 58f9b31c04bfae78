// Takes the screenshots of the documentation from the real server with a simulated fleet: `npm run screenshots`.
import { mkdirSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { expect, test, type BrowserContext, type Page } from '@playwright/test';
import { openCar, url } from './page.ts';
import { serve, simulate, simulateTicker } from './server.ts';
import { figure, read } from './ui-server.ts';

const images = fileURLToPath(new URL('../../docs/images/', import.meta.url));
mkdirSync(images, { recursive: true });

/** Gives a page the size and the colors of a phone at night. */
async function asPhone(page: Page): Promise<void> {
  await page.setViewportSize({ width: 390, height: 844 });
  await page.emulateMedia({ colorScheme: 'dark' });
}

/** Waits for a trace of 75 s at five records per second, long enough for a screenshot. */
async function driven(page: Page): Promise<void> {
  await expect.poll(() => page.evaluate(() => window.carcare?.received.length), { timeout: 110_000 }).toBeGreaterThan(375);
}

test.describe('phone', () => {
  test.use({ viewport: { width: 390, height: 844 }, deviceScaleFactor: 2, hasTouch: true, colorScheme: 'light' });
  test('CarCare on a phone', async ({ page }) => {
    test.setTimeout(150_000);
    await openCar(page);
    await driven(page);
    await page.screenshot({ path: `${images}carcare-phone.png` });
  });
});

test.describe('desktop', () => {
  test.use({ viewport: { width: 1280, height: 800 }, colorScheme: 'dark' });
  test('CarCare on a desktop', async ({ page }) => {
    test.setTimeout(150_000);
    await openCar(page);
    await driven(page);
    await page.screenshot({ path: `${images}carcare-desktop.png` });
  });
});

test.describe('prices', () => {
  test.use({ viewport: { width: 1280, height: 800 }, colorScheme: 'light' });
  test('the ticker and the race', async ({ page }) => {
    const ticker = simulateTicker(url('/'), '100ms');
    try {
      await page.goto(url('/race'));
      const progress = async () => Number(await page.locator('[data-lane=session] .track').getAttribute('aria-valuenow'));
      await expect.poll(progress, { timeout: 60_000 }).toBeGreaterThan(20);
      await page.locator('[data-lane=sse]').getByRole('button', { name: 'Cut' }).click();
      await page.locator('[data-lane=long-polling]').getByRole('button', { name: 'Throttle' }).click();
      await expect.poll(progress, { timeout: 60_000 }).toBeGreaterThan(55);
      await page.mouse.move(0, 0);
      await page.screenshot({ path: `${images}race-desktop.png` });
      await page.getByRole('button', { name: 'Restore all links' }).click();
      await page.goto(url('/ticker'));
      await expect(page.locator('[data-symbol]')).toHaveCount(6);
      await page.screenshot({ path: `${images}ticker-desktop.png` });
      await asPhone(page);
      await page.screenshot({ path: `${images}ticker-phone.png` });
      await page.goto(url('/race'));
      await expect.poll(progress, { timeout: 60_000 }).toBeGreaterThan(20);
      await page.screenshot({ path: `${images}race-phone.png` });
    } finally {
      await ticker.stop();
    }
  });
});

test.describe('operators', () => {
  for (const colorScheme of ['light', 'dark'] as const) {
    test.describe(colorScheme, () => {
      test.use({ viewport: { width: 1280, height: 800 }, colorScheme });
      test('the operator pages', async ({ page }) => {
        test.setTimeout(240_000);
        const own = await serve();
        const fleet = simulate(own.url, 40);
        const ticker = simulateTicker(own.url, '20ms');
        const readers = [];
        try {
          await page.goto(`${own.url}/ui?span=60`);
          // The number of readers grows while the charts fill.
          for (let i = 0; i < 480; i++) {
            const kind = (['text/event-stream', 'application/x-ndjson', 'websocket'] as const)[i % 5 < 2 ? 0 : i % 5 < 3 ? 1 : 2];
            readers.push(await read(own.url, `cars/${(i % 40) + 1}/telemetry`, { kind }));
            if (i % 8 === 0) await expect.poll(() => figure(page, 'Connections')).toBeGreaterThan(i);
          }
          await page.mouse.move(0, 0);
          await page.screenshot({ path: `${images}ui-overview-${colorScheme}.png` });
          if (colorScheme === 'dark') {
            await asPhone(page);
            await page.screenshot({ path: `${images}ui-overview-phone.png` });
            return;
          }
          await page.goto(`${own.url}/ui/channels?channel=cars/1/telemetry`);
          await expect(page.locator('[data-offset]').nth(20)).toBeVisible();
          await page.screenshot({ path: `${images}ui-channel-light.png` });
        } finally {
          for (const reader of readers) reader.close();
          await Promise.all([fleet.stop(), ticker.stop()]);
          await own.stop();
        }
      });
    });
  }
});

/** Opens the chat as a user, in a browser of its own. */
async function chatter(context: BrowserContext, name: string): Promise<Page> {
  const page = await context.newPage();
  await page.goto(url('/chat#release'));
  await page.getByRole('textbox', { name: 'Your name' }).fill(name);
  await page.getByRole('button', { name: 'Start writing' }).click();
  await expect(page.getByRole('log')).toHaveAttribute('aria-busy', 'false');
  return page;
}

const CHATS = [
  { name: 'chat-desktop', viewport: { width: 1280, height: 800 }, colorScheme: 'light', deviceScaleFactor: 1 },
  { name: 'chat-phone', viewport: { width: 390, height: 844 }, colorScheme: 'dark', deviceScaleFactor: 2 },
] as const;
for (const { name, ...look } of CHATS) {
  test(name, async ({ browser, request }) => {
    for (const channel of ['lobby', 'release', 'tea-break']) await request.post(url('/v1/channels/chat-lists/channels'), { data: {}, headers: { 'millrace-key': channel } });
    // Each picture shows a conversation from its beginning.
    const contexts = [await browser.newContext({ ...look }), await browser.newContext(), await browser.newContext()];
    try {
      const [ann, bob, eve] = [await chatter(contexts[0]!, 'Ann'), await chatter(contexts[1]!, 'Bob'), await chatter(contexts[2]!, 'Eve')];
      const say = async (page: Page, text: string): Promise<void> => {
        await page.getByRole('textbox', { name: 'Message' }).fill(text);
        await page.getByRole('button', { name: 'Send' }).click();
        await expect(ann.getByText(text).last()).toBeVisible();
      };
      await say(bob, 'The new build is on the test server.');
      await say(bob, 'Can somebody try it on a phone, on a train?');
      await say(ann, 'I am in one. 40 minutes, 12 tunnels.');
      await say(eve, 'Good luck 😂');
      await say(ann, 'Everything that I wrote in the tunnels arrived once, in order.');
      const last = bob.getByRole('article').last();
      await last.hover();
      await last.getByRole('button', { name: 'Actions' }).click();
      await last.getByRole('button', { name: 'React with ❤️' }).click();
      await expect(ann.getByRole('button', { name: /^❤️ 1/ }).last()).toBeVisible();
      await eve.goto(url('/chat#tea-break'));
      await eve.getByRole('textbox', { name: 'Message' }).fill('Kettle is on');
      await eve.getByRole('button', { name: 'Send' }).click();
      await expect(ann.getByText('unread').first()).toBeAttached();
      await bob.getByRole('textbox', { name: 'Message' }).pressSequentially('Great');
      await expect(ann.getByText('Bob is typing…')).toBeVisible();
      await contexts[0]!.setOffline(true);
      await expect(ann.getByText('No connection')).toBeVisible();
      await ann.getByRole('textbox', { name: 'Message' }).fill('Tunnel number 13.');
      await ann.getByRole('button', { name: 'Send' }).click();
      await expect(ann.getByText('Waiting to be sent')).toBeVisible();
      await ann.mouse.move(0, 0);
      await ann.screenshot({ path: `${images}${name}.png` });
    } finally {
      for (const context of contexts) await context.close();
    }
  });
}

test.describe('start', () => {
  test.use({ viewport: { width: 1280, height: 800 }, colorScheme: 'light' });
  test('the start page', async ({ page }) => {
    await page.goto(url('/'));
    await expect(page.getByText('Connected over')).toBeVisible();
    for (let nr = 1; nr <= 3; nr++) {
      await page.getByRole('button', { name: 'Publish a message' }).click();
      await expect(page.getByRole('log')).toContainText(`"nr":${nr}`);
    }
    await page.screenshot({ path: `${images}start-desktop.png`, fullPage: true });
  });
});

test.describe('lab', () => {
  test.use({ viewport: { width: 1280, height: 800 }, colorScheme: 'light' });
  test('a run with the previous one behind it, and the reports', async ({ page }) => {
    test.setTimeout(180_000);
    const out = mkdtempSync(join(tmpdir(), 'millrace-lab-'));
    const server = await serve(undefined, ['--set', `lab.directory=${out}`]);
    const status = page.getByRole('heading', { level: 1 });
    const start = async (settings: string) => {
      await page.getByRole('button', { name: 'Options of thorsen-broadcast' }).click();
      await page.getByLabel('Parameters').fill(settings);
      await page.getByRole('button', { name: 'Start the run' }).click();
      await expect(status).not.toHaveText(/Finished|No run/);
    };
    try {
      await page.goto(`${server.url}/lab`);
      for (const clients of [5, 50]) {
        await start(`clients=${clients}\ntransports=sse,websocket\ntest=10s`);
        await expect(status).toHaveText('Finished', { timeout: 90_000 });
      }
      await start('clients=50\ntransports=sse,websocket\ntest=10s');
      await expect(status).toHaveText('Run 2 of 2', { timeout: 60_000 });
      await expect(page.getByRole('img', { name: /^Latency, by seconds/ })).toBeVisible();
      await expect.poll(() => page.locator('figure .line').count()).toBeGreaterThan(8);
      await page.waitForFunction(() => document.querySelectorAll('figure .faint').length > 3);
      await page.screenshot({ path: `${images}lab-desktop.png` });
      await expect(status).toHaveText('Finished', { timeout: 60_000 });
      await asPhone(page);
      await page.getByRole('heading', { name: 'Reports' }).scrollIntoViewIfNeeded();
      await page.evaluate(() => document.querySelector('#reports')?.scrollIntoView());
      await page.screenshot({ path: `${images}lab-phone.png` });
    } finally {
      await server.stop();
      rmSync(out, { recursive: true });
    }
  });
});
