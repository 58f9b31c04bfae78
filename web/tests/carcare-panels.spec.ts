// Questions and files to cars, which the real simulator answers, and the German words of all parts.
import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { expect, type Page } from '@playwright/test';
import { ADVICE, CODES, meaningOf } from '../src/pages/carcare/panels/trouble.de.ts';
import { BEST, LOOKS, test, url, violations } from './page.ts';
import { serve, simulate, type Server } from './server.ts';

test.use({ contextOptions: { reducedMotion: 'reduce' } });
let server: Server;
test.beforeAll(async () => {
  server = await serve('127.0.0.1:0', ['--set', 'namespaces.files.bytes_max=67108864']);
});
test.afterAll(() => server.stop());

async function open(page: Page, path: string): Promise<void> {
  await page.goto(`${server.url}${path}`);
  await page.locator('[data-loaded=true]').waitFor({ timeout: 30_000 });
}
const section = (page: Page, title: string) => page.locator('details', { has: page.locator('summary', { hasText: title }) });
async function openSection(page: Page, title: string): Promise<void> {
  await page.locator('summary', { hasText: title }).click();
}

test('a car answers what was asked while it was away', async ({ page }) => {
  await fetch(`${server.url}/rest/input`, { method: 'POST', body: JSON.stringify({ carId: 1, timestamp: Date.now(), gpsLatitude: 47.53, gpsLongitude: 19.08, speed: 3, rpm: 900, coolantTemperature: 80 }) });
  await open(page, '/carcare?car=1');
  await openSection(page, 'Ask the car');
  const panel = section(page, 'Ask the car');
  await expect(panel.getByText('No questions in the last 24 hours.')).toBeVisible();
  await panel.getByRole('button', { name: 'Fuel level' }).click();
  const first = panel.getByRole('listitem').filter({ hasText: 'Fuel level' });
  await expect(first).toContainText('waiting for the car');
  await expect(first).toContainText('expires in 24 h');
  // Another application asks, with a time to live that ends before the car returns.
  await fetch(`${server.url}/v1/requests/1?ttl=1`, { method: 'POST', body: '{"ask":"position"}' });
  const late = panel.getByRole('listitem').filter({ hasText: 'Position now' });
  await expect(late).toContainText('expired');

  const fleet = simulate(server.url, 2);
  try {
    await expect(first).toContainText(/answered\s*\d+ % of a full tank/);
    await panel.getByRole('button', { name: 'Position now' }).click();
    await expect(late.first()).toContainText(/\d+\.\d{5}°, \d+\.\d{5}°/);
    await panel.getByRole('button', { name: 'Trouble codes', exact: true }).click();
    await expect(panel.getByRole('listitem').filter({ hasText: /^Trouble codes/ })).toContainText(/No trouble codes are stored|P0/);
    await panel.getByRole('button', { name: 'Clear trouble codes' }).click();
    await expect(panel.getByText('Clear the trouble codes of car 1?')).toBeVisible();
    await panel.getByRole('button', { name: 'Clear them' }).click();
    await expect(panel.getByRole('listitem').filter({ hasText: 'Clear trouble codes' })).toContainText(/There were no trouble codes|Cleared/);
    await expect(late.filter({ hasText: 'expired' })).toHaveCount(1);
  } finally {
    await fleet.stop();
  }
});

test('files go to the car and come from it', async ({ page }) => {
  const fleet = simulate(server.url, 2);
  try {
    await open(page, '/carcare?car=2');
    await openSection(page, 'Files');
    const panel = section(page, 'Files');
    const content = Buffer.alloc(700_000, 'settings ');
    await panel.getByLabel('Send a file to the car').setInputFiles({ name: 'settings.bin', mimeType: 'application/octet-stream', buffer: content });
    await expect(panel.getByText(`SHA-256 ${createHash('sha256').update(content).digest('hex')}`)).toBeVisible();
    await expect(panel.getByText(/The car has taken settings.bin, 700[.]0 kB/)).toBeVisible();

    await panel.getByRole('button', { name: 'Ask for the file' }).click();
    const save = panel.getByRole('button', { name: 'Download drive.csv' });
    await expect(save).toBeVisible();
    const downloading = page.waitForEvent('download');
    await save.click();
    const download = await downloading;
    expect(download.suggestedFilename()).toBe('drive.csv');
    expect(readFileSync(await download.path(), 'utf8')).toMatch(/^time,lat,lon,elevation/);
    await expect(panel.getByText('drive.csv is complete, and its SHA-256 is right.')).toBeVisible();

    await panel.getByLabel('Name of the file on the car').fill('no such file');
    await panel.getByRole('button', { name: 'Ask for the file' }).click();
    await expect(panel.getByText('the car has only these files: drive.csv, car.json')).toBeVisible();
  } finally {
    await fleet.stop();
  }
});

