// The live page of an emulated link: with a program behind a real link, and the functions behind its figures.
import { execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { connect, createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { expect, type Locator } from '@playwright/test';
import { inForce, KNOBS, otherSettings } from '../src/pages/link/knobs.ts';
import { applyState, figures, NOTHING, type LinkState, type Side } from '../src/pages/link/state.ts';
import { BEST, LOOKS, test, url, violations } from './page.ts';
import { binary, serve } from './server.ts';

const exec = promisify(execFile);

/**
 * Words that run a command in a network namespace of its own: a browser aborts its requests when a device appears
 * beside it.
 */
const ISOLATED = ['unshare', ...(process.getuid?.() === 0 ? [] : ['--user', '--map-root-user']), '--net'];

/** Returns why this machine has no emulated links. */
async function missing(): Promise<string | undefined> {
  const [program, ...words] = [...ISOLATED, binary(), 'lab', 'link', 'run', '--', 'true'];
  return exec(program!, words).then(() => undefined, (error: { stderr?: string }) => (error.stderr || String(error)).trim());
}

/** Starts a program behind a link that sends 20 datagrams per second, which come back. `live`: URL of a server. */
async function startLink(live: string, path: string, env: NodeJS.ProcessEnv = {}): Promise<{ stop(): Promise<void> }> {
  const folder = mkdtempSync(join(tmpdir(), 'millrace-link-'));
  const { port } = new URL(live);
  // The namespace reaches the server over this socket.
  const door = createServer((inside) => {
    const server = connect(Number(port), '127.0.0.1');
    inside.pipe(server).pipe(inside);
    for (const socket of [inside, server]) socket.on('error', () => [inside, server].forEach((one) => one.destroy()));
  });
  await once(door.listen(join(folder, 'door')), 'listening');
  const script = 'echo started; exec 3<>/dev/udp/$LINK_HOST/7; while sleep 0.05; do echo ping >&3; done';
  const [program, ...words] = [...ISOLATED, process.execPath, fileURLToPath(new URL('namespace.mjs', import.meta.url)), join(folder, 'door'), port];
  const child = spawn(program!, [...words, binary(), 'lab', 'link', 'run', '--path', path, `--live=${live}`, '--', 'bash', '-c', script], { stdio: 'pipe', env: { ...process.env, ...env } });
  let output = '';
  for (const stream of [child.stdout, child.stderr]) stream.on('data', (chunk: Buffer) => (output += chunk.toString()));
  const stop = async (): Promise<void> => {
    if (child.exitCode === null && child.signalCode === null) {
      const gone = once(child, 'exit');
      child.kill('SIGTERM');
      await gone;
    }
    door.close();
    rmSync(folder, { recursive: true });
  };
  let stopped: Promise<void> | undefined;
  const link = { stop: () => (stopped ??= stop()) };
  try {
    await expect.poll(() => output, { timeout: 30_000 }).toContain('started');
    expect(output).toContain(`live: ${new URL('/link', live).href}`);
  } catch (error) {
    await link.stop();
    throw error;
  }
  return link;
}

/** Types a value into a field and confirms it, by keyboard. */
async function type(field: Locator, text: string): Promise<void> {
  await field.focus();
  await field.press('ControlOrMeta+a');
  await (text ? field.pressSequentially(text) : field.press('Delete'));
  await field.press('Enter');
}

const figureOf = (card: Locator, name: string): Locator => card.locator('dl > div', { hasText: name }).locator('dd').first();

for (const { name, ...look } of LOOKS) {
  test.describe(name, () => {
    test.use(look);

    test('the page shows a link and changes it while it runs', async ({ page, clean }, info) => {
      const reason = await missing();
      test.skip(reason !== undefined, `skipped: no emulated link on this machine: ${reason}`);
      const link = await startLink(url(''), '3g');
      try {
        await page.goto(url('/link'));
        const status = page.getByRole('status').first();
        await expect(status).toHaveText('Running');
        const [up, down] = [page.getByRole('region', { name: /^Up/ }), page.getByRole('region', { name: /^Down/ })];
        const field = (label: string, of: string) => page.getByRole('textbox', { name: `${label}, ${of}`, exact: true });
        await expect(field('Rate', 'down')).toHaveValue('1.6Mbit/s');
        await expect(field('Lost in a row', 'down')).toHaveValue('3');
        // 75 ms, and less than 1 ms for one datagram.
        await expect(figureOf(up, 'Delay')).toHaveText(/^7[5-9][.]?\d* ms$/);
        await expect(figureOf(down, 'Delivered')).toHaveText(/kbit\/s$/);

        // A value that no link can have.
        await type(field('Delay', 'down'), '12');
        await expect(page.getByRole('alert')).toContainText('expected a duration in `down.delay`. Example: 40ms. Nothing has changed.');
        await expect(field('Delay', 'down')).toHaveAttribute('aria-invalid', 'true');
        expect(await violations(page, BEST)).toEqual([]);
        await field('Delay', 'down').press('Escape');
        await expect(field('Delay', 'down')).toHaveValue('75ms');
        await expect(page.getByRole('alert')).toHaveCount(0);

        const handed = async (): Promise<number> => Number((await page.getByRole('row', { name: /^Handed to the link/ }).getByRole('cell').first().innerText()).replace(/\D/g, ''));
        const before = await handed();
        await type(field('Lost in a row', 'up'), '');
        await expect(field('Lost in a row', 'up')).toHaveAttribute('placeholder', 'at random');
        await type(field('Loss', 'up'), '100%');
        await expect(figureOf(up, 'Lost on the link')).toHaveText('100 %');
        await expect(figureOf(down, 'Delivered')).toHaveText('0 bit/s');
        await expect(figureOf(up, 'Delay')).toHaveText('–');
        expect(await handed(), 'the counters go on').toBeGreaterThan(before);
        expect(await page.evaluate(() => document.documentElement.scrollWidth - innerWidth), 'no sideways scrolling').toBeLessThanOrEqual(0);
        await page.screenshot({ path: info.outputPath('link.png'), fullPage: true });

        await page.getByRole('combobox', { name: 'Profile' }).selectOption('lte');
        await expect(field('Loss', 'up')).toHaveValue('0.1%');
        await expect(field('Delay', 'up')).toHaveValue('17.5ms');
        await field('Delay', 'up').focus();
        for (const value of ['20ms', '50ms', '100ms']) {
          await field('Delay', 'up').press('ArrowUp');
          await expect(field('Delay', 'up')).toHaveValue(value);
        }
        await expect(figureOf(up, 'Delay')).toHaveText(/^10\d[.]?\d* ms$/);
        await expect(page.getByText('--path lte --set up.delay=100ms')).toBeVisible();
        await page.getByRole('button', { name: 'Less: Delay, up' }).press('Enter');
        await expect(field('Delay', 'up')).toHaveValue('50ms');

        const outage = page.getByRole('switch', { name: 'Outage' });
        await outage.press('Space');
        await expect(status).toHaveText('Outage');
        await expect.poll(async () => page.getByRole('row', { name: /^Lost in an outage/ }).getByRole('cell').first().innerText()).not.toBe('0');
        await outage.press('Space');
        await expect(status).toHaveText('Running');

        await link.stop();
        await expect(status).toHaveText('Ended with exit code 143');
        await expect(field('Loss', 'up')).toBeDisabled();
        // A page that is opened later shows the last state.
        await page.reload();
        await expect(status).toHaveText('Ended with exit code 143');
        await expect(field('Delay', 'up')).toHaveValue('50ms');
        expect(await violations(page, BEST)).toEqual([]);
      } finally {
        await link.stop();
      }
    });
  });
}

for (const { name, ...look } of LOOKS.filter(({ colorScheme }) => colorScheme === 'light')) {
  test.describe(name, () => {
    test.use(look);

    test('a page without a link shows how to start one', async ({ page }, info) => {
      const server = await serve();
      try {
        await page.goto(`${server.url}/link`);
        await expect(page.getByRole('status').first()).toHaveText('No link yet');
        await expect(page.getByText(`millrace lab link run --path lte --live=${server.url} -- bash`)).toBeVisible();
        expect(await violations(page, BEST)).toEqual([]);
        await page.screenshot({ path: info.outputPath('none.png'), fullPage: true });
      } finally {
        await server.stop();
      }
    });
  });
}

test('a page names the permission that its token lacks', async ({ page }) => {
  const reason = await missing();
  test.skip(reason !== undefined, `skipped: no emulated link on this machine: ${reason}`);
  const env = { MILLRACE_AUTH__SECRET: '0123456789abcdef0123456789abcdef' };
  const create = async (...permissions: string[]): Promise<string> =>
    (await exec(binary(), ['token', 'create', '--sub', 'link', ...permissions], { env: { ...process.env, ...env } })).stdout.trim();
  const server = await serve(undefined, [], env);
  const link = await startLink(server.url, 'lte', { MILLRACE_TOKEN: await create('--publish', 'lab/link', '--subscribe', 'lab/link/commands') }).catch(async (error: unknown) => {
    await server.stop();
    throw error;
  });
  const reads = ['--subscribe', 'lab/link', '--history', 'lab/link'];
  try {
    await page.goto(`${server.url}/link#token=${await create(...reads)}`);
    const delay = page.getByRole('textbox', { name: 'Delay, up' });
    await expect(delay).toHaveValue('17.5ms');
    await type(delay, '30ms');
    await expect(page.getByRole('alert')).toContainText('The token of this page needs the permission publish for lab/link/commands');
    await page.goto('about:blank');
    await page.goto(`${server.url}/link#token=${await create(...reads, '--publish', 'lab/link/commands')}`);
    await expect(delay).toHaveValue('17.5ms');
    await type(delay, '30ms');
    await expect(page.getByText('--set up.delay=30ms')).toBeVisible();
    await expect(page.getByRole('alert')).toHaveCount(0);
  } finally {
    await link.stop();
    await server.stop();
  }
});

const side = (at_s: number, more: Partial<Side> = {}): Side => ({
  received: at_s * 100, delivered: at_s * 80, delivered_bytes: at_s * 100_000, dropped: { channel: at_s * 5, 'queue full': at_s * 10, 'queue delay': 0, outage: at_s * 5, NAT: 0 },
  duplicated: 0, corrupted: 0, on_link: 0, queue_packets: 3, queue_bytes: 4500, queue_ms: 12, queue_packets_max: 9, queue_ms_max: 40, delay_sum_ms: at_s * 80 * 50, delay_max_ms: 60, ...more,
});
const state = (at_s: number, more: Partial<LinkState> = {}): LinkState => ({
  is: 'state', run: 'a', started_ms: 1000, at_s, path: '3g', profile: '3g', profiles: ['3g'], settings: { up: {}, down: {} }, command: '', is_out: false, commands_error: null, answer: null, up: side(at_s), down: side(at_s), ...more,
});

test('figures are those of the last seconds', () => {
  const states = Array.from({ length: 400 }, (_, i) => state(i / 4));
  const view = states.reduce(applyState, NOTHING);
  expect(figures(view, 'up')).toMatchObject({ lost: 0.1, dropped: 0.1, now: { bits_per_s: 800_000, delay_ms: 50, delay_max_ms: 60, queue_ms: 12, lost: 10, dropped: 10 }, minute: { bits_per_s: 800_000 } });
  expect(view.seconds.length).toBe(61);
  expect(view.seconds.at(-1)).toMatchObject({ at_s: 99, down: { bits_per_s: 800_000, lost: 10 } });
  expect(view.recent.length).toBeLessThanOrEqual(245);

  // Without packets, there is no delay and no share.
  const idle = [100, 105, 110, 111].map((at_s) => state(at_s, { up: side(100) })).reduce(applyState, view);
  expect(figures(idle, 'up')).toMatchObject({ lost: null, now: { bits_per_s: 0, delay_ms: null, delay_max_ms: null } });
});

test('the page shows the link that started last', () => {
  const older = [state(5), state(6)].reduce(applyState, NOTHING);
  const newer = applyState(older, state(1, { run: 'b', started_ms: 2000 }));
  expect([newer.newest?.run, newer.recent.length, newer.seconds.length]).toEqual(['b', 1, 0]);
  expect(applyState(newer, state(7))).toBe(newer);
  expect(applyState(newer, { is: 'other' })).toBe(newer);
});

test('buttons step through round values', () => {
  const steps: readonly (readonly [string, boolean, readonly string[]])[] = [
    ['rate', false, ['', '1Gbit/s', '500Mbit/s', '200Mbit/s']],
    ['rate', true, ['1.6Mbit/s', '2Mbit/s', '5Mbit/s']],
    ['rate', true, ['500Mbit/s', '1Gbit/s', '', '']],
    ['rate', false, ['2kbit/s', '1kbit/s', '1kbit/s']],
    ['delay', true, ['0ms', '1ms', '2ms', '5ms', '10ms']],
    ['delay', false, ['17.5ms', '10ms', '5ms', '2ms', '1ms', '0ms', '0ms']],
    ['delay', true, ['fast', 'fast']],
    ['loss', true, ['', '0.1%', '0.2%', '0.5%', '1%']],
    ['loss', true, ['50%', '100%', '100%']],
    ['loss', false, ['0.1%', '0%', '0%']],
    ['queue', false, ['', '200ms', '100ms']],
    ['queue', false, ['2ms', '1ms', '1ms']],
    ['queue', true, ['83 packets', '100 packets', '200 packets']],
    ['queue', false, ['2 packets', '1 packets', '1 packets']],
    ['loss_burst', true, ['', '2', '5']],
    ['loss_burst', false, ['3', '2', '']],
  ];
  for (const [key, up, [first, ...rest]] of steps) {
    const knob = KNOBS.find((knob) => knob.key === key)!;
    let text = first!;
    for (const expected of rest) expect((text = knob.step(text, up)), `${key} from ${first}`).toBe(expected);
  }
});

test('settings in force are shown as they are typed', () => {
  const settings = { up: { delay: '17ms 500us', loss: '0.1%', rate: '12Mbit/s', jitter: '1s 250ms', distribution: 'normal', duplicate: '0%', corrupt: '2%' }, down: { delay: '0s' }, nat: { idle: '8m', on_idle: 'reset' } };
  const link = state(1, { settings });
  const shown = (direction: 'up' | 'down') => Object.fromEntries(KNOBS.map((knob) => [knob.key, inForce(link, direction, knob)]));
  expect(shown('up')).toEqual({ rate: '12Mbit/s', queue: '', delay: '17.5ms', jitter: '1.25s', loss: '0.1%', loss_burst: '' });
  expect(shown('down')).toMatchObject({ rate: '', delay: '0ms', loss: '' });
  expect(otherSettings(link)).toEqual(['up.distribution = normal', 'up.corrupt = 2%', 'nat.idle = 8m', 'nat.on_idle = reset']);
});
