// Tests the kit against a real server and a real simulated kit: its firmware runs on a simulated microcontroller.
import { spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { WebSocket } from 'ws';
import { millrace, type Client } from '../src/index.js';
import { openKit, type KitState } from '../src/kit.js';
import { binary, startMillrace, type RunningServer } from './millrace.js';

let server: RunningServer;
let client: Client;
let device: ChildProcess | undefined;

beforeEach(async () => {
  server = await startMillrace();
  client = millrace(server.url, { WebSocket });
});

afterEach(async () => {
  await client.close();
  await stopDevice();
  await server.kill();
});

function startDevice(): void {
  device = spawn(binary(), ['simulate', 'earl', '--name', 'earl/5', '--to', server.url], { stdio: 'ignore' });
}

async function stopDevice(): Promise<void> {
  if (!device || device.exitCode !== null) return;
  const gone = once(device, 'exit');
  device.kill('SIGTERM');
  await gone;
  device = undefined;
}

test('a color settles with the state that shows it', async () => {
  startDevice();
  const kit = openKit(client, 'earl/5');
  const light = new Promise((resolve) => kit.onLight(resolve));
  const state = await kit.setColor('a', '#ff8800');
  expect(state.given?.a).toEqual([15, 8, 0]);
  expect(state.error).toBeNull();
  expect(await light).toMatchObject({ sensor: 'working' });
  await expect.poll(() => kit.state?.lit?.a).toBe('#ff8800');
  expect((await kit.setColor('b', [0, 0, 4])).given).toMatchObject({ a: [15, 8, 0], b: [0, 0, 4] });
});

test('blinking stays with a new color, and ends without times', async () => {
  startDevice();
  const kit = openKit(client, 'earl/5');
  const times = { on_ms: 256, off_ms: 256 };
  await Promise.all([kit.setColor('a', [15, 0, 0]), kit.blink({ a: true }, times)]);
  const state = await kit.setColor('a', [0, 15, 0]);
  expect(state.given?.blink).toMatchObject({ a: true, b: false, ...times });
  const lit = new Set<string | undefined>();
  kit.onState(({ lit: now }) => lit.add(now?.a));
  await expect.poll(() => lit.has('#000000') && lit.has('#00ff00')).toBe(true);
  expect((await kit.blink({})).given?.blink).toBeNull();
});

test('quick commands are joined, and all settle with the newest', async () => {
  startDevice();
  const kit = openKit(client, 'earl/5');
  const commands: Promise<KitState>[] = [];
  for (let level = 0; level < 16; level++) commands.push(kit.setColor('a', [level, 0, 0]), kit.setColor('b', [0, level, 0]));
  const states = await Promise.all(commands);
  expect(states.at(-1)?.given).toMatchObject({ a: [15, 0, 0], b: [0, 15, 0] });
});

test('a wrong command rejects with the error of the kit', async () => {
  startDevice();
  const kit = openKit(client, 'earl/5');
  await expect(kit.setColor('a', [16, 0, 0])).rejects.toMatchObject({ code: 'rejected', message: '16: a level is 0 to 15' });
  expect((await kit.setColor('a', [15, 0, 0])).error).toBeNull();
});

test('without a kit, a command rejects after its deadline', async () => {
  const kit = openKit(client, 'earl/5');
  await expect(kit.setColor('a', '#ffffff', { deadline: 200 })).rejects.toMatchObject({ code: 'timeout' });
  expect(kit.state).toBeUndefined();
});

test('a command that another writer replaces says so', async () => {
  const kit = openKit(client, 'earl/5');
  // The kit starts after both commands, so it reads both at once.
  const mine = kit.setColor('a', [15, 0, 0], { deadline: 5_000 });
  const replaced = expect(mine).rejects.toMatchObject({ code: 'rejected', reason: 'superseded', message: expect.stringContaining('other') });
  await expect.poll(async () => (await client.history('earl/5/led')).length).toBe(1);
  await client.publish('earl/5/led', { id: 'other', a: [0, 0, 15] });
  startDevice();
  await replaced;
  expect(kit.state?.commanded).toMatchObject({ id: 'other', a: [0, 0, 15] });
});

test('a closed kit rejects its commands', async () => {
  const kit = openKit(client, 'earl/5');
  const command = kit.setColor('a', '#ffffff');
  const rejected = expect(command).rejects.toMatchObject({ code: 'aborted' });
  await kit.close();
  await rejected;
  expect(await kit.ended).toBeUndefined();
});
