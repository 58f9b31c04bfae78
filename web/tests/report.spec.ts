// The report as a user receives it: a file opened from disk, with the data of a real run.
import { readFileSync, statSync, writeFileSync } from 'node:fs';
import { pathToFileURL } from 'node:url';
import { expect, test as base, type Page } from '@playwright/test';
import { LOOKS, violations } from './page.ts';
import { built, filled, recorded } from './report-file.ts';

/** Fields of an analysis that the tests change. */
interface ReportData {
  analysis: { points: { target: string; transport: string; link?: object }[]; curves: { target: string; points: number[] }[] };
}

/** Fails the test when the page logs an error or requests anything except itself. */
const test = base.extend<{ report: (name: string, change?: (analysis: ReportData) => void) => Promise<string> }>({
  report: async ({ page, context }, use, info) => {
    const errors: string[] = [];
    const requested: string[] = [];
    page.on('console', (message) => message.type() === 'error' && errors.push(message.text()));
    page.on('pageerror', (error) => errors.push(error.message));
    context.on('request', (request) => requested.push(request.url()));
    let file = '';
    await use(async (name, change) => {
      file = info.outputPath(`${name}.html`);
      const data = JSON.parse(recorded(name)) as ReportData;
      change?.(data);
      writeFileSync(file, filled(JSON.stringify(data)));
      await page.goto(pathToFileURL(file).href);
      await expect(page.locator('#verdict')).toBeVisible();
      return file;
    });
    expect.soft(errors, 'console errors').toEqual([]);
    expect.soft(requested.filter((url) => !url.startsWith('data:') && !url.startsWith('blob:')), 'requests').toEqual([pathToFileURL(file).href]);
  },
});

const sideways = (page: Page) => page.evaluate(() => document.documentElement.scrollWidth - innerWidth);

for (const { name, ...look } of LOOKS) {
  test.describe(name, () => {
    test.use(look);

    test('a report is complete and accessible', async ({ page, report }, info) => {
      await report('thorsen-broadcast');
      for (const section of ['At a glance', 'Latency and cost by load', 'Compared with Thorsen (Oslo, 2015)', 'Latency by percentile', 'Second by second', 'Server by server', 'Laws that must hold', 'All points', 'Reproduce this'])
        await expect(page.getByRole('heading', { name: section, level: 2 })).toBeAttached();
      expect(await sideways(page), 'no sideways scrolling').toBeLessThanOrEqual(0);
      await page.screenshot({ path: info.outputPath('report.png'), fullPage: true });

      // With every table open the page shows everything, so axe checks it only then: axe needs seconds for this page.
      await page.locator('details').evaluateAll((all) => all.forEach((one) => ((one as HTMLDetailsElement).open = true)));
      expect(await violations(page)).toEqual([]);
      expect(await sideways(page)).toBeLessThanOrEqual(0);
    });

    test('a comparison is accessible', async ({ page, report }, info) => {
      await report('comparison');
      await expect(page.getByRole('heading', { name: 'Changes, largest first' })).toBeAttached();
      expect(await violations(page)).toEqual([]);
      expect(await sideways(page), 'no sideways scrolling').toBeLessThanOrEqual(0);
      await page.screenshot({ path: info.outputPath('comparison.png'), fullPage: true });
    });
  });
}

test('many servers are split into several charts', async ({ page, report }) => {
  await report('thorsen-broadcast', ({ analysis: { points, curves } }) => {
    for (const { points: own, ...curve } of curves.filter(({ target }) => target === 'millrace'))
      for (const target of ['bun', 'nats', 'nchan'])
        curves.push({ ...curve, target, points: own.map((index) => points.push({ ...points[index]!, target }) - 1) });
  });
  await expect(page.getByRole('heading', { name: 'Latency, p99, SSE' })).toBeAttached();
  await expect(page.getByRole('heading', { name: 'Compared with Thorsen (Oslo, 2015)', level: 2 })).toBeAttached();
});

test('every chart has alt text and a table', async ({ page, report }) => {
  await report('thorsen-broadcast');
  const pictures = page.getByRole('img');
  expect(await pictures.count()).toBeGreaterThan(10);
  for (const picture of await pictures.all()) expect((await picture.getAttribute('aria-label'))?.length).toBeGreaterThan(20);
  const figure = page.locator('figure', { has: page.getByRole('heading', { name: 'Latency, p99' }) });
  await figure.getByText('Show the figures').click();
  await expect(figure.getByRole('table')).toContainText('500');
  await expect(figure.getByRole('columnheader', { name: /WebSocket/ }).first()).toBeVisible();
});

test('tables show the measured values', async ({ page, report }) => {
  await report('thorsen-broadcast');
  const { analysis } = JSON.parse(recorded('thorsen-broadcast')) as { analysis: { points: { target: string; transport: string; load: { value: number }; metrics: Record<string, { median: number }> }[] } };
  const point = analysis.points.find(({ target, transport, load }) => target === 'millrace' && transport === 'websocket' && load.value === 500)!;
  const us = point.metrics.latency_p99_us!.median;
  const shown = us < 1000 ? `${Number(us.toPrecision(3))} µs` : us < 1e6 ? `${Number((us / 1000).toPrecision(3))} ms` : `${Number((us / 1e6).toPrecision(3))} s`;
  const figure = page.locator('figure', { has: page.getByRole('heading', { name: 'Latency, p99' }) });
  await figure.getByText('Show the figures').click();
  await expect(figure.getByRole('row', { name: /^500 / })).toContainText(shown);
});

