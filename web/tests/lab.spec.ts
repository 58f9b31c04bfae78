// The page of the lab: with the messages that `millrace lab run --live` publishes, and with real runs.
import { execFile } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { expect, type Page } from '@playwright/test';
import { NO_PROGRESS, rates, applyEvent } from '../src/pages/lab/events.ts';
import { ghostOf, ghostPoints, previousOf } from '../src/pages/lab/ghost.ts';
import { BEST, LOOKS, test, url, violations } from './page.ts';
import { binary, serve } from './server.ts';

const exec = promisify(execFile);

const second = (delivered: number) => ({
  is: 'second', at_s: 1, published: 200, delivered, p50_us: 900, p99_us: 4200, server_cpu_cores: 0.4, generator_cpu_cores: 0.2, server_memory_bytes: 8_000_000,
});
const ended = { is: 'ended', target: 'millrace', transport: 'sse', load: { value: 50, counts: 'clients' }, repeat: 0, delivered: 20_000, lost: 0, p50_us: 900, p99_us: 4200, is_valid: true, missed: [] };

const publish = async (...events: object[]) => {
  for (const event of events) {
    const answer = await fetch(url('/v1/channels/lab/live'), { method: 'POST', headers: { 'content-type': 'application/json' }, body: JSON.stringify(event) });
    expect(answer.status).toBe(200);
  }
};

for (const { name, ...look } of LOOKS) {
  test.describe(name, () => {
    test.use(look);

    test('the live page shows a run from its start', async ({ page, clean }, info) => {
      await publish({ is: 'announced', command: 'millrace lab run thorsen-broadcast' }, { is: 'planned', runs: 3, done: 0, estimate_s: 90 }, { is: 'begun', index: 0, of: 3, label: 'millrace sse, 50 clients', left_s: 90 }, second(9_000));
      // A page that is opened during a run shows the earlier events.
      await page.goto(url('/lab'));
      const status = page.getByRole('heading', { level: 1 });
      await expect(status).toHaveText('Run 1 of 3');
      await expect(page.getByText('millrace sse, 50 clients')).toBeVisible();

      await publish(second(10_000), second(10_000), ended, { is: 'begun', index: 1, of: 3, label: 'millrace websocket, 50 clients', left_s: 60 });
      await expect(status).toHaveText('Run 2 of 3');
      await expect(page.getByRole('row', { name: /Millrace SSE/ })).toContainText('4.2 ms');
      await expect(page.getByRole('img', { name: /^Deliveries per second.*10 k/ })).toBeVisible();
      expect(await violations(page, BEST)).toEqual([]);
      expect(await page.evaluate(() => document.documentElement.scrollWidth - innerWidth), 'no sideways scrolling').toBeLessThanOrEqual(0);
      await page.screenshot({ path: info.outputPath('lab.png'), fullPage: true });

      await publish({ is: 'finished' });
      await expect(status).toHaveText('Finished');
    });
  });
}

test('the command on the page starts a live run', async ({ page }, info) => {
  test.setTimeout(120_000);
  const out = mkdtempSync(join(tmpdir(), 'millrace-lab-'));
  const server = await serve(undefined, ['--set', `lab.directory=${join(out, 'reports')}`]);
  try {
    await page.goto(`${server.url}/lab`);
    await expect(page.getByRole('heading', { level: 1 })).toHaveText('No run yet');
    expect(await violations(page, BEST)).toEqual([]);
    await page.screenshot({ path: info.outputPath('none.png'), fullPage: true });
    // The command that the page shows, with shorter settings.
    const [program, ...words] = (await page.locator('code', { hasText: 'millrace lab run' }).innerText()).split(' ');
    expect([program, ...words.slice(-3)]).toEqual(['millrace', '--live', '--to', server.url]);
    const shorter = ['--set', 'test=1s', '--set', 'clients=5', '--transports', 'sse', '--out', join(out, 'run')];
    const run = exec(binary(), [...words, ...shorter]);
    await expect(page.getByRole('heading', { level: 1 })).toHaveText('Finished', { timeout: 60_000 });
    expect((await run).stderr).toContain(`live: ${server.url}/lab`);
    await expect(page.getByRole('row', { name: /SSE/ })).toContainText('5 clients');
    await expect(page.getByText('--set clients=5')).toBeVisible();
    // A page that is opened after the run also shows it.
    await page.reload();
    await expect(page.getByRole('row', { name: /SSE/ })).toBeVisible();
  } finally {
    await server.stop();
    rmSync(out, { recursive: true });
  }
});

