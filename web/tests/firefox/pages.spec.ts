// All pages in Firefox, light and dark, on a phone and on a desktop: they open without errors, load nothing from other
// machines, and have no accessibility violations.
import { writeFileSync } from 'node:fs';
import { pathToFileURL } from 'node:url';
import { expect } from '@playwright/test';
import { BEST, violations, WCAG } from '../page.ts';
import { filled, recorded } from '../report-file.ts';
import { click, SCHEMES, test, type Page } from './fox.ts';

const VIEWPORTS = [{ width: 1280, height: 800 }, { width: 390, height: 844 }];

/** Checks the page in each of these sizes. */
async function check(page: Page, tags = BEST, viewports = VIEWPORTS): Promise<void> {
  for (const viewport of viewports) {
    await page.setViewport(viewport);
    expect.soft(await violations(page, tags), `${page.url()}, ${viewport.width} px wide`).toEqual([]);
    expect.soft(await page.evaluate(() => document.documentElement.scrollWidth - innerWidth), 'no sideways scrolling').toBeLessThanOrEqual(0);
  }
}

/** Paths, and an element that each page shows as soon as it is ready. */
const PAGES = {
  '/': '.echo .open',
  '/lab': 'h1',
  '/link': 'h2',
  '/rooms': 'form',
  '/rooms/fox': '.devices [aria-pressed=true]',
  '/gateway': 'form',
  '/gateway/fox': '[role=status]',
  '/gateway/fox?device': 'form',
  '/ball': '[role=status]',
  '/arm': 'form',
  '/battery': 'form',
  '/ticker': '.none',
  '/race': '[data-lane=polling]',
  '/ui': '[data-figure=Connections]',
  '/ui/connections': 'tbody tr',
  '/ui/channels': 'tbody tr',
  '/ui/channels?channel=cars/1/telemetry': '[data-offset]',
  '/ui/slow': '.empty h2',
  '/ui/cluster': '[data-node]',
  '/ui/threads': '[data-thread]',
  '/ui/rooms': '.empty h2',
  '/ui/hooks': '.empty h2',
  '/ui/config': '[data-setting]',
  '/chat': '.empty',
  '/docs/': 'main h1',
  '/docs/reference/protocol': 'main h1',
};

for (const scheme of SCHEMES) {
  test.describe(scheme, () => {
    test.use({ scheme });

    test('the preference for this color scheme reaches the pages', async ({ open }) => {
      const page = await open('/');
      expect(await page.evaluate((scheme) => matchMedia(`(prefers-color-scheme: ${scheme})`).matches, scheme)).toBe(true);
    });

    for (const [path, ready] of Object.entries(PAGES)) {
      test(`${path} is accessible`, async ({ open }) => {
        const page = await open(path);
        await page.waitForSelector(ready, { timeout: 20_000 });
        await check(page);
      });
    }

    test('CarCare is accessible', async ({ open }) => {
      const page = await open('/carcare?car=1');
      await page.waitForSelector('[data-loaded=true]', { timeout: 60_000 });
      await page.waitForSelector('[role=meter]');
      await check(page, WCAG);
      await click(page, '[popovertarget=transports]');
      await page.waitForSelector('#transports input', { visible: true });
      await check(page, WCAG);
    });

    test('the report is accessible', async ({ open }, info) => {
      const file = info.outputPath('report.html');
      writeFileSync(file, filled(recorded('thorsen-broadcast')));
      const page = await open(pathToFileURL(file).href);
      await page.waitForSelector('#verdict');
      // Dark in one size only, because axe needs seconds for this page.
      await check(page, WCAG, scheme === 'dark' ? VIEWPORTS.slice(0, 1) : VIEWPORTS);
    });

    test.describe(() => {
      // Firefox logs the status 404 as an error.
      test.use({ mayComplain: true });

      test('an unknown address is an accessible page', async ({ open }) => {
        const page = await open('/no/such/page');
        await page.waitForSelector('h1');
        await check(page);
      });
    });
  });
}