test('a missing rate is shown as a gap', async ({ page, report }) => {
  await report('thorsen-broadcast', ({ analysis: { points } }) => {
    for (const { series } of points as { series?: { deliveries_per_s: (number | null)[]; server_cpu_cores: (number | null)[] } }[]) {
      if (!series) continue;
      series.deliveries_per_s[0] = null;
      series.server_cpu_cores[series.server_cpu_cores.length - 1] = null;
    }
  });
  const figure = page.locator('figure', { has: page.getByRole('heading', { name: 'Latency of every delivery' }) });
  await figure.getByText('Show the figures').click();
  await expect(figure.getByRole('row').nth(1).getByRole('cell').nth(2)).toHaveText('–');
  await expect(figure.getByRole('row').last().getByRole('cell').nth(5)).toHaveText('–');
});

test('the emulated link and its cost are shown', async ({ page, report }) => {
  await report('thorsen-broadcast', ({ analysis: { points } }) => {
    const up = { received: 1000, delivered: 990, lost: 10, dropped: 0, queue_packets_max: 0, queue_delay_max_ms: 0 };
    points[0]!.link = {
      path: '3g', congestion: 'cubic', up, down: { ...up, received: 2000, lost: 0, dropped: 5, queue_packets_max: 40, queue_delay_max_ms: 312 },
      cpu_us_per_packet: 4.25, added_delay_p50_us: 61, added_delay_p99_us: 1730, cpu_cores: 0.031, kernel_drops: 0,
    };
  });
  const table = page.getByRole('region', { name: 'Emulated link of each point' });
  await expect(table.getByRole('row')).toHaveCount(2);
  const row = table.getByRole('row').last();
  for (const text of ['3g', 'cubic', '10 (1 %)', '5 (0.25 %)', '40 packets, 312 ms', '4.25 µs', '61 µs', '1.73 ms', '3.1 %'])
    await expect(row.getByRole('cell', { name: text, exact: true })).toBeVisible();
  await expect(page.getByRole('navigation', { name: 'Sections' }).getByRole('link', { name: 'Emulated link' })).toBeAttached();
});

test('a report of loopback has no emulated link', async ({ page, report }) => {
  await report('thorsen-broadcast');
  await expect(page.locator('#links')).not.toBeAttached();
});

test('the report works by keyboard', async ({ page, report }) => {
  await report('thorsen-broadcast');
  await page.keyboard.press('Tab');
  await expect(page.getByRole('link', { name: 'Skip to the verdict' })).toBeFocused();
  const theme = page.getByRole('button', { name: /^Color scheme/ });
  for (let i = 0; i < 3; i++) await page.keyboard.press('Tab');
  await expect(theme).toBeFocused();
  const ground = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  const before = await ground();
  await page.keyboard.press('Enter');
  await expect(theme).toHaveAccessibleName('Color scheme: dark. Change');
  expect(await ground()).not.toBe(before);

  const run = page.getByRole('combobox', { name: 'Run' });
  await run.focus();
  const title = page.getByRole('img', { name: /^Latency of each second/ });
  const first = await title.getAttribute('aria-label');
  await page.keyboard.press('ArrowUp');
  await expect(title).not.toHaveAttribute('aria-label', first!);
});

test('the report offers data and command', async ({ page, context, report }) => {
  await report('thorsen-broadcast');
  const download = page.waitForEvent('download');
  await page.getByRole('button', { name: 'Download JSON' }).click();
  const saved = JSON.parse(readFileSync(await (await download).path(), 'utf8')) as { analysis: { head: { command: string } } };
  const command = page.locator('#reproduce pre').first();
  await expect(command).toHaveText(saved.analysis.head.command);
  await context.grantPermissions(['clipboard-read', 'clipboard-write']);
  await page.getByRole('button', { name: 'Copy the command' }).click();
  expect(await page.evaluate(() => navigator.clipboard.readText())).toBe(saved.analysis.head.command);
});

test('print is light and hides the tools', async ({ page, report }) => {
  await page.emulateMedia({ colorScheme: 'dark', media: 'print' });
  await report('thorsen-broadcast');
  expect(await page.evaluate(() => getComputedStyle(document.body).backgroundColor)).toBe('rgb(255, 255, 255)');
  await expect(page.getByRole('button', { name: 'Print' })).toBeHidden();
  await expect(page.getByRole('heading', { name: 'Latency, p99' })).toBeVisible();
});

test('the report is smaller than 5 MB', async ({ report }) => {
  expect(statSync(await report('thorsen-broadcast')).size).toBeLessThan(5e6);
});

test('an empty report says how to create one', async ({ page }, info) => {
  const file = info.outputPath('empty.html');
  writeFileSync(file, built());
  await page.goto(pathToFileURL(file).href);
  await expect(page.getByText('millrace lab report DIR')).toBeVisible();
});
