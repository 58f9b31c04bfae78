// Replay in CarCare: a drive that the test published is found, played by mouse and keyboard, and saved unchanged.
import { readFileSync } from 'node:fs';
import { expect, type Download, type Page } from '@playwright/test';
import { LOOKS, openCar, test, url, violations } from './page.ts';

/** Each test uses a car of its own, so that the history contains only the records of that test. */
let car = 900;
const STEP_MS = 1_000;
const COUNT = 2_500;

interface Sent {
  readonly timestamp: number;
  readonly gpsLatitude: number;
  readonly gpsLongitude: number;
  readonly speed: number;
  readonly rpm: number;
  readonly coolantTemperature: number;
  readonly heading?: number;
  readonly gear?: number;
  readonly event?: string;
  readonly code?: string;
}

/**
 * Publishes a drive around the town center: by default more than two pages of history, with one pause and one event.
 */
async function drive(page: Page, count = COUNT): Promise<{ id: number; sent: Sent[] }> {
  const id = ++car;
  const start = Date.now() - (count + 300) * STEP_MS;
  const sent = Array.from({ length: count }, (_, i): Sent => {
    const angle = (i / count) * 2 * Math.PI;
    return {
      timestamp: start + i * STEP_MS + (i >= count / 2 ? 120_000 : 0),
      gpsLatitude: Number((47.4979 + 0.008 * Math.sin(angle)).toFixed(6)),
      gpsLongitude: Number((19.0402 + 0.012 * Math.cos(angle)).toFixed(6)),
      speed: Number((8 + 6 * Math.sin(i / 40)).toFixed(2)),
      rpm: 1500 + (i % 900),
      coolantTemperature: 88,
      heading: (i * 3) % 360,
      gear: 1 + (i % 5),
      ...(i === 10 && { event: 'trouble, "code"\nof a car', code: 'P<0301>' }),
    };
  });
  for (let i = 0; i < sent.length; i += 1000) {
    // Not through `/rest/input`: all other tests would see these records in `fleet`.
    const lines = sent.slice(i, i + 1000).map((record) => JSON.stringify({ channel: `cars/${id}/telemetry`, data: { carId: id, ...record } }));
    const answer = await page.request.post(url('/v1/publish'), { data: lines.join('\n') });
    expect(answer.status()).toBe(200);
  }
  return { id, sent };
}

const slider = (page: Page) => page.getByRole('slider', { name: 'Time' });
const clock = (page: Page) => slider(page).inputValue().then(Number);

async function openReplay(page: Page, id: number): Promise<void> {
  await openCar(page, `/carcare?car=${id}`);
  await page.getByRole('button', { name: 'Replay a drive' }).click();
  await expect(slider(page)).toBeVisible();
}

async function saved(page: Page, name: string): Promise<{ name: string; text: string }> {
  const waiting: Promise<Download> = page.waitForEvent('download');
  await page.getByRole('button', { name }).click();
  const file = await waiting;
  return { name: file.suggestedFilename(), text: readFileSync(await file.path(), 'utf8') };
}

