// The live page of the lab: with the messages that `millrace lab run --live` publishes, and with a real run.
import { execFile } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { expect } from '@playwright/test';
import { NO_PROGRESS, rates, applyEvent } from '../src/pages/lab/events.ts';
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
  const server = await serve();
  const out = mkdtempSync(join(tmpdir(), 'millrace-lab-'));
  try {
    await page.goto(`${server.url}/lab`);
    await expect(page.getByRole('heading', { level: 1 })).toHaveText('No run yet');
    expect(await violations(page, BEST)).toEqual([]);
    await page.screenshot({ path: info.outputPath('none.png'), fullPage: true });
    // The command that the page shows, with shorter settings.
    const [program, ...words] = (await page.locator('code', { hasText: 'millrace lab run' }).innerText()).split(' ');
    expect([program, words.at(-1)]).toEqual(['millrace', `--live=${server.url}`]);
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
