// The documentation at /docs, light and dark, on a phone and on a desktop.
import { expect } from '@playwright/test';
import { BEST, LOOKS, test, url, violations } from './page.ts';

for (const { name, ...look } of LOOKS) {
  test.describe(name, () => {
    test.use(look);

    test('documents open, and their links lead on', async ({ page, clean }, info) => {
      await page.goto(url('/docs'));
      expect(new URL(page.url()).pathname).toBe('/docs/');
      await expect(page.getByRole('heading', { name: /^Millrace/, level: 1 })).toBeVisible();
      expect(await violations(page, BEST)).toEqual([]);
      expect(await page.evaluate(() => document.documentElement.scrollWidth - innerWidth), 'no sideways scrolling').toBeLessThanOrEqual(0);
      await page.screenshot({ path: info.outputPath('home.png') });

      await page.locator('main').getByRole('link', { name: 'Protocol', exact: true }).click();
      await expect(page.getByRole('heading', { name: /^The Millrace protocol/, level: 1 })).toBeVisible();
      expect(new URL(page.url()).pathname).toBe('/docs/reference/protocol');
      expect(await violations(page, BEST)).toEqual([]);
      expect(await page.evaluate(() => document.documentElement.scrollWidth - innerWidth), 'no sideways scrolling').toBeLessThanOrEqual(0);
      await page.screenshot({ path: info.outputPath('protocol.png') });

      await page.reload();
      await expect(page.getByRole('heading', { name: /^The Millrace protocol/, level: 1 })).toBeVisible();
      const dark = await page.evaluate(() => document.documentElement.classList.contains('dark'));
      expect(dark, 'the colors of the system').toBe(look.colorScheme === 'dark');
    });

    // Colors do not change what the search does.
    if (look.colorScheme === 'light') test('search finds a term', async ({ page, clean }, info) => {
      await page.goto(url('/docs/'));
      await page.getByRole('button', { name: 'Search' }).click();
      await page.getByRole('searchbox').fill('heartbeat');
      const found = page.getByRole('option').first();
      await expect(found).toBeVisible();
      await page.screenshot({ path: info.outputPath('search.png') });
      await found.click();
      await expect(page).toHaveURL(/\/docs\/.+/);
      await expect(page.locator('main')).toContainText(/heartbeat/i);
    });
  });
}

test('documents have clean addresses, a tag, and the policy of all pages', async ({ request }) => {
  const moved = await request.get(url('/docs/lab'), { maxRedirects: 0 });
  expect([moved.status(), moved.headers().location]).toEqual([308, '/docs/lab/']);
  const page = await request.get(url('/docs/reference/config'), { headers: { 'accept-encoding': 'br' } });
  const { etag, 'content-encoding': coding, 'content-security-policy': policy } = page.headers();
  expect([page.status(), coding]).toEqual([200, 'br']);
  expect(policy).toBe((await request.get(url('/'))).headers()['content-security-policy']);
  expect(policy!.split(/; */).find((part) => part.startsWith('script-src') || part.startsWith('default-src'))).toBe("default-src 'self'");
  const again = await request.get(url('/docs/reference/config'), { headers: { 'if-none-match': etag! } });
  expect(again.status()).toBe(304);
});

test('every page leads to the documents', async ({ page }) => {
  for (const path of ['/', '/carcare', '/rooms', '/rooms/docs-link', '/gateway', '/gateway/docs-link', '/gateway/docs-link?device', '/lab', '/link', '/ball', '/arm', '/battery', '/no/such/page']) {
    await page.goto(url(path));
    await expect(page.locator('a[href="/docs/"]'), path).toBeVisible();
  }
});
