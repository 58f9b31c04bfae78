// The live page of the laboratory, told what `millrace lab run --live` tells it.
import { expect } from '@playwright/test';
import { LOOKS, test, url, violations } from './page.ts';

const second = (delivered: number) => ({
  is: 'second', at_s: 1, published: 200, delivered, p50_us: 900, p99_us: 4200, server_cpu_cores: 0.4, generator_cpu_cores: 0.2, server_memory_bytes: 8_000_000,
});
const ended = { is: 'ended', target: 'millrace', transport: 'sse', load: { value: 50, counts: 'clients' }, repeat: 0, delivered: 20_000, lost: 0, p50_us: 900, p99_us: 4200, is_valid: true, missed: [] };

const tell = async (...events: object[]) => {
  for (const event of events) {
    const answer = await fetch(url('/v1/channels/lab/live'), { method: 'POST', headers: { 'content-type': 'application/json' }, body: JSON.stringify(event) });
    expect(answer.status).toBe(200);
  }
};

for (const { name, ...look } of LOOKS) {
  test.describe(name, () => {
    test.use(look);

    test('the live page follows a run from its beginning', async ({ page, clean }, info) => {
      await tell({ is: 'planned', runs: 3, done: 0, estimate_s: 90 }, { is: 'begun', index: 0, of: 3, label: 'millrace sse, 50 clients', left_s: 90 }, second(9_000));
      // Opened late, it knows what has been.
      await page.goto(url('/lab'));
      const status = page.getByRole('heading', { level: 1 });
      await expect(status).toHaveText('Run 1 of 3');
      await expect(page.getByText('millrace sse, 50 clients')).toBeVisible();

      await tell(second(10_000), ended, { is: 'begun', index: 1, of: 3, label: 'millrace websocket, 50 clients', left_s: 60 });
      await expect(status).toHaveText('Run 2 of 3');
      await expect(page.getByRole('row', { name: /Millrace SSE/ })).toContainText('4.2 ms');
      await expect(page.getByRole('img', { name: /^Deliveries per second.*10 k/ })).toBeVisible();
      expect(await violations(page)).toEqual([]);
      expect(await page.evaluate(() => document.documentElement.scrollWidth - innerWidth), 'no sideways scrolling').toBeLessThanOrEqual(0);
      await page.screenshot({ path: info.outputPath('lab.png'), fullPage: true });

      await tell({ is: 'finished' });
      await expect(status).toHaveText('Finished');
    });
  });
}
