// The page of the lab in Firefox: a real run from its start to its report.
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect } from '@playwright/test';
import { BEST, violations } from '../page.ts';
import { serve } from '../server.ts';
import { SCHEMES, click, isVisible, test, textOf } from './fox.ts';

for (const scheme of SCHEMES) {
  test.describe(scheme, () => {
    test.use({ scheme });

    test('a run is started, watched and opened', async ({ open }, info) => {
      test.setTimeout(120_000);
      const out = mkdtempSync(join(tmpdir(), 'millrace-lab-'));
      const own = await serve(undefined, ['--set', `lab.directory=${out}`]);
      try {
        const page = await open(new URL('/lab', own.url).href);
        await click(page, '[aria-label="Options of thorsen-broadcast"]');
        await page.locator('textarea').fill('clients=5\ntransports=sse\nidle=100ms\ntest=2s');
        await click(page, 'form .primary');
        await expect.poll(() => textOf(page, 'h1'), { timeout: 60_000 }).toBe('Finished');
        await expect.poll(() => isVisible(page, 'a.open')).toBe(true);
        expect(await violations(page, BEST)).toEqual([]);
        await page.screenshot({ path: info.outputPath('lab.png'), fullPage: true });
        await click(page, 'a.open');
        await expect.poll(() => textOf(page, 'h1')).toBe('One source, many readers');
        // Before the server stops, because Firefox logs each refused connection as an error.
        await page.close();
      } finally {
        await own.stop();
        rmSync(out, { recursive: true });
      }
    });
  });
}
