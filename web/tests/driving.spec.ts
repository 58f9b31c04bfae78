import { expect, type Page } from '@playwright/test';
import { BEST, LOOKS, test, violations } from './page.ts';
import { serve, type Server } from './server.ts';

test.use({ contextOptions: { reducedMotion: 'reduce' } });
// One server for all tests: each uses cars of its own.
let server: Server;
test.beforeAll(async () => {
  server = await serve('127.0.0.1:0', ['--set', 'carcare.feedback=true', '--set', 'carcare.groups={ north = ["1", "2"] }']);
});
test.afterAll(() => server.stop());

interface Fields {
  [field: string]: unknown;
}

async function send(records: Fields[]): Promise<void> {
  const response = await fetch(`${server.url}/rest/input`, {
    method: 'POST',
    headers: { 'Content-Type': 'application/x-ndjson' },
    body: records.map((record) => JSON.stringify(record)).join('\n'),
  });
  expect(response.status).toBe(200);
}

/** Returns records of one second each: a drive that ends `agoS` seconds ago, with a harsh braking in its middle. */
function drive(carId: number, { agoS = 0, seconds = 120, extra = {} as Fields } = {}): Fields[] {
  const start = Math.floor(Date.now() / 1000) - agoS - seconds;
  return Array.from({ length: seconds }, (_, i) => {
    const speed = i < 14 ? i : i === 60 ? 9 : i === 61 ? 4 : i > 61 && i < 76 ? 4 + (i - 61) * 0.7 : 14;
    return {
      carId, timestamp: (start + i) * 1000, speed, gpsLatitude: 47.53 + i * 1e-4, gpsLongitude: 19.08, heading: 0, accuracy: 4,
      rpm: 1500, coolantTemperature: 90, gear: 4, fuel: 60, oilPressure: 280, ...(i === seconds - 20 ? extra : {}),
    };
  });
}

async function open(page: Page, path: string): Promise<void> {
  await page.goto(`${server.url}${path}`);
  await page.locator('[data-loaded=true]').waitFor({ timeout: 30_000 });
}

test('a drive has a score, events and a suggestion', async ({ page }) => {
  await open(page, '/carcare?car=1');
  await send(drive(1, { extra: { troubleCodes: ['P0301'], lamp: true } }));
  const panel = page.getByRole('region', { name: 'Driving' });
  await expect(panel.getByRole('status')).toContainText(/Harsh braking|Trouble code|Engine lamp/);
  // One severe maneuver on less than 10 km: 4 points count as 40.
  await expect(panel.getByLabel('Score 60 of 100').first()).toBeVisible({ timeout: 20_000 });
  await panel.getByText('Drives').click();
  await expect(panel).toContainText('1 × Harsh braking');
  await expect(panel).toContainText(/1\.\d km/);
});

test('alerts say what the code means and what to do', async ({ page }) => {
  await send(drive(2, { extra: { troubleCodes: ['P0301'] } }));
  await open(page, '/carcare');
  await page.getByText('Alerts', { exact: false }).first().click();
  const alert = page.getByRole('button', { name: /Car 2: Trouble code P0301/ });
  await expect(alert).toContainText('Cylinder 1 misfires');
  await expect(alert).toContainText('Drive gently');
  await alert.click();
  await expect(page.getByRole('heading', { name: 'Car 2' })).toBeVisible();
});

test('the list is filtered by group and sorted by score', async ({ page }) => {
  await send([...drive(2), ...drive(7, { seconds: 30 })]);
  await open(page, '/carcare');
  const cars = page.getByRole('button', { name: /^live Car|Car \d/ });
  await page.getByRole('combobox', { name: /^Show/ }).selectOption({ label: 'Group north' });
  await expect(cars.filter({ hasText: 'Car 7' })).toHaveCount(0);
  await expect(cars.filter({ hasText: 'Car 2' })).toHaveCount(1);
  await page.getByRole('combobox', { name: /^Show/ }).selectOption({ label: 'All cars' });
  await page.getByRole('combobox', { name: /^Sort by/ }).selectOption({ label: 'Score, lowest first' });
  await expect(cars.filter({ hasText: 'Car 7' })).toHaveCount(1);
});

test('a geofence is added, reports an entry, and is deleted', async ({ page }) => {
  await send(drive(3, { agoS: 300, seconds: 40 }));
  await open(page, '/carcare?car=3');
  if (await page.getByRole('button', { name: /^Fleet/ }).isVisible()) await page.getByRole('button', { name: /^Fleet/ }).click();
  await page.getByText('Geofences').first().click();
  await page.getByLabel('Name').fill('Depot');
  await page.getByLabel('Radius in meters').fill('300');
  await page.getByRole('button', { name: 'Add around the middle of the map' }).click();
  await expect(page.getByRole('button', { name: 'Delete Depot' })).toBeVisible();
  // The service reads the geofences each second.
  const state = async () => (await fetch(`${server.url}/v1/channels/carcare/geofences?state`)).text();
  await expect.poll(state).toContain('Depot');
  // Each attempt is another car: a second drive of one car at the same time would be late.
  let car = 30;
  const alerts = async () => {
    await send(drive(car++, { seconds: 100 }));
    return (await fetch(`${server.url}/v1/channels/carcare/alerts?state`)).text();
  };
  await expect.poll(alerts, { timeout: 20_000 }).toMatch(/geofence-(enter|exit)/);
  await page.getByRole('button', { name: 'Delete Depot' }).click();
  await expect(page.getByRole('button', { name: 'Delete Depot' })).toBeHidden();
});

test('units and language are kept', async ({ page }) => {
  await send(drive(4));
  await open(page, '/carcare?car=4');
  await page.getByText('Units and language').click();
  await page.getByLabel('Units').selectOption({ label: 'Miles' });
  await expect(page.getByRole('meter', { name: 'Speed' })).toHaveAttribute('aria-valuetext', /mph/);
  await page.getByLabel('Language').selectOption({ label: 'Deutsch' });
  await expect(page.getByRole('region', { name: 'Fahrweise' })).toBeVisible();
  await page.reload();
  await expect(page.getByRole('heading', { name: 'Auto 4' })).toBeVisible();
  await expect(page.locator('html')).toHaveAttribute('lang', 'de');
});

for (const { name, ...look } of LOOKS)
  test(`driving is accessible: ${name}`, async ({ browser }) => {
    const page = await browser.newPage({ ...look, reducedMotion: 'reduce' });
    await send(drive(5, { extra: { troubleCodes: ['P0420'] } }));
    await open(page, '/carcare?car=5');
    await expect(page.getByRole('region', { name: 'Driving' }).getByLabel(/Score/).first()).toBeVisible({ timeout: 20_000 });
    const shot = process.env.DRIVING_SHOTS;
    if (shot) await page.screenshot({ path: `${shot}/car-${name.replace(' ', '-')}.png` });
    expect(await violations(page, BEST)).toEqual([]);
    const tab = page.getByRole('button', { name: /^Fleet/ });
    if (await tab.isVisible()) await tab.click();
    await page.getByText('Alerts').first().click();
    await page.getByText('Geofences').first().click();
    expect(await violations(page, BEST)).toEqual([]);
    if (shot) await page.screenshot({ path: `${shot}/fleet-${name.replace(' ', '-')}.png` });
    await page.close();
  });