test('keyboard plays a drive', async ({ page, clean }) => {
  const { id, sent } = await drive(page);
  const asked: number[] = [];
  page.on('websocket', (socket) =>
    socket.on('framereceived', ({ payload }) => {
      const found = /"ok":\{"position".*"messages":\[/.test(String(payload)) ? String(payload).match(/"position"/g)!.length - 1 : 0;
      if (found) asked.push(found);
    }),
  );
  await openCar(page, `/carcare?car=${id}&via=websocket`);
  const button = page.getByRole('button', { name: 'Replay a drive' });
  await button.focus();
  asked.length = 0;
  await page.keyboard.press('Enter');
  await expect(page.getByText(`${COUNT.toLocaleString('en')} records`)).toBeVisible();
  // The client reads the history page by page, not in one response.
  expect(asked).toEqual([1000, 1000, 500]);
  await expect(slider(page)).toBeFocused();
  expect(await clock(page)).toBe(sent[0]!.timestamp);

  await page.keyboard.press('ArrowRight');
  await page.keyboard.press('ArrowRight');
  expect(await clock(page)).toBe(sent[2]!.timestamp);
  await expect(slider(page)).toHaveAttribute('aria-valuetext', new RegExp(`, ${Math.round(sent[2]!.speed * 3.6)} km/h`));
  await page.keyboard.press('ArrowLeft');
  expect(await clock(page)).toBe(sent[1]!.timestamp);
  await page.keyboard.press('End');
  expect(await clock(page)).toBe(sent.at(-1)!.timestamp);
  await page.keyboard.press('Home');

  await page.getByRole('button', { name: '16×' }).click();
  await slider(page).focus();
  await page.keyboard.press('Space');
  await expect(page.getByRole('button', { name: 'Pause' })).toBeVisible();
  const [began, beganAt] = [await clock(page), Date.now()];
  await expect.poll(async () => (await clock(page)) - began).toBeGreaterThan(16_000);
  const pace = ((await clock(page)) - began) / (Date.now() - beganAt);
  expect(pace).toBeGreaterThan(10);
  expect(pace).toBeLessThan(22);
  await page.keyboard.press('Space');
  await expect(page.getByRole('button', { name: 'Play' })).toBeVisible();
  const paused = await clock(page);
  await page.evaluate(() => new Promise((frame) => requestAnimationFrame(() => requestAnimationFrame(frame))));
  expect(await clock(page)).toBe(paused);

  await page.keyboard.press('Escape');
  await expect(page.getByRole('button', { name: 'Replay a drive' })).toBeVisible();
});

test('dragging the slider moves the map', async ({ page, clean }) => {
  await page.emulateMedia({ colorScheme: 'light' });
  const { id, sent } = await drive(page);
  await openReplay(page, id);
  const box = (await slider(page).boundingBox())!;
  const [start, end] = [sent[0]!.timestamp, sent.at(-1)!.timestamp];
  await page.mouse.move(box.x + 8, box.y + box.height / 2);
  await page.mouse.down();
  await page.mouse.move(box.x + box.width * 0.75, box.y + box.height / 2, { steps: 8 });
  await page.mouse.up();
  const share = ((await clock(page)) - start) / (end - start);
  expect(share).toBeGreaterThan(0.7);
  expect(share).toBeLessThan(0.8);
  const at = await clock(page);
  const shown = sent.findLast((record) => record.timestamp <= at)!;
  await expect(page.locator('dl').filter({ hasText: 'Engine' }).locator('dd').nth(1)).toHaveText(`${shown.rpm.toLocaleString('en')} rpm`);
  // The map shows the route in the color of the driven part (map/palette.ts).
  const driven = () =>
    page.locator('.map > canvas').last().evaluate((canvas: HTMLCanvasElement) => {
      const { data } = canvas.getContext('2d')!.getImageData(0, 0, canvas.width, canvas.height);
      let count = 0;
      for (let i = 0; i < data.length; i += 4) if (data[i] === 0x0b && data[i + 1] === 0x6b && data[i + 2] === 0x74 && data[i + 3] === 255) count++;
      return count;
    });
  await expect.poll(driven).toBeGreaterThan(600);
  await page.getByRole('button', { name: 'Back to live' }).click();
  await expect(page.getByRole('meter', { name: 'Speed' })).toBeVisible();
});

test('saved files contain the published records', async ({ page, clean }) => {
  const { id, sent } = await drive(page, 300);
  await openReplay(page, id);
  const file = await saved(page, 'Save as GPX');
  expect(file.name).toMatch(new RegExp(`^car-${id}-\\d{4}-\\d\\d-\\d\\dT\\d{4}Z\\.gpx$`));
  const parsed = await page.evaluate((text) => {
    const xml = new DOMParser().parseFromString(text, 'application/xml');
    const gpx = 'http://www.topografix.com/GPX/1/1';
    const names = (element: Element) => [...element.children].map((child) => child.localName);
    const points = [...xml.getElementsByTagNameNS(gpx, 'trkpt')];
    return {
      broken: xml.getElementsByTagName('parsererror').length,
      root: [xml.documentElement.localName, xml.documentElement.namespaceURI, xml.documentElement.getAttribute('version'), !!xml.documentElement.getAttribute('creator')],
      order: names(xml.documentElement),
      track: names(xml.getElementsByTagNameNS(gpx, 'trk')[0]!),
      segments: [...xml.getElementsByTagNameNS(gpx, 'trkseg')].map((segment) => names(segment).length),
      inPoint: [...new Set(points.map((point) => names(point).join()))],
      points: points.map((point) => ({
        lat: Number(point.getAttribute('lat')),
        lon: Number(point.getAttribute('lon')),
        time: point.getElementsByTagNameNS(gpx, 'time')[0]!.textContent,
        speed: Number(point.getElementsByTagNameNS('*', 'speed')[0]!.textContent),
        course: Number(point.getElementsByTagNameNS('*', 'course')[0]!.textContent),
        name: point.getElementsByTagNameNS(gpx, 'name')[0]?.textContent,
      })),
    };
  }, file.text);
  expect(parsed.broken).toBe(0);
  expect(parsed.root).toEqual(['gpx', 'http://www.topografix.com/GPX/1/1', '1.1', true]);
  // Element order of the schema: metadata before trk in gpx; name before trkseg in trk; time, name, extensions in
  // trkpt.
  expect(parsed.order).toEqual(['metadata', 'trk']);
  expect(parsed.track).toEqual(['name', 'trkseg', 'trkseg']);
  expect(new Set(parsed.inPoint)).toEqual(new Set(['time,extensions', 'time,name,extensions']));
  expect(parsed.segments).toEqual([150, 150]);
  expect(parsed.points).toEqual(
    sent.map((r) => ({ lat: r.gpsLatitude, lon: r.gpsLongitude, time: new Date(r.timestamp).toISOString(), speed: r.speed, course: r.heading, name: r.event && `${r.event} ${r.code}` })),
  );

  const table = await saved(page, 'Save as CSV');
  const rows = parseCsv(table.text);
  expect(rows[0]).toEqual(['time (UTC)', 'latitude (deg)', 'longitude (deg)', 'speed (m/s)', 'engine (1/min)', 'coolant (degC)', 'heading (deg)', 'gear', 'event', 'code', 'position']);
  expect(rows.slice(1).map((row) => row.slice(0, -1))).toEqual(
    sent.map((r) => [new Date(r.timestamp).toISOString(), ...[r.gpsLatitude, r.gpsLongitude, r.speed, r.rpm, r.coolantTemperature, r.heading, r.gear].map(String), r.event ?? '', r.code ?? '']),
  );
  expect(rows.slice(1).map((row) => row.at(-1)!.split(':')[1])).toEqual(sent.map((_, i) => String(i + 1)));
});

/** Parses CSV strictly by RFC 4180: quoted fields may contain any character, and lines end with CRLF. */
function parseCsv(text: string): string[][] {
  const rows: string[][] = [[]];
  const field = /(?:"((?:[^"]|"")*)"|([^",\r\n]*))(,|\r\n)/y;
  while (field.lastIndex < text.length) {
    const found = field.exec(text);
    if (!found) throw new Error(`not CSV from here: ${text.slice(field.lastIndex, field.lastIndex + 40)}`);
    rows.at(-1)!.push(found[1]?.replaceAll('""', '"') ?? found[2]!);
    if (found[3] !== ',') rows.push([]);
  }
  return rows.slice(0, -1);
}

