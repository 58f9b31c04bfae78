// The operator pages in Chromium, against real servers: looks, live figures, lists, actions, keys and refusals.
import { readFileSync, statSync } from 'node:fs';
import { expect } from '@playwright/test';
import { KEYS } from '../src/pages/ui/shortcuts.ts';
import { BEST, LOOKS, test, url, violations } from './page.ts';
import { serve, simulate } from './server.ts';
import { figure, publish, publishMany, read } from './ui-server.ts';

const origin = (): string => url('').replace(/\/$/, '');

/** Pages, and a text that each shows when its data has arrived. */
const PAGES = [
  { path: '/ui', name: 'overview', ready: 'publish to write' },
  { path: '/ui/connections', name: 'connections', ready: 'that are furthest behind first' },
  { path: '/ui/channels', name: 'channels', ready: 'cars/1/telemetry' },
  { path: '/ui/channels?channel=cars/1/telemetry', name: 'channel', ready: 'All messages' },
  { path: '/ui/channels?channel=cars/1/telemetry&tab=history', name: 'history', ready: 'Older' },
  { path: '/ui/channels?channel=fleet&tab=state', name: 'state', ready: 'Value' },
  { path: '/ui/slow', name: 'slow', ready: 'Every reader is up to date' },
  { path: '/ui/cluster', name: 'cluster', ready: 'this node' },
  { path: '/ui/threads', name: 'threads', ready: 'shard-0' },
  { path: '/ui/rooms', name: 'rooms', ready: 'No open rooms' },
  { path: '/ui/hooks', name: 'hooks', ready: 'No hooks are configured' },
  { path: '/ui/config', name: 'config', ready: 'server.listen' },
];

for (const { name, ...look } of LOOKS) {
  test.describe(name, () => {
    test.use(look);

    for (const { path, name, ready } of PAGES) {
      test(`${name} page`, async ({ page, clean }, info) => {
        await page.goto(url(path));
        await expect(page.getByText(ready, { exact: false }).first()).toBeVisible();
        // Parts below the first screen are loaded when they come near.
        await page.evaluate(() => scrollTo(0, document.body.scrollHeight));
        if (path === '/ui') await expect(page.getByRole('region', { name: 'Events' })).toBeVisible();
        expect(await violations(page, BEST)).toEqual([]);
        expect(await page.evaluate(() => document.documentElement.scrollWidth - innerWidth), 'no sideways scrolling').toBeLessThanOrEqual(0);
        await page.screenshot({ path: info.outputPath(`${name}.png`), fullPage: true });
      });
    }

    test('dialogs', async ({ page, clean }, info) => {
      await page.goto(url('/ui/connections'));
      await page.locator('tbody .open').first().click();
      await expect(page.getByRole('dialog')).toBeVisible();
      expect(await violations(page, BEST)).toEqual([]);
      await page.screenshot({ path: info.outputPath('connection.png') });
      await page.keyboard.press('Escape');
      await expect(page.getByRole('dialog')).toHaveCount(0);
      await page.keyboard.press('Control+k');
      await expect(page.getByRole('combobox', { name: 'Page, channel or command' })).toBeFocused();
      expect(await violations(page, BEST)).toEqual([]);
      await page.screenshot({ path: info.outputPath('palette.png') });
    });
  });
}