test('partly published seconds have no rate', () => {
  const published = [0, 90, 200, 200, 110, 0];
  const run = (index: number) => [{ is: 'begun', index, of: 2, label: '', left_s: 1 }, ...published.map((published) => ({ ...second(published * 50), published })), ended];
  const { seconds } = [...run(0), ...run(1)].reduce(applyEvent, NO_PROGRESS);
  expect(rates(seconds)).toEqual([null, null, 10_000, 10_000, null, null, null, null, 10_000, 10_000, null, null]);
});

/** Opens the options of a scenario, enters parameters, and starts it. */
async function start(page: Page, settings: string): Promise<void> {
  await page.getByRole('button', { name: 'Options of thorsen-broadcast' }).click();
  await page.getByLabel('Parameters').fill(settings);
  await page.getByRole('button', { name: 'Start the run' }).click();
}

test('a scenario is started, watched, stopped, compared and deleted', async ({ page }, info) => {
  test.setTimeout(180_000);
  const out = mkdtempSync(join(tmpdir(), 'millrace-lab-'));
  const server = await serve(undefined, ['--set', `lab.directory=${out}`]);
  const status = page.getByRole('heading', { level: 1 });
  const short = 'clients=5\ntransports=sse\nidle=100ms\ntest=';
  const picture = (name: string) => page.screenshot({ path: info.outputPath(`${name}.png`), fullPage: true });
  try {
    await page.goto(`${server.url}/lab`);
    await expect(page.getByText('No reports yet')).toBeVisible();
    await expect(page.getByRole('heading', { level: 3 })).toHaveCount(24);

    // A wrong value is refused with the reason of the lab, and starts nothing.
    await start(page, 'client=5');
    await expect(page.getByRole('alert')).toContainText('did you mean clients?');
    await page.getByLabel('Parameters').fill('<b>');
    await page.getByRole('button', { name: 'Start the run' }).click();
    await expect(page.getByRole('alert')).toContainText('“<b>” is no parameter');
    await picture('refused');
    await page.getByLabel('Parameters').fill(`${short}6s`);
    await page.getByRole('button', { name: 'Start the run' }).click();
    await expect(status).toHaveText(/Preparing|Run 1 of 1/);
    await expect(status).toBeFocused();
    await expect(status).toHaveText('Finished', { timeout: 60_000 });
    const opens = page.getByRole('link', { name: 'Open the report', exact: true });
    await expect(opens).toBeVisible();
    await expect(page.getByRole('row', { name: /SSE/ })).toContainText('5 clients');

    // The second run has the first one behind it. A page that is opened during the run shows the same.
    await start(page, `${short}8s`);
    await expect(page.getByText('Faint, dashed: the previous run')).toBeVisible({ timeout: 30_000 });
    await page.reload();
    await expect(page.locator('figure .faint path').first()).toHaveAttribute('d', /M.+L/, { timeout: 30_000 });
    await picture('ghost');
    await expect(page.getByRole('button', { name: 'Start storm, quick' })).toBeDisabled();
    // Another page tries to start a second run.
    const second = await page.evaluate(async () => (await fetch('/v1/admin/lab/start', { method: 'POST', body: '{"scenario":"storm"}' })).status);
    expect(second).toBe(409);
    await expect(status).toHaveText('Finished', { timeout: 60_000 });
    await expect(page.getByRole('columnheader', { name: 'p99 before' })).toBeVisible();

    // A long run is stopped, and keeps nothing to compare.
    await start(page, `${short}60s`);
    await page.getByRole('button', { name: 'Stop the run' }).click();
    await expect(status).toHaveText('Finished', { timeout: 30_000 });
    const reports = page.getByRole('region', { name: 'Reports' });
    await expect(reports.getByText('Stopped', { exact: true })).toBeVisible();
    expect(await violations(page, BEST)).toEqual([]);

    for (const { name, colorScheme, viewport } of LOOKS) {
      await page.setViewportSize(viewport);
      await page.emulateMedia({ colorScheme });
      expect(await violations(page, BEST), name).toEqual([]);
      expect(await page.evaluate(() => document.documentElement.scrollWidth - innerWidth), `${name}: no sideways scrolling`).toBeLessThanOrEqual(0);
      await picture(name.replace(' ', '-'));
    }
    await page.emulateMedia({ colorScheme: 'light' });

    // The two finished runs are compared.
    const boxes = reports.getByRole('checkbox');
    await boxes.nth(1).check();
    await boxes.nth(2).check();
    await reports.getByRole('link', { name: 'Compare' }).click();
    await expect(page.getByRole('heading', { level: 2, name: /No verdict|Not comparable/ })).toBeVisible();
    await picture('compared');

    await page.getByRole('link', { name: 'All runs' }).click();
    await reports.getByRole('link', { name: /^Open the report thorsen-broadcast/ }).nth(1).click();
    await expect(page.getByRole('heading', { level: 1, name: 'One source, many readers' })).toBeVisible();
    expect(await violations(page, BEST)).toEqual([]);
    const saved = page.waitForEvent('download');
    await page.getByRole('button', { name: 'Save HTML' }).click();
    expect((await saved).suggestedFilename()).toMatch(/^thorsen-broadcast-.*\.html$/);
    expect(readFileSync(await (await saved).path(), 'utf8')).toContain('id="analysis">{');

    await page.getByRole('link', { name: 'All runs' }).click();
    await expect(reports.getByRole('listitem')).toHaveCount(3);
    await reports.getByRole('button', { name: /^Delete/ }).first().click();
    await expect(reports.getByRole('listitem')).toHaveCount(3);
    await reports.getByRole('button', { name: /^Really delete/ }).click();
    await expect(reports.getByRole('listitem')).toHaveCount(2);

    // Addresses of reports that do not exist, or are none.
    for (const bad of ['?report=storm-1', '?report=..', '?report=<img src=x onerror=alert(1)>', '?a=storm-1&b=..']) {
      await page.goto(`${server.url}/lab${bad}`);
      await expect(page.getByRole('heading', { level: 1 })).toHaveText(/cannot be (shown|compared)/);
    }
  } finally {
    await server.stop();
    rmSync(out, { recursive: true });
  }
});

