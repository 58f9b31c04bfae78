// Tabs that share a connection, on a virtual clock: tabs open, close, crash, freeze and return; messages between tabs
// are late; connections are cut. `SEEDS=20000 npx vitest run tests/share/simulation.test.ts` runs more seeds, and
// `SEED=17` repeats one.
import { afterAll, beforeAll, expect, test, vi } from 'vitest';
import type { Event } from '../../src/index.js';
import { World, type Defect, type SimTab } from './world.js';

const SEEDS = Number(process.env['SEEDS'] ?? 150);
/** Another tab leads within this time, ms. */
const LEADS_WITHIN = 2_000;
const ACTIVE = 8_000;
const QUIET = 11_000;

let world: World;
const { now } = Date;
const { random } = Math;
beforeAll(() => {
  vi.stubGlobal('setTimeout', (fn: () => void, ms = 0) => world.after(ms, fn));
  vi.stubGlobal('clearTimeout', (cancel?: () => void) => cancel?.());
  // Not by `vi.spyOn`, which keeps every call.
  Date.now = () => world.now;
  Math.random = () => world.random();
  vi.spyOn(crypto.subtle, 'digest').mockResolvedValue(new ArrayBuffer(32));
});
afterAll(() => {
  Object.assign(Date, { now });
  Object.assign(Math, { random });
  vi.unstubAllGlobals();
  vi.restoreAllMocks();
});

interface Watched {
  readonly tab: SimTab;
  readonly ticks: Event[];
  readonly all: Event[];
  /** Publications of the first tab, which the pattern covers, too. */
  readonly first: Event[];
  readonly acknowledged: string[];
  sent: number;
  from: string;
  closed: boolean;
  readsPattern: boolean;
  /** Time since which the tab runs. */
  runsSince: number;
}