test.describe('overview', () => {
  test('figures, sparklines and charts follow the server', async ({ page, clean }) => {
    const readers = await Promise.all(Array.from({ length: 5 }, () => read(origin(), 'cars/1/telemetry')));
    await page.goto(url('/ui'));
    await expect.poll(() => figure(page, 'Messages in')).toBeGreaterThan(5);
    await expect.poll(() => figure(page, 'Messages out')).toBeGreaterThan(5);
    await expect.poll(() => figure(page, 'Connections')).toBeGreaterThanOrEqual(6);
    await expect.poll(() => figure(page, 'Delivery p99')).toBeGreaterThan(0);
    await expect.poll(() => figure(page, 'Memory')).toBeGreaterThan(1);
    const connections = page.locator('[data-chart="Connections by transport"]');
    await expect(connections.locator('.legend')).toContainText('SSE 5');
    await expect(page.locator('[data-chart="CPU per shard"] .legend')).toContainText('Shard 0');
    await page.evaluate(() => scrollTo(0, document.body.scrollHeight));
    await expect(page.getByRole('region', { name: 'Events' })).toContainText('started');
    for (const reader of readers) reader.close();
    await expect(connections.locator('.legend')).toContainText('SSE 0');
  });

  test('history of the server fills the charts at once', async ({ page }) => {
    await page.goto(url('/ui?span=60'));
    const chart = page.locator('[data-chart="Messages"]');
    await chart.getByRole('button', { name: 'Messages as a table' }).click();
    // The table has a head, and 8 to 15 rows of at least 15 samples.
    await expect.poll(() => chart.getByRole('row').count()).toBeGreaterThan(8);
    await expect(chart.getByRole('row').nth(1)).toContainText('/s');
  });

  test('arrow keys move the cursor of all charts', async ({ page }) => {
    await page.goto(url('/ui?span=60'));
    const time = page.getByRole('slider', { name: 'Time cursor of Messages' });
    await expect.poll(() => time.getAttribute('aria-valuemax').then(Number)).toBeGreaterThan(5);
    await time.focus();
    await page.keyboard.press('ArrowLeft');
    await page.keyboard.press('ArrowLeft');
    await expect(time).toHaveAttribute('aria-valuetext', /^\d\d:\d\d:\d\d: In .+, Out .+/);
    await expect(page.locator('[data-chart="Messages"] .at')).toHaveText(/^\d\d:\d\d:\d\d$/);
    await expect(page.locator('[data-chart="Delivery time"] .at'), 'the other charts show the same time').toHaveText(/^\d\d:\d\d:\d\d$/);
  });

  test('paused updates stand still, and resume', async ({ page }) => {
    await page.goto(url('/ui'));
    const up = page.getByText(/^Millrace .* up /);
    await expect(up).toBeVisible();
    await page.keyboard.press('p');
    await expect(page.locator('[data-status=Paused]')).toBeVisible();
    const before = await up.textContent();
    // The server goes on: its own answer shows that more than a second has passed.
    const uptime = async () => ((await (await page.request.get(url('/v1/info'))).json()) as { uptime_s: number }).uptime_s;
    const began = await uptime();
    await expect.poll(uptime).toBeGreaterThan(began + 2);
    expect(await up.textContent()).toBe(before);
    await page.keyboard.press('p');
    await expect(up).not.toHaveText(before!);
  });

  test('canvases are drawn per frame, once per second with reduced motion, and not while hidden', async ({ page }) => {
    await page.addInitScript(() => {
      const counted = window as unknown as { draws: number };
      counted.draws = 0;
      const clear = CanvasRenderingContext2D.prototype.clearRect;
      CanvasRenderingContext2D.prototype.clearRect = function (...args) {
        counted.draws++;
        return clear.apply(this, args);
      };
    });
    await page.goto(url('/ui'));
    await expect.poll(() => figure(page, 'Connections')).toBeGreaterThan(0);
    /** Draws of all canvases per second, over 2 s by the clock of the page. */
    const perSecond = () =>
      page.evaluate(async () => {
        const counted = window as unknown as { draws: number };
        const [began, draws] = [performance.now(), counted.draws];
        await new Promise((resolve) => setTimeout(resolve, 2_000));
        return ((counted.draws - draws) / (performance.now() - began)) * 1000;
      });
    const canvases = await page.locator('canvas').count();
    expect(canvases).toBe(15);
    // A busy machine without a graphics card draws fewer than 60 frames.
    expect(await perSecond()).toBeGreaterThan(8 * 5);
    await page.emulateMedia({ reducedMotion: 'reduce' });
    // Charts are also drawn when a new sample arrives.
    expect(await perSecond()).toBeLessThan(canvases * 3);
    await page.emulateMedia({ reducedMotion: 'no-preference' });
    await page.evaluate(() => {
      Object.defineProperty(document, 'hidden', { configurable: true, value: true });
      document.dispatchEvent(new Event('visibilitychange'));
    });
    await expect.poll(perSecond).toBe(0);
  });

  test('first load stays within its size budget', async ({ page }) => {
    const BUDGET = 60 * 1024;
    const pack = new URL('../pack/', import.meta.url);
    const manifest = JSON.parse(readFileSync(new URL('manifest.json', pack), 'utf8')) as { path: string; file: string }[];
    const size = new Map(manifest.map(({ path, file }) => [path, statSync(new URL(file, pack)).size]));
    const asked = new Set<string>();
    page.on('request', (request) => asked.add(new URL(request.url()).pathname));
    await page.goto(url('/ui'));
    await expect.poll(() => figure(page, 'Connections')).toBeGreaterThan(0);
    const parts = [...asked].filter((path) => size.has(path));
    expect(parts).toContain('/ui');
    const total = parts.reduce((sum, path) => sum + size.get(path)!, 0);
    console.log(`first load of the operator pages: ${total} bytes (brotli), budget ${BUDGET}`);
    expect(total).toBeLessThanOrEqual(BUDGET);
  });
});

