// The start page, CarCare and the page for unknown addresses, light and dark, on a phone and on a desktop: loading,
// requests to other hosts, and accessibility.
import { expect } from '@playwright/test';
import { BEST, LOOKS, openCar, test, url, violations } from './page.ts';

for (const { name, ...look } of LOOKS) {
  test.describe(name, () => {
    test.use(look);

    test('start page', async ({ page, clean }, info) => {
      await page.goto(url('/'));
      await expect(page.getByText('Connected over')).toBeVisible();
      await expect(page.getByRole('heading', { name: 'This server' })).toBeVisible();
      await expect(page.getByText(url('/').slice(0, -1), { exact: true })).toBeVisible();
      expect(await violations(page, BEST)).toEqual([]);
      expect(await page.evaluate(() => document.documentElement.scrollWidth - innerWidth), 'no sideways scrolling').toBeLessThanOrEqual(0);
      await page.screenshot({ path: info.outputPath('start.png'), fullPage: true });
    });

    test('an unknown address shows a page with links', async ({ page }, info) => {
      const answer = await page.goto(url('/no/such/page'));
      expect(answer?.status()).toBe(404);
      await expect(page.getByRole('heading', { name: 'This page does not exist' })).toBeVisible();
      expect(await violations(page, BEST)).toEqual([]);
      expect(await page.evaluate(() => document.documentElement.scrollWidth - innerWidth), 'no sideways scrolling').toBeLessThanOrEqual(0);
      await page.screenshot({ path: info.outputPath('404.png'), fullPage: true });
      await page.getByRole('link', { name: 'Start page' }).click();
      await expect(page.getByRole('heading', { name: 'Millrace', level: 1 })).toBeVisible();
    });

    test('CarCare', async ({ page, clean }, info) => {
      await openCar(page);
      expect(await violations(page)).toEqual([]);
      await page.screenshot({ path: info.outputPath('carcare.png') });

      await page.getByRole('button', { name: /^Transport/ }).click();
      await expect(page.getByRole('radio', { name: /WebSocket/ })).toBeVisible();
      expect(await violations(page)).toEqual([]);
      await page.screenshot({ path: info.outputPath('transports.png') });
      await page.keyboard.press('Escape');

      if (look.hasTouch) await page.getByRole('button', { name: /^Fleet/ }).click();
      await expect(page.getByRole('button', { name: /Car 6/ })).toBeVisible();
      expect(await violations(page)).toEqual([]);
      await page.screenshot({ path: info.outputPath('fleet.png') });
    });
  });
}

test('programs get problem details for an unknown address', async ({ request }) => {
  for (const [path, accept, method] of [['/nothing', '*/*', 'GET'], ['/v1/nothing', 'text/html', 'GET'], ['/nothing', 'text/html', 'POST']] as const) {
    const answer = await request.fetch(url(path), { method, headers: { accept } });
    expect([answer.status(), answer.headers()['content-type']], `${method} ${path} as ${accept}`).toEqual([404, 'application/problem+json']);
    expect(await answer.json()).toMatchObject({ code: 'not_found' });
  }
});

test.describe('targets', () => {
  test.use({ viewport: { width: 390, height: 844 }, hasTouch: true });

  test('CarCare controls are large enough to touch', async ({ page }) => {
    await openCar(page);
    const small = () =>
      page.evaluate(() =>
        [...document.querySelectorAll<HTMLElement>('button, a[href], input:not([type=radio]), label:has(input[type=radio])')]
          .filter((element) => element.checkVisibility())
          .map((element) => ({ box: element.getBoundingClientRect(), html: element.outerHTML.slice(0, 90) }))
          .filter(({ box }) => box.width < 44 || box.height < 44)
          .map(({ box, html }) => `${box.width} x ${box.height}: ${html}`),
      );
    expect(await small()).toEqual([]);
    await page.getByRole('button', { name: /^Fleet/ }).click();
    await page.getByRole('button', { name: /^Transport/ }).click();
    expect(await small()).toEqual([]);
  });

  test('reduced motion updates once per second', async ({ page }) => {
    await page.emulateMedia({ reducedMotion: 'reduce' });
    await openCar(page);
    /**
     * Times at which the trace changed, ms. Animation frames would be 16 ms apart, and updates of the figures 250 ms.
     */
    const changes = await page.evaluate(
      () =>
        new Promise<number[]>((resolve) => {
          const times: number[] = [];
          const observer = new MutationObserver(() => {
            times.push(performance.now());
            if (times.length < 3) return;
            observer.disconnect();
            resolve(times);
          });
          observer.observe(document.querySelector('figure path.line')!, { attributes: true });
        }),
    );
    for (let i = 1; i < changes.length; i++) expect(changes[i]! - changes[i - 1]!).toBeGreaterThan(900);
  });
});
