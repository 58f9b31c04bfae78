// Steering of size and frame rate on a model of a network path: quick down, up within 30 s, no oscillation.
import { expect, test } from 'vitest';
import { LEVELS, Steering, type SteeringSample } from '../src/room/steering.js';

const SIZE = { width: 640, height: 480, frameRate: 30 };

interface Path {
  /** Bandwidth at a time, kbit/s. */
  readonly capacity: (s: number) => number;
  /** Browser whose statistics the call has. */
  readonly browser: 'chromium' | 'firefox';
  readonly loss?: number;
}

/** Growth of Chromium's bandwidth estimate per second: while it searches at first, and afterwards. */
const [SEARCH, GROWTH] = [1.6, 1.08];
/** Time after which Chromium's estimate follows a drop, and highest rate it assigns to a video, as measured. */
const [FOLLOWS_S, ASSIGNED_MAX] = [2, 1_700];

/** Runs a call of `seconds` over a path. Returns the level of each second. */
function call({ capacity, browser, loss = 0 }: Path, seconds: number): number[] {
  const steering = new Steering(SIZE);
  let estimate = 300;
  return Array.from({ length: seconds }, (_, s) => {
    const limit = capacity(s);
    const wanted = Math.max(steering.needs(steering.level) * 1.2, 100);
    // A rise goes only as far as something is sent.
    estimate = Math.min(Math.max(limit, capacity(Math.max(s - FOLLOWS_S, 0))), Math.min(estimate * (s < 6 ? SEARCH : GROWTH), Math.max(wanted * 1.5 + 10, estimate)));
    const target = Math.min(estimate, ASSIGNED_MAX);
    const sent = Math.min(wanted, browser === 'chromium' ? target : wanted);
    const isOver = sent > limit * 1.02;
    const sample: SteeringSample = {
      at: s * 1000,
      rtt_ms: isOver ? 600 : 40,
      loss: Math.max(isOver ? 1 - limit / sent : 0, loss),
      sent_kbps: sent,
      ...(browser === 'chromium' && { uplink_kbps: estimate, target_kbps: target, limited_by: 'none' }),
    };
    // The SDK gives no sample of a new link.
    if (s >= 6) steering.update(sample);
    return steering.level;
  });
}

const changes = (levels: readonly number[]): number => levels.filter((level, i) => i > 0 && level !== levels[i - 1]).length;
const best = LEVELS.length - 1;

for (const browser of ['chromium', 'firefox'] as const) {
  test.each([
    [200, 15],
    [300, 60],
    [150, 40],
    [100, 120],
    [60, 300],
  ])(`${browser}: a drop to %d kbit/s for %d s`, (narrow, long) => {
    const [from, until] = [30, 30 + long];
    const levels = call({ browser, capacity: (s) => (s >= from && s < until ? narrow : 5_000) }, until + 60);
    expect(levels.slice(0, from), 'a good path changes nothing').toEqual(new Array(from).fill(0));
    expect(levels[from + 4], 'down within 5 s').toBeGreaterThan(0);
    expect(levels[until + 29], 'back within 30 s').toBe(0);
    expect(levels.slice(until + 29)).toEqual(new Array(31).fill(0));
    const attempts = changes(levels.slice(from + 5, until));
    expect(attempts, 'an attempt and its end at most each 14 s').toBeLessThanOrEqual(2 * Math.ceil(long / 14));
    expect(changes(levels.slice(until)), 'straight up').toBeLessThanOrEqual(best + 2);
  });
}

test('random loss below a tenth changes nothing', () => {
  for (const browser of ['chromium', 'firefox'] as const) expect(changes(call({ browser, capacity: () => 5_000, loss: 0.05 }, 120))).toBe(0);
});

test('a sender on a path that stays too narrow attempts a higher level rarely', () => {
  for (const browser of ['chromium', 'firefox'] as const) {
    const levels = call({ browser, capacity: (s) => (s < 30 ? 5_000 : 120) }, 630);
    expect(changes(levels.slice(60)), browser).toBeLessThanOrEqual(60);
    expect(levels.slice(60).filter((level) => level > 0).length, browser).toBeGreaterThan(500);
  }
});

test.each<[string, Partial<SteeringSample>, number, number]>([
  ['one bad second is not enough', { loss: 0.3 }, 1, 0],
  ['two are', { loss: 0.3 }, 2, 1],
  ['a growing round-trip time', { rtt_ms: 400 }, 2, 1],
  ['a growing round-trip time while the estimate is below the needed rate', { rtt_ms: 400, uplink_kbps: 500 }, 2, 1],
  ['slow answers of a busy peer while the estimate is enough', { rtt_ms: 760, uplink_kbps: 800 }, 60, 0],
  ['a long round-trip time that stays is none', { rtt_ms: 140 }, 60, 0],
  ['a low assigned rate selects the level that fits the estimate', { uplink_kbps: 60, target_kbps: 50, sent_kbps: 50 }, 2, best],
  ['a low assigned rate that is not used is a sender with little to send', { uplink_kbps: 60, target_kbps: 50, sent_kbps: 20 }, 60, 0],
  ['an assigned rate above half of the needed one', { target_kbps: 330, sent_kbps: 330 }, 60, 0],
  ['a peak of the CPU', { limited_by: 'cpu' }, 4, 0],
  ['a busy CPU', { limited_by: 'cpu' }, 5, 1],
  ['nothing is known', { rtt_ms: undefined }, 60, 0],
])('%s', (_, bad, seconds, level) => {
  const steering = new Steering(SIZE);
  const good = { rtt_ms: 40, loss: 0, sent_kbps: 2_000 };
  let at = 0;
  for (; at < 20_000; at += 1_000) steering.update({ at, ...good });
  for (let s = 0; s < seconds; s++, at += 1_000) steering.update({ at, ...good, ...bad });
  expect(steering.level).toBe(level);
});

test('another choice of the user begins at its best level', () => {
  const steering = new Steering(SIZE);
  for (let s = 0; s < 20; s++) steering.update({ at: s * 1000, loss: s > 10 ? 0.5 : 0, rtt_ms: 40, sent_kbps: 100 });
  expect(steering.level).toBe(best);
  steering.choose({ width: 320, height: 180, frameRate: 15 });
  expect(steering.level).toBe(0);
  expect(steering.needs(0)).toBeCloseTo(60.48);
  // The browser assigns more to a larger video only after some time.
  steering.choose({ width: 1920, height: 1080, frameRate: 30 });
  for (let s = 0; s < 5; s++) steering.update({ at: 20_000 + s * 1000, target_kbps: 600, sent_kbps: 600 });
  expect(steering.level).toBe(0);
  steering.update({ at: 25_000, target_kbps: 600, sent_kbps: 600 });
  expect(steering.level).toBeGreaterThan(0);
});

test('time that stands still or jumps back does no harm', () => {
  const steering = new Steering(SIZE);
  for (const at of [50_000, 50_000, 0, 90_000, NaN, 20_000]) steering.update({ at, loss: NaN, rtt_ms: NaN, uplink_kbps: 0, target_kbps: at, sent_kbps: NaN });
  expect([0, 1, 2, 3]).toContain(steering.level);
});