test('a transfer is paused, resumed and canceled', async ({ page }) => {
  // A slow disk: a chunk per second. Otherwise the transfer ends before the clicks, on a busy machine.
  await page.addInitScript(() => {
    const read = Blob.prototype.arrayBuffer;
    Blob.prototype.arrayBuffer = async function (this: Blob) {
      await new Promise((resolve) => setTimeout(resolve, 1000));
      return read.call(this);
    };
  });
  await open(page, '/carcare?car=9');
  await openSection(page, 'Files');
  const panel = section(page, 'Files');
  await panel.getByLabel('Send a file to the car').setInputFiles({ name: 'long.bin', mimeType: 'application/octet-stream', buffer: Buffer.alloc(20_000_000, 7) });
  await panel.getByRole('button', { name: 'Pause long.bin' }).click();
  await expect(panel.getByText('(paused)')).toBeVisible();
  await panel.getByRole('button', { name: 'Resume long.bin' }).click();
  await expect(panel.getByText('(paused)')).toBeHidden();
  await panel.getByRole('button', { name: 'Cancel long.bin' }).click();
  await expect(panel.getByText('long.bin was canceled.')).toBeVisible();
  await expect(panel.getByLabel('Send a file to the car')).toBeEnabled();
});

test('each trouble code and each advice has a German text', () => {
  const source = (name: string) => readFileSync(new URL(`../../crates/driving/src/trouble/${name}.rs`, import.meta.url), 'utf8');
  const codes = [...source('table').matchAll(/^ {4}\("([A-Z0-9]{5})",/gm)].map((found) => found[1]!);
  expect(codes.length).toBeGreaterThan(120);
  expect(Object.keys(CODES).sort()).toEqual(codes.sort());
  const advice = source('mod').slice(source('mod').indexOf('pub fn advice'), source('mod').indexOf('fn severity'));
  const texts = [...advice.matchAll(/"([^"]+)"/g)].map((found) => found[1]!);
  expect(Object.keys(ADVICE).sort()).toEqual(texts.sort());
  expect([meaningOf('P030104'), meaningOf('P1234'), meaningOf('U0999')]).toEqual(['Zylinder 1 mit Fehlzündungen', 'Fehler am Motor oder Getriebe, mit einem Code des Herstellers', 'Fehler im Netz der Steuergeräte']);
});

test('every part of the page is in German', async ({ page }) => {
  await page.addInitScript(() => localStorage.setItem('carcare.language', 'de'));
  await page.goto(url('/carcare?car=1'));
  await page.locator('[data-loaded=true]').waitFor({ timeout: 30_000 });
  await expect(page.getByRole('heading', { name: 'Auto 1' })).toBeVisible();
  await expect(page.getByRole('img', { name: /Tempo in 2 Minuten: jetzt \d+ km\/h/ })).toBeVisible();
  for (const title of ['Das Auto fragen', 'Dateien', 'Meldungen', 'Gebiete', 'Benachrichtigungen', 'Einheiten und Sprache']) await openSection(page, title);
  await expect(page.getByRole('button', { name: 'Tankfüllung' })).toBeVisible();
  await expect(page.getByText('Dieser Server hat noch keinen Schlüssel für Web Push')).toBeVisible();
  await page.getByRole('button', { name: 'Tankfüllung' }).click();
  await expect(page.getByRole('listitem').filter({ hasText: 'Tankfüllung' }).first()).toContainText(/beantwortet\s*\d+ % des Tanks/);
  await page.getByRole('button', { name: 'Fahrt abspielen' }).click();
  await expect(page.getByRole('heading', { name: 'Fahrt von Auto 1' })).toBeVisible();
  await expect(page.getByText(/\d+ Datensätze, \d+,\d km in/)).toBeVisible();
  await expect(page.getByRole('button', { name: 'Abspielen' })).toBeVisible();
  // No English text is left, except for the names of streets.
  const text = await page.locator('main').innerText();
  expect(text).not.toMatch(/\b(the|and|of|Speed|Save|Files|ago|Alerts|car)\b/);
});

for (const { name, ...look } of LOOKS)
  test(`questions and files are accessible: ${name}`, async ({ browser }) => {
    const context = await browser.newContext({ ...look, reducedMotion: 'reduce' });
    const page = await context.newPage();
    const fleet = simulate(server.url, 2);
    try {
      await open(page, '/carcare?car=1');
      await openSection(page, 'Ask the car');
      await page.getByRole('button', { name: 'Position now' }).click();
      await expect(section(page, 'Ask the car').getByRole('listitem').first()).toContainText('answered');
      await page.getByRole('button', { name: 'Clear trouble codes' }).click();
      await openSection(page, 'Files');
      await page.getByRole('button', { name: 'Ask for the file' }).click();
      await expect(page.getByRole('button', { name: 'Download drive.csv' }).first()).toBeVisible();
      expect(await violations(page, BEST)).toEqual([]);
      const shots = process.env.CARCARE_SHOTS;
      if (shots) {
        await page.getByRole('button', { name: 'Position now' }).scrollIntoViewIfNeeded();
        await page.screenshot({ path: `${shots}/ask-${name.replace(' ', '-')}.png` });
        await page.getByRole('button', { name: 'Download drive.csv' }).first().scrollIntoViewIfNeeded();
        await page.screenshot({ path: `${shots}/files-${name.replace(' ', '-')}.png` });
      }
    } finally {
      await fleet.stop();
      await context.close();
    }
  });