test.describe('connections', () => {
  test('a filtered connection is shown in a drawer and disconnected', async ({ page, clean }) => {
    const channel = `ui/${crypto.randomUUID()}`;
    const reader = await read(origin(), channel);
    await page.goto(url('/ui/connections'));
    await page.getByRole('textbox', { name: 'Filter by channel' }).fill(channel);
    await expect(page.getByRole('region', { name: 'Connections' }).locator('tbody tr')).toHaveCount(1);
    await expect(page).toHaveURL(/channel=ui/);
    await page.locator('tbody .open').click();
    const drawer = page.getByRole('dialog');
    await expect(drawer).toContainText('SSE');
    await expect(drawer.getByRole('link', { name: channel })).toBeVisible();
    await drawer.getByRole('button', { name: 'Disconnect' }).click();
    await page.getByRole('dialog', { name: /^Disconnect/ }).getByRole('button', { name: 'Disconnect' }).click();
    await reader.ended;
    await expect(page.getByRole('dialog')).toHaveCount(0);
    await expect(page.getByText('No connection matches this filter')).toBeVisible();
  });

  test('a subscription is ended', async ({ page }) => {
    const channel = `ui/${crypto.randomUUID()}`;
    const reader = await read(origin(), channel);
    await page.goto(url(`/ui/connections?channel=${channel}`));
    await page.locator('tbody .open').click();
    await page.getByRole('button', { name: `End the subscription to ${channel}` }).click();
    await page.getByRole('button', { name: 'End the subscription', exact: true }).click();
    await reader.ended;
  });

  test.describe('phone', () => {
    test.use({ viewport: { width: 390, height: 844 } });
    test('ids differ in their visible part', async ({ page, clean }) => {
      const channel = `ui/${crypto.randomUUID()}`;
      const readers = await Promise.all(Array.from({ length: 12 }, () => read(origin(), channel)));
      await page.goto(url(`/ui/connections?channel=${channel}`));
      const ids = page.locator('tbody .open');
      await expect(ids).toHaveCount(readers.length);
      const shown = await ids.evaluateAll((all) => all.map((id) => ({ text: (id as HTMLElement).innerText, isCut: id.scrollWidth > id.clientWidth })));
      expect(shown.filter(({ isCut }) => isCut)).toEqual([]);
      expect(new Set(shown.map(({ text }) => text)).size).toBe(readers.length);
      for (const reader of readers) reader.close();
    });
  });

  test('the server cuts the list and says so', async ({ page }) => {
    const channel = `ui/${crypto.randomUUID()}`;
    const readers = await Promise.all(Array.from({ length: 60 }, () => read(origin(), channel)));
    await page.goto(url(`/ui/connections?channel=${channel}&limit=50`));
    await expect(page.locator('tbody tr')).toHaveCount(50);
    await expect(page.getByText('50 of 60 connections')).toBeVisible();
    for (const reader of readers) reader.close();
    await expect(page.getByText('No connection matches this filter')).toBeVisible();
  });
});