/** Runs one seed. Returns what is wrong, or undefined. */
async function run(seed: number, defect?: Defect): Promise<string | undefined> {
  world = new World(seed, defect);
  const problems: string[] = [];
  const watched: Watched[] = [];
  const report = (what: string): void => void problems.push(`${Math.round(world.now - 1_000_000)} ms: ${what}`);

  function open(): void {
    const tab = world.open(world.random() < 0.5);
    const one: Watched = { tab, ticks: [], all: [], first: [], acknowledged: [], sent: 0, from: '', closed: false, readsPattern: false, runsSince: world.now };
    watched.push(one);
    world.as(tab, () => {
      const from = world.random() < 0.3 ? 'earliest' : 'now';
      const ticks = tab.mr.subscribe('ticks', { from });
      ticks.on((event) => {
        one.ticks.push(event);
        if (event.offset % 3n === 0n) publish(one);
      }, (cause) => one.closed || report(`tab ${tab.index}: the subscription ended: ${cause}`));
      ticks.ready.then(({ position }) => (one.from = position), () => {});
      one.readsPattern = world.random() < 0.6;
      if (!one.readsPattern) {
        tab.mr.subscribe('own/0').on((event) => one.first.push(event), (cause) => one.closed || report(`tab ${tab.index}: own/0 ended: ${cause}`));
        return;
      }
      const all = tab.mr.subscribe('own/+');
      all.on((event) => one.all.push(event), (cause) => one.closed || report(`tab ${tab.index}: the pattern ended: ${cause}`));
    });
  }

  function publish(one: Watched): void {
    const n = one.sent++;
    one.tab.mr.publish(`own/${one.tab.index}`, n).then(({ position }) => (one.acknowledged[n] = position), (error) => one.closed || report(`tab ${one.tab.index}: publication ${n}: ${error}`));
  }

  const live = (): Watched[] => watched.filter(({ tab, closed }) => !tab.dead && !closed);
  const pick = (): Watched | undefined => live()[world.between(0, live().length)];
  const leader = (): Watched | undefined => live().find(({ tab }) => tab.mr.stats().share.role === 'leader');
  /** A leader is the more interesting victim. */
  const victim = (): Watched | undefined => (world.random() < 0.7 ? leader() : pick()) ?? pick();

  let withoutLeader = 0;
  function fault(): void {
    // The time counts from the last fault: the next leader may be a victim, too.
    withoutLeader = 0;
    const one = victim();
    const kind = world.between(0, 8);
    if (!one || live().length < 2 || kind === 0) {
      if (watched.length < 8) open();
      return;
    }
    if (kind === 1) one.tab.kill();
    else if (kind === 2) {
      one.closed = true;
      void world.as(one.tab, () => one.tab.mr.close());
    } else if (kind < 6 && !one.tab.frozen) {
      one.tab.freeze(kind === 3);
      world.after(world.between(100, 6_000), () => {
        one.tab.thaw();
        one.runsSince = world.now;
      }, null as never);
    } else if (kind === 6) one.tab.setVisible(!one.tab.visible);
    else world.server.drop(one.tab);
  }

  function check(): void {
    const running = live().filter(({ tab, runsSince }) => !tab.frozen && world.now - runsSince > LEADS_WITHIN);
    const leads = live().some(({ tab }) => !tab.frozen && tab.mr.stats().share.role === 'leader');
    withoutLeader = leads || !running.length ? 0 : withoutLeader + 50;
    if (withoutLeader === LEADS_WITHIN) report('no tab has led for 2 s');
  }

  for (let n = 0; n < 3; n++) open();
  for (let at = 20; at < ACTIVE + 1000; at += 40) world.after(at, () => world.server.publish('ticks', at), null as never);
  for (let at = 500; at < ACTIVE; at += world.between(300, 2_500)) world.after(at, fault, null as never);
  for (let at = 50; at < ACTIVE + QUIET; at += 50) world.after(at, check, null as never);
  await world.run(ACTIVE + QUIET);

  const leaders = live().filter(({ tab }) => tab.mr.stats().share.role === 'leader');
  if (live().length && leaders.length !== 1) report(`${leaders.length} leaders at the end`);
  // Patterns have a connection of their own.
  const connections = live().length && 1 + Number(live().some(({ readsPattern }) => readsPattern));
  if (world.server.connections.size !== connections) report(`${world.server.connections.size} connections at the end`);
  for (const one of live()) {
    const { tab, ticks, all, first, from, acknowledged, sent } = one;
    const start = Number(first[0]?.offset ?? 0);
    if (first.some(({ offset }, at) => Number(offset) !== start + at)) report(`tab ${tab.index}: lost or doubled messages of own/0: ${first.map(({ offset }) => offset)}`);
    if (first.length && Number(first.at(-1)!.offset) !== world.server.logs.get('own/0')!.length) report(`tab ${tab.index}: the last message of own/0 is missing`);
    const log = world.server.after('ticks', from || 'now');
    const expected = log.map(({ position }) => position).join();
    const got = ticks.map(({ position }) => position).join();
    if (!from) report(`tab ${tab.index}: the subscription never started`);
    else if (got !== expected) report(`tab ${tab.index}: lost or doubled ticks: expected ${expected}; got ${got}`);
    if (acknowledged.filter(Boolean).length !== sent) report(`tab ${tab.index}: ${sent - acknowledged.filter(Boolean).length} of ${sent} publications not acknowledged`);
    for (const other of live()) {
      const name = `own/${other.tab.index}`;
      const offsets = all.filter(({ channel }) => channel === name).map(({ offset }) => Number(offset));
      const begin = offsets[0] ?? 0;
      const end = (world.server.logs.get(name) ?? []).length;
      if (offsets.some((offset, at) => offset !== begin + at)) report(`tab ${tab.index}: lost or doubled messages of ${name}: ${offsets}`);
      else if (offsets.length && offsets.at(-1) !== end) report(`tab ${tab.index}: the last message of ${name} is missing`);
    }
  }
  for (const { tab, sent } of watched) {
    const stored = (world.server.logs.get(`own/${tab.index}`) ?? []).map(({ data }) => data as number);
    const expected = [...stored.keys()];
    if (stored.join() !== expected.join()) report(`publications of tab ${tab.index} are doubled, lost or out of order: ${stored}`);
    if (stored.length > sent) report(`tab ${tab.index}: more publications than calls`);
  }
  return problems[0];
}

async function firstProblem(seeds: number, defect?: Defect): Promise<string | undefined> {
  for (let seed = 1; seed <= seeds; seed++) {
    const problem = await run(seed, defect).catch(String);
    if (problem) return `SEED=${seed}: ${problem}`;
  }
  return undefined;
}

test(`${process.env['SEED'] ? `seed ${process.env['SEED']}` : `${SEEDS} seeds`}: nothing is lost or doubled, and another tab leads within 2 s`, async () => {
  const { SEED } = process.env;
  expect(SEED ? await run(Number(SEED)) : await firstProblem(SEEDS)).toBeUndefined();
}, 3_600_000);

test.skipIf(process.env['SEED'])('the same seed gives the same run', async () => {
  const runs = [];
  for (let n = 0; n < 2; n++) {
    await run(7);
    runs.push(JSON.stringify([...world.server.logs]));
  }
  expect(runs[0]).toBe(runs[1]);
});

const DEFECTS: readonly Defect[] = ['steal does nothing', 'no idempotency keys', 'subscriptions start from now', 'messages are lost between tabs'];
test.skipIf(process.env['SEED']).each(DEFECTS)('a defect is found: %s', async (defect) => {
  expect(await firstProblem(50, defect)).toBeDefined();
}, 60_000);
