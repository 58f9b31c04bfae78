import { expect, test } from '@playwright/test';
import { AHEAD_MS, metresBetween, nextMotion, placeAt } from '../src/pages/carcare/motion.ts';

const START = { lat: 47.5, lon: 19, speed: 10, heading: 90 };

test('dead reckoning has a time limit', () => {
  const car = nextMotion(undefined, START, 0);
  expect(metresBetween(placeAt(car, 0), START)).toBeCloseTo(0, 3);
  expect(metresBetween(placeAt(car, 1000), START)).toBeCloseTo(10, 1);
  expect(placeAt(car, 1000).lon).toBeGreaterThan(START.lon);
  expect(placeAt(car, 60_000)).toEqual(placeAt(car, AHEAD_MS));
});

test('a new fix is reached without a jump', () => {
  const car = nextMotion(undefined, START, 0);
  const shown = placeAt(car, 1000);
  const next = nextMotion(car, { ...START, lat: 47.5001, heading: 80 }, 1000);
  expect(metresBetween(placeAt(next, 1000), shown)).toBeLessThan(0.01);
  expect(placeAt(next, 1000).heading).toBeCloseTo(90, 6);
  expect(metresBetween(placeAt(next, 3000), { lat: 47.5001 + 0, lon: 19 })).toBeCloseTo(20, 0);
  expect(placeAt(next, 3000).heading).toBeCloseTo(80, 0);
});

test('a far fix moves the car at once', () => {
  const car = nextMotion(undefined, START, 0);
  const next = nextMotion(car, { ...START, lat: 47.6 }, 1000);
  expect(metresBetween(placeAt(next, 1000), { lat: 47.6, lon: 19 })).toBeLessThan(0.01);
});

test('headings turn in the shorter direction', () => {
  const car = nextMotion(undefined, { ...START, heading: 350 }, 0);
  const next = nextMotion(car, { ...START, heading: 10 }, 0);
  const half = placeAt(next, 240).heading!;
  expect(half > 350 || half < 10).toBe(true);
});

test('a missing heading is derived from travel', () => {
  const { heading: _, ...fix } = START;
  const car = nextMotion(undefined, { ...fix, speed: 5 }, 0);
  expect(placeAt(car, 1000).heading).toBeUndefined();
  expect(placeAt(car, 1000).lat).toBe(START.lat);
  const moved = nextMotion(car, { ...fix, speed: 5, lat: 47.5002 }, 4000);
  expect(moved.heading).toBeCloseTo(0, 1);
  const parked = nextMotion(moved, { ...fix, speed: 0, lat: 47.500201 }, 8000);
  expect(parked.heading).toBeCloseTo(0, 1);
});
