// The arm-probe: ten wearers in one page, and one in another tab, over each topology.
import { expect, type Page } from '@playwright/test';
import { topologyOf, wearersOf } from '../src/pages/arm/topology.ts';
import { BEST, LOOKS, test, url, violations } from './page.ts';
import { serve } from './server.ts';

const figure = async (page: Page, name: string): Promise<number> => Number(await page.locator(`[data-figure=${name}]`).textContent());
const PATIENCE = { timeout: 90_000 };

test('an address has a topology and a number of wearers', () => {
  expect([topologyOf('star').name, topologyOf('nonsense').name, topologyOf(null).name]).toEqual(['star', 'mesh', 'mesh']);
  expect([wearersOf('3'), wearersOf('99'), wearersOf('-1'), wearersOf('x'), wearersOf(null)]).toEqual([3, 10, 1, 10, 10]);
});

async function start(page: Page, topology: string, group: string, wearers = 10): Promise<void> {
  await page.goto(url(`/arm?${new URLSearchParams({ topology, group, wearers: String(wearers) })}`));
  await page.getByRole('button', { name: 'Start' }).click();
  await expect(page.getByText('All wearers are connected')).toBeVisible(PATIENCE);
}

for (const topology of ['mesh', 'star', 'relay', 'server']) {
  test(`a movement reaches nine wearers: ${topology}`, async ({ page, clean }) => {
    // A test that runs again needs another group: the places of the first one are held for a while.
    await start(page, topology, `nine-${topology}-${test.info().retry}`);
    await page.getByRole('button', { name: 'Move wearer 1:' }).click();
    await expect(page.getByText('moved: 9 of 9 vibrated')).toBeVisible();
    await page.getByLabel('Move 4 times per second').check();
    await expect.poll(() => figure(page, 'moved'), PATIENCE).toBeGreaterThanOrEqual(20);
    await page.getByLabel('Move 4 times per second').uncheck();
    await expect.poll(async () => (await figure(page, 'vibrated')) - 9 * (await figure(page, 'moved'))).toBe(0);
    expect(await figure(page, 'missing')).toBe(0);
    expect(await figure(page, 'p99')).toBeGreaterThan(0);
    await expect(page.locator('[data-figure=path]')).toHaveText(topology === 'relay' ? 'relay' : topology === 'server' ? 'server' : /host|prflx/);
  });
}

test('a page that gets too few relays says so', async ({ page }) => {
  const own = await serve(undefined, ['--set', 'turn.allocations_per_user_max=2']);
  try {
    await page.goto(`${own.url}/arm?topology=relay&group=few&wearers=3`);
    await page.getByRole('button', { name: 'Start' }).click();
    await expect(page.getByText('turn.allocations_per_user_max')).toBeVisible(PATIENCE);
  } finally {
    await own.stop();
  }
});

test('a wearer of another tab moves those of this one', async ({ page, context, clean }) => {
  await start(page, 'server', 'two-tabs', 3);
  const other = await context.newPage();
  await start(other, 'server', 'two-tabs', 1);
  await other.getByRole('button', { name: 'Move wearer 1:' }).click();
  await expect(page.getByText('moved: 3 of 3 vibrated')).toBeVisible();
  await page.getByRole('button', { name: 'Move wearer 2:' }).click();
  await expect(other.getByText('moved: 1 of 1 vibrated')).toBeVisible();
});

for (const { name, ...look } of LOOKS) {
  test.describe(name, () => {
    test.use(look);

    test('the page before and while wearers move', async ({ page, clean }, info) => {
      const check = async (picture: string): Promise<void> => {
        expect(await violations(page, BEST)).toEqual([]);
        expect(await page.evaluate(() => document.documentElement.scrollWidth - innerWidth), 'no sideways scrolling').toBeLessThanOrEqual(0);
        await page.screenshot({ path: info.outputPath(picture), fullPage: true });
      };
      await page.goto(url('/arm'));
      await check('arm-start.png');
      await start(page, 'star', `look-${name.replace(' ', '-')}`, 10);
      for (const wearer of [1, 4]) await page.getByRole('button', { name: `Move wearer ${wearer}:` }).click();
      await expect(page.getByText('moved: 9 of 9 vibrated').first()).toBeVisible();
      await check('arm.png');
      await page.getByRole('button', { name: 'Stop' }).click();
      await expect(page.getByRole('button', { name: 'Start' })).toBeVisible();
    });
  });
}