test.describe('channels', () => {
  test('a message published in the page appears in the live view as text', async ({ page, clean }) => {
    const channel = `ui/${crypto.randomUUID()}`;
    await page.goto(url(`/ui/channels?channel=${channel}`));
    await expect(page.getByText('No messages yet')).toBeVisible();
    const text = '{"html": "<img src=x onerror=alert(1)>"}';
    await page.getByRole('textbox', { name: /^Message/ }).fill(text);
    await page.getByRole('button', { name: 'Publish' }).click();
    await expect(page.getByText(/^Published at .+:1$/)).toBeVisible();
    const message = page.locator('[data-offset="1"]');
    await expect(message).toContainText('<img src=x onerror=alert(1)>');
    await expect(page.locator('#panel img')).toHaveCount(0);
    await page.getByText('JSON', { exact: true }).click();
    await expect(message.locator('pre')).toHaveText(/^\{\n {2}"html"/);
    await page.getByText('Hex', { exact: true }).click();
    await expect(message.locator('pre')).toContainText('00000000  7b 22 68 74 6d 6c');
  });

  test('the live view is paused and resumed', async ({ page }) => {
    const channel = `ui/${crypto.randomUUID()}`;
    await publish(origin(), channel, '"one"');
    await page.goto(url(`/ui/channels?channel=${channel}`));
    await expect(page.locator('[data-offset="1"]')).toBeVisible();
    const panel = page.getByRole('tabpanel');
    await panel.getByRole('button', { name: 'Pause' }).click();
    await publish(origin(), channel, '"two"');
    // The figures above the live view go on.
    await expect(page.locator('.tiles')).toContainText(/In history\s*2/);
    await expect(page.locator('[data-offset="2"]')).toHaveCount(0);
    await panel.getByRole('button', { name: 'Resume' }).click();
    await expect(page.locator('[data-offset="2"]')).toBeVisible();
  });

  test('a busy channel is sampled, and the page says so', async ({ page }) => {
    const channel = `ui/${crypto.randomUUID()}`;
    await page.goto(url(`/ui/channels?channel=${channel}`));
    await expect(page.getByText('No messages yet')).toBeVisible();
    let stops = false;
    const busy = (async () => {
      while (!stops) await publishMany(origin(), channel, 500);
    })();
    await expect(page.getByText(/^50 of [\d,]+ messages of the last/)).toBeVisible();
    await expect(page.getByText(/^[\d,]+ not shown$/).first()).toBeVisible();
    stops = true;
    await busy;
  });

  test('history is read page by page', async ({ page }) => {
    const channel = `ui/${crypto.randomUUID()}`;
    await publishMany(origin(), channel, 120);
    await page.goto(url(`/ui/channels?channel=${channel}&tab=history`));
    await expect(page.locator('[data-offset="120"]')).toBeVisible();
    await page.getByRole('button', { name: 'Older' }).click();
    await expect(page.locator('[data-offset="70"]')).toBeVisible();
    await expect(page.locator('[data-offset="71"]')).toHaveCount(0);
    await page.getByRole('slider', { name: 'Offset' }).fill('10');
    await expect(page.locator('[data-offset="10"]')).toBeVisible();
    await expect(page.locator('[data-offset]')).toHaveCount(10);
    await page.getByRole('button', { name: 'Newer' }).click();
    await expect(page.locator('[data-offset="60"]')).toBeVisible();
  });

  test('the keys of a state are listed', async ({ page, clean }) => {
    await page.goto(url('/ui/channels?channel=fleet'));
    await page.getByRole('tab', { name: 'State' }).click();
    await expect(page.getByRole('region', { name: 'State' }).locator('tbody tr')).toHaveCount(6);
  });

  test('the list is filtered by the server, and a channel opens by name', async ({ page }) => {
    const name = `ui/${crypto.randomUUID()}`;
    await publish(origin(), `${name}/a`, '1');
    await publish(origin(), `${name}/b`, '1');
    await page.goto(url('/ui/channels'));
    await expect(page.getByRole('link', { name: 'cars/1/telemetry' })).toBeVisible();
    await page.keyboard.press('/');
    await page.keyboard.type(name);
    await expect(page.locator('tbody tr')).toHaveCount(2);
    await page.getByRole('link', { name: `${name}/b` }).click();
    await expect(page.locator('[data-offset="1"]')).toBeVisible();
    await page.goBack();
    await expect(page.locator('tbody tr')).toHaveCount(2);
    await page.getByRole('textbox', { name: 'Name or pattern' }).fill(`${name}/new`);
    await page.keyboard.press('Enter');
    await expect(page.getByText('No messages yet')).toBeVisible();
  });
});

test('a reader that reads nothing is listed with its backlog', async ({ page }) => {
  const own = await serve();
  const slow = await read(own.url, 'bulk', { isSlow: true });
  try {
    await page.goto(`${own.url}/ui/slow`);
    await expect(page.getByText('Every reader is up to date')).toBeVisible();
    const row = page.locator('tbody tr');
    for (let i = 0; i < 40 && (await row.count()) === 0; i++) await publishMany(own.url, 'bulk', 10, 'x'.repeat(60_000));
    await expect(row).toHaveCount(1);
    await expect(row).toContainText('bulk');
    await expect(row.locator('td.num').first()).toHaveText(/^[\d,]+$/);
    slow.close();
    await expect(page.getByText('Every reader is up to date')).toBeVisible();
  } finally {
    slow.close();
    await own.stop();
  }
});

test('a node is drained after a confirmation', async ({ page }) => {
  const own = await serve();
  try {
    await page.goto(`${own.url}/ui/cluster`);
    await page.getByRole('button', { name: /^Drain/ }).click();
    const dialog = page.getByRole('dialog', { name: /^Drain / });
    await expect(dialog).toContainText('There is no other node');
    await dialog.getByRole('button', { name: 'Cancel' }).click();
    expect((await fetch(`${own.url}/readyz`)).status).toBe(200);
    await page.getByRole('button', { name: /^Drain/ }).click();
    await dialog.getByRole('button', { name: 'Drain', exact: true }).click();
    await expect.poll(() => fetch(`${own.url}/readyz`).then(({ status }) => status, () => 0)).not.toBe(200);
  } finally {
    await own.stop();
  }
});

test('threads show what each shard carries', async ({ page }) => {
  await page.goto(url('/ui/threads'));
  await expect(page.locator('[data-thread=shard-0]')).toContainText('%');
  await expect(page.locator('[data-thread=shard-1]')).toBeVisible();
  await expect(page.locator('tfoot')).toContainText(/All shards.*\/s/);
});

test('the threads fit on a phone', async ({ page }) => {
  await page.setViewportSize({ width: 360, height: 780 });
  await page.goto(url('/ui/threads'));
  await expect(page.locator('[data-thread=shard-0]')).toBeVisible();
  const region = page.getByRole('region', { name: 'Threads' });
  expect(await region.evaluate((box) => box.scrollWidth - box.clientWidth), 'no sideways scrolling').toBeLessThanOrEqual(0);
});

test('a request that fails later leaves the rows, and the page says so', async ({ page }) => {
  const channel = `ui/${crypto.randomUUID()}`;
  await publish(origin(), channel, '"one"');
  await page.goto(url(`/ui/channels?channel=${channel}&tab=history`));
  await expect(page.locator('[data-offset="1"]')).toBeVisible();
  await page.route(/\/v1\/admin\/page/, (route) => route.abort());
  const newest = page.getByRole('button', { name: 'Newest' });
  await newest.click();
  await expect(page.getByRole('alert')).toContainText('These messages could not be read');
  await expect(page.locator('[data-offset="1"]')).toBeVisible();
  await page.unroute(/\/v1\/admin\/page/);
  await newest.click();
  await expect(page.getByRole('alert')).toHaveCount(0);
  await page.goto(url('/ui/config'));
  await expect(page.locator('[data-setting="server.listen"]')).toBeVisible();
  await page.route(/\/v1\/admin\/config/, (route) => route.abort());
  await page.getByRole('button', { name: 'Read again' }).click();
  await expect(page.getByRole('alert')).toContainText('The settings were not read again');
  await expect(page.locator('[data-setting="server.listen"]')).toBeVisible();
});

test('a connection that cannot be read is not reported as ended', async ({ page }) => {
  await page.route(/\/v1\/admin\/connections/, (route) => route.abort());
  await page.goto(url('/ui/connections?id=none-0-0-0'));
  const dialog = page.getByRole('dialog');
  await expect(dialog.getByRole('alert')).toContainText('The connection cannot be shown');
  await expect(dialog).not.toContainText('has ended');
});

test('a room is shown with its participants', async ({ page }) => {
  const room = `ui-${crypto.randomUUID().slice(0, 8)}`;
  const joined = await page.request.post(url(`/v1/rooms/${room}/participants`), { data: { name: '<b>Ann</b>' } });
  expect(joined.ok(), await joined.text()).toBe(true);
  await page.goto(url('/ui/rooms'));
  await page.getByRole('link', { name: room }).click();
  await expect(page.getByRole('heading', { name: 'Participants (1)' })).toBeVisible();
  await expect(page.getByRole('region', { name: 'Participants', exact: true })).toContainText('<b>Ann</b>');
});

test('settings name their sources, and secrets are hidden', async ({ page }) => {
  const own = await serve(undefined, ['--set', 'limits.publishes_per_s=77'], { MILLRACE_SERVER__SECRET: 'very-secret-0123456789' });
  try {
    await page.goto(`${own.url}/ui/config`);
    await expect(page.locator('[data-setting="limits.publishes_per_s"]')).toContainText('77');
    await expect(page.locator('[data-setting="limits.publishes_per_s"]')).toContainText('flag');
    await expect(page.locator('[data-setting="server.secret"]')).toContainText('environment');
    await expect(page.locator('body')).not.toContainText('very-secret');
    await page.getByRole('button', { name: /^Changed/ }).click();
    await expect(page.locator('[data-setting="log.level"]')).toHaveCount(0);
    await page.getByRole('button', { name: /^All/ }).click();
    await page.keyboard.press('/');
    await page.keyboard.type('heartbeat');
    await expect(page.locator('[data-setting]').first()).toHaveAttribute('data-setting', /heartbeat/);
    await expect(page.locator('[data-setting="log.level"]')).toHaveCount(0);
  } finally {
    await own.stop();
  }
});

test('keys and the palette open pages, channels and commands', async ({ page, clean }) => {
  await page.goto(url('/ui'));
  const heading = (name: string) => expect(page.getByRole('heading', { level: 1, name })).toBeVisible();
  await heading('Overview');
  for (const [key, name] of [['c', 'Connections'], ['h', 'Channels'], ['s', 'Slow readers'], ['o', 'Overview']] as const) {
    await page.keyboard.press('g');
    await page.keyboard.press(key);
    await heading(name);
  }
  await page.keyboard.press('?');
  await expect(page.getByRole('dialog', { name: 'Keyboard shortcuts' }).locator('dt')).toHaveCount(KEYS.length);
  await page.keyboard.press('Escape');
  const palette = page.getByRole('combobox', { name: 'Page, channel or command' });
  await page.keyboard.press('Control+k');
  await expect(palette).toBeFocused();
  await page.keyboard.type('thr');
  await page.keyboard.press('Enter');
  await heading('Threads');
  await page.keyboard.press('Control+k');
  await expect(palette).toBeFocused();
  await page.keyboard.type('cars/1');
  await expect(page.getByRole('option', { name: 'cars/1/telemetry' })).toBeVisible();
  await page.keyboard.press('ArrowDown');
  await page.getByRole('option', { name: 'cars/1/telemetry' }).click();
  await expect(page.getByRole('heading', { level: 2, name: 'cars/1/telemetry' })).toBeVisible();
});

test('the palette asks the server when typing stops, and cancels its previous question', async ({ page }) => {
  const [asked, cancelled]: [string[], string[]] = [[], []];
  const note = (requested: string, list: string[]) => {
    const { pathname, searchParams } = new URL(requested);
    if (pathname === '/v1/admin/channels') list.push(searchParams.get('pattern')!);
  };
  page.on('request', (request) => note(request.url(), asked));
  page.on('requestfailed', (request) => note(request.url(), cancelled));
  await page.goto(url('/ui/threads'));
  await page.keyboard.press('Control+k');
  const palette = page.getByRole('combobox', { name: 'Page, channel or command' });
  /** Types all letters at once, so that a busy machine makes no pause between two of them. */
  const type = (text: string) =>
    palette.evaluate((field: HTMLInputElement, text) => {
      for (const letter of text) {
        field.value += letter;
        field.dispatchEvent(new InputEvent('input', { bubbles: true }));
      }
    }, text);
  await type('cars/1');
  const option = page.getByRole('option', { name: 'cars/1/telemetry' });
  await expect(option).toBeVisible();
  expect(asked).toEqual(['cars/1', 'cars/1/#']);
  // A channel that the text no longer names is removed at once, so that Enter cannot open it.
  await page.route(/\/v1\/admin\/channels/, () => {});
  await type('x');
  await expect(option).toHaveCount(0);
  await expect.poll(() => asked.slice(2)).toEqual(['cars/1x', 'cars/1x/#']);
  await type('y');
  await expect.poll(() => cancelled).toEqual(['cars/1x', 'cars/1x/#']);
  await page.unroute(/\/v1\/admin\/channels/);
});

test('a lost connection shows a banner, and the page continues when the server is back', async ({ page }) => {
  let own = await serve();
  const { host } = new URL(own.url);
  try {
    await page.goto(`${own.url}/ui`);
    await expect(page.locator('[data-status=Live]')).toBeVisible();
    await own.kill();
    await expect(page.getByText('Disconnected from the server.')).toBeVisible();
    await expect(page.getByText(/^(Next attempt in \d+ s|Connecting…)$/)).toBeVisible();
    own = await serve(host);
    await page.getByRole('button', { name: 'Retry now' }).click();
    await expect(page.locator('[data-status=Live]')).toBeVisible();
    await expect(page.getByText('Disconnected from the server.')).toHaveCount(0);
    await expect.poll(() => figure(page, 'Memory')).toBeGreaterThan(1);
  } finally {
    await own.stop();
  }
});

test('many connections are counted while their list stays short', async ({ page }) => {
  const own = await serve();
  const fleet = simulate(own.url, 3, {}, ['--no-answers']);
  const readers = await Promise.all(Array.from({ length: 400 }, (_, i) => read(own.url, `cars/${(i % 3) + 1}/telemetry`)));
  try {
    await page.goto(`${own.url}/ui/connections`);
    await expect(page.getByText('100 of 401 connections')).toBeVisible();
    await expect(page.locator('tbody tr')).toHaveCount(100);
  } finally {
    for (const reader of readers) reader.close();
    await fleet.stop();
    await own.stop();
  }
});
