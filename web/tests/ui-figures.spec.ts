// Samples, payloads and figures of the operator pages, without a browser.
import { expect, test } from '@playwright/test';
import { show, hex } from '../src/pages/ui/channels/payload.ts';
import { Samples } from '../src/pages/ui/chart/samples.ts';
import { sampleOf } from '../src/pages/ui/overview/node.ts';
import { age, cores, parts, percent, perS } from '../src/pages/ui/units.ts';

test('samples are kept for 15 minutes', () => {
  const samples = new Samples();
  for (let second = 1; second <= 1_000; second++) samples.push(second * 1000, { a: second });
  expect([samples.length, samples.time(0), samples.newest('a')]).toEqual([900, 101, 1000]);
  expect(samples.value('a', samples.from(500))).toBe(500);
  expect([samples.from(0), samples.from(1_001)]).toEqual([0, 900]);
});

test('an unknown value is unknown, not 0', () => {
  const samples = new Samples();
  samples.push(1000, { a: 1, b: null });
  samples.push(2000, { a: undefined, c: 3 });
  expect([samples.value('a', 0), samples.value('a', 1), samples.value('b', 0), samples.value('c', 0), samples.value('c', 1)]).toEqual([1, undefined, undefined, undefined, 3]);
  expect([samples.some('a'), samples.some('b'), samples.some('none')]).toEqual([true, false, false]);
});

test('a late sample is ignored', () => {
  const samples = new Samples();
  samples.push(2000, { a: 1 });
  samples.push(2000, { a: 2 });
  samples.push(1000, { a: 3 });
  expect([samples.length, samples.newest('a')]).toEqual([1, 1]);
});

test('history of the server comes before live samples', () => {
  const samples = new Samples();
  samples.push(3000, { a: 3 });
  samples.prepend({ every_ms: 1000, times_ms: [1000, 2000, 3000], columns: { a: [1, null, 99], b: [7, 8, 9] } });
  expect(Array.from({ length: samples.length }, (_, i) => [samples.time(i), samples.value('a', i), samples.value('b', i)])).toEqual([[1, 1, 7], [2, undefined, 8], [3, 3, undefined]]);
});

test('a row of the overview becomes a sample', () => {
  const sample = sampleOf({ node: 'a', connections: { sse: 3 }, messages_in_per_s: 5, memory: { rss_bytes: 9, history: 1 }, shards: [{ shard: 1, cpu: 0.5, loop_lag_ms: null }] });
  expect(sample).toMatchObject({ 'connections.sse': 3, messages_in: 5, 'memory.rss': 9, 'memory.history': 1, 'cpu.1': 0.5, 'loop_lag_ms.1': null });
});

test('payloads are shown as text, JSON and hex', () => {
  expect(show({ text: '{"a":[1]}' }, 'json')).toBe('{\n  "a": [\n    1\n  ]\n}');
  expect(show({ text: '{"a":[1' }, 'json'), 'a payload that is cut').toBe('{"a":[1');
  expect(show({ text: '<b>grün' }, 'text')).toBe('<b>grün');
  expect(show({ text: 'hello' }, 'hex')).toBe('00000000  68 65 6c 6c 6f                                   |hello|');
  expect(show({ base64: '/wAB' }, 'text'), 'binary data').toBe('00000000  ff 00 01                                         |...|');
  expect(hex(new Uint8Array(17)).split('\n').map((line) => line.slice(0, 10))).toEqual(['00000000  ', '00000010  ']);
});

test('figures have units', () => {
  expect([perS(0), perS(9.96), perS(1480), perS(undefined)]).toEqual(['0 /s', '10 /s', '1.48 k/s', '–']);
  expect([percent(0.0123), percent(null), cores(0.021), cores(1)]).toEqual(['1.2 %', '–', '0.02 cores', '1 core']);
  expect([age(180), age(42_900), age(3_720_000), age(90_000_000), age(60_000), age(undefined)]).toEqual(['180 ms', '42 s', '1 h 2 min', '1 d 1 h', '1 min', '–']);
  expect([parts('1.48 k/s'), parts('–')]).toEqual([['1.48', 'k/s'], ['–', '']]);
});