test('a range without history is reported', async ({ page, clean }) => {
  const { id } = await drive(page, 20);
  await openReplay(page, id);
  await page.getByRole('combobox', { name: 'Range' }).selectOption('times');
  await page.getByLabel('From', { exact: true }).fill('2020-01-01T10:00');
  await page.getByLabel('To', { exact: true }).fill('2020-01-01T11:00');
  await page.getByRole('button', { name: 'Show', exact: true }).click();
  await expect(page.getByText(new RegExp(`No history of car ${id} in this range. The stored history begins on \\d`))).toBeVisible();
  await expect(slider(page)).toBeHidden();
  await page.getByLabel('To', { exact: true }).fill('2019-01-01T11:00');
  await page.getByRole('button', { name: 'Show', exact: true }).click();
  await expect(page.getByText('the range ends before it begins')).toBeVisible();
  await page.getByRole('combobox', { name: 'Range' }).selectOption('all');
  await expect(page.getByText('20 records')).toBeVisible();
});

for (const { name, ...look } of LOOKS) {
  test.describe(name, () => {
    test.use(look);
    test('the replay is accessible and fits', async ({ page, clean }) => {
      const { id } = await drive(page, 300);
      await openReplay(page, id);
      expect(await violations(page)).toEqual([]);
      if (name === 'phone light') {
        // The whole route, driven to its end, lies in the part of the map that the panel does not cover.
        await page.keyboard.press('End');
        const overlap = () =>
          page.locator('.map > canvas').last().evaluate((canvas: HTMLCanvasElement) => {
            const { data, width } = canvas.getContext('2d')!.getImageData(0, 0, canvas.width, canvas.height);
            const panel = document.querySelector('.sheet')!.getBoundingClientRect().top - canvas.getBoundingClientRect().top;
            const rows = [];
            for (let i = 0; i < data.length; i += 4) if (data[i] === 0x0b && data[i + 1] === 0x6b && data[i + 2] === 0x74 && data[i + 3] === 255) rows.push(Math.floor(i / 4 / width));
            return rows.length > 200 && (rows.at(-1)! * canvas.clientHeight) / canvas.height < panel;
          });
        await expect.poll(overlap).toBe(true);
      }
      await page.getByRole('combobox', { name: 'Range' }).selectOption('times');
      expect(await violations(page)).toEqual([]);
      expect(await page.evaluate(() => document.documentElement.scrollWidth)).toBeLessThanOrEqual(look.viewport.width);
    });
  });
}

test('reduced motion plays step by step', async ({ page, clean }) => {
  await page.emulateMedia({ reducedMotion: 'reduce' });
  const { id } = await drive(page, 300);
  await openReplay(page, id);
  const seen = new Set([await clock(page)]);
  await page.getByRole('button', { name: 'Play' }).click();
  const started = Date.now();
  while (Date.now() - started < 3_500) seen.add(await clock(page));
  expect(seen.size).toBeGreaterThan(2);
  expect(seen.size).toBeLessThan(7);
});