test('a page without an operator shows runs, but starts none', async ({ page }, info) => {
  const secret = '0123456789abcdef0123456789abcdef';
  const out = mkdtempSync(join(tmpdir(), 'millrace-lab-'));
  const server = await serve(undefined, ['--set', 'lab.enabled=on', '--set', `lab.directory=${out}`], { MILLRACE_AUTH__SECRET: secret });
  const token = async (...flags: string[]) => (await exec(binary(), ['token', 'create', '--sub', 'ann', '--subscribe', 'lab/#', '--history', 'lab/#', ...flags], { env: { ...process.env, MILLRACE_AUTH__SECRET: secret } })).stdout.trim();
  try {
    await page.goto(`${server.url}/lab#token=${await token()}`);
    await expect(page.getByText('cannot start them')).toBeVisible();
    await expect(page.getByRole('heading', { name: 'Scenarios' })).toHaveCount(0);
    await page.screenshot({ path: info.outputPath('reader.png'), fullPage: true });
    expect(await violations(page, BEST)).toEqual([]);
    await page.goto(`${server.url}/`);
    await page.goto(`${server.url}/lab#token=${await token('--admin')}`);
    await expect(page.getByRole('button', { name: 'Start storm, quick' })).toBeEnabled();
  } finally {
    await server.stop();
    rmSync(out, { recursive: true });
  }
});

test('the previous run is drawn behind the same measurement', () => {
  const of = { id: 'a', scenario: 's', form: 'quick' as const, set: {}, version: '1', started_ms: 1, ended_ms: 2, outcome: 'passed' as const, detail: null };
  const measured = (index: number, label: string, rates: readonly number[]) => [{ is: 'begun', index, of: 2, label, left_s: 1 }, ...rates.map((p99_us, at_s) => ({ ...second(1), at_s, p99_us })), ended];
  const ghost = ghostOf(of, [...measured(0, 'one', [1, 2, 3]), ...measured(1, 'two', [4, 5, 6])]);
  // The measurements are in another order now, and the second one has just begun.
  const current = [...measured(0, 'two', [0, 0]), ...measured(1, 'one', [0]).slice(0, -1)].reduce(applyEvent, NO_PROGRESS).seconds;
  const points = ghostPoints(ghost, current, (second) => second.p99_us);
  expect(points).toEqual([{ x: 0, y: 4 }, { x: 1, y: 5 }, { x: 1.5, y: null }, { x: 2, y: 1 }, { x: 3, y: 2 }, { x: 4, y: 3 }]);
});

test('the newest run of the same settings is the previous one', () => {
  const report = (id: string, set: Record<string, string>, more = {}) => ({ id, scenario: 's', form: 'quick' as const, set, version: '1', started_ms: 1, ended_ms: 2, outcome: 'passed' as const, detail: null, bytes: 1, has_recording: true, ...more });
  const reports = [report('e', {}), report('d', {}, { form: 'full' }), report('c', { clients: '9' }), report('b', {}, { has_recording: false }), report('a', {})];
  const previous = (id: string, set: Record<string, string>) => previousOf({ id, scenario: 's', form: 'quick', set }, reports)?.id;
  expect([previous('e', {}), previous('e', { clients: '9' }), previous('e', { clients: '1' }), previous('c', {}), previous('a', {})]).toEqual(['a', 'c', 'c', 'a', undefined]);
});
