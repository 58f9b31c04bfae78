import { readFileSync } from 'node:fs';
import { describe, expect, test } from 'vitest';
import { closeError, refused } from '../src/errors.js';
import { before, checkChannel, isNewer, parsePosition, withOffset } from '../src/position.js';
import { matcher } from '../src/wildcards.js';
import { SseParser, type SseEvent } from '../src/sse-parser.js';
import { parsePositions } from '../src/transports/http.js';

/** Event streams and their expected events: type, data, and the id at that time. */
const vectors: { name: string; stream?: string; hex?: string; events: [string, string, string][] }[] =
  JSON.parse(readFileSync(new URL('../../../conformance/eventstream/vectors.json', import.meta.url), 'utf8'));

describe('server-sent events', () => {
  const parse = (...pieces: string[]): SseEvent[] => {
    const parser = new SseParser();
    return pieces.flatMap((piece) => parser.push(piece));
  };

  test('parses fields, comments, multiline data and lone ids', () => {
    expect(parse('retry: 2000\nid: e:0\n\n: heartbeat\n\nid: e:1\ndata: one\ndata:two\ndata\n\nevent: gap\ndata: {}\n\n')).toEqual([
      { event: 'message', data: undefined, id: 'e:0' },
      { event: 'message', data: 'one\ntwo\n', id: 'e:1' },
      { event: 'gap', data: '{}', id: undefined },
    ]);
  });

  test('parses any split and any line ending', () => {
    for (const end of ['\n', '\r\n', '\r']) {
      const text = `id: e:1${end}data: a: b${end}${end}data: c${end}${end}: end`;
      const whole = parse(text);
      expect(whole).toEqual([{ event: 'message', data: 'a: b', id: 'e:1' }, { event: 'message', data: 'c', id: undefined }]);
      expect(parse(...text)).toEqual(whole);
      for (let i = 0; i < text.length; i++) expect(parse(text.slice(0, i), '', text.slice(i))).toEqual(whole);
    }
  });

  test.each(vectors)('the standard: $name', ({ stream, hex, events }) => {
    const bytes = stream === undefined ? Buffer.from(hex!, 'hex') : Buffer.from(stream);
    for (const size of [1, 2, 7, bytes.length || 1]) {
      const parser = new SseParser();
      const decoder = new TextDecoder();
      const got: unknown[] = [];
      let lastId = '';
      for (let at = 0; at < bytes.length; at += size) {
        for (const { event, data, id } of parser.push(decoder.decode(bytes.subarray(at, at + size), { stream: true }))) {
          lastId = id ?? lastId;
          if (data !== undefined) got.push([event, data, lastId]);
        }
      }
      expect(got, `${size} bytes at a time`).toEqual(events);
    }
  });
});

describe('positions', () => {
  test('positions compare by epoch and offset', () => {
    const text = '5f0c12ab:57';
    const at = parsePosition(text);
    expect(at).toEqual({ epoch: '5f0c12ab', offset: 57n });
    expect(parsePosition('e:18446744073709551615').offset).toBe(2n ** 64n - 1n);
    expect([before(text), before('5f0c12ab:0'), before('5f:18446744073709551615')]).toEqual(['5f0c12ab:56', '5f0c12ab:0', '5f:18446744073709551614']);
    expect([withOffset(text, 7n), withOffset('1:2:3', 2n ** 64n - 1n)]).toEqual(['5f0c12ab:7', '1:2:18446744073709551615']);
    expect(isNewer(text, undefined)).toBe(true);
    expect(isNewer(text, text)).toBe(false);
    expect(isNewer('5f0c12ab:58', text)).toBe(true);
    expect(isNewer('5f0c12ab:56', text)).toBe(false);
    expect(isNewer('other:1', text)).toBe(true);
  });

  test.each(['', 'e', ':1', 'e:', 'e:-1', 'e:1x', 'now'])('%j is not a position', (text) => {
    expect(() => parsePosition(text)).toThrow(expect.objectContaining({ code: 'protocol' }));
  });

  test('parses lists of positions', () => {
    expect(parsePositions('cars/1:a@5f:58,cars/2@5f:57')).toEqual([['cars/1:a', '5f:58'], ['cars/2', '5f:57']]);
    expect(parsePositions('')).toEqual([]);
  });
});

describe('channels', () => {
  test.each(['cars', 'cars/1/telemetry', 'a.b:c-d_e/9', 'x'.repeat(255), '...'])('%s is a channel name', (name) => {
    expect(() => checkChannel(name)).not.toThrow();
  });

  test.each(['', '/', 'a//b', '/a', 'a/', 'a b', 'ä', 'a/+', '#', 'x'.repeat(256), 'a/../b', '.', 'a?b'])('%j is not a channel name', (name) => {
    expect(() => checkChannel(name)).toThrow(expect.objectContaining({ code: 'rejected', reason: 'bad_channel' }));
  });

  test.each(['+', '#', 'a/+/b', 'a/#', '+/+', '+/#', 'a'])('%s is a pattern', (name) => {
    expect(() => matcher(name)).not.toThrow();
  });

  test.each(['a/#/b', 'a+', 'a/b#', '##', 'a/++', ''])('%j is not a pattern', (name) => {
    expect(() => matcher(name)).toThrow(expect.objectContaining({ code: 'rejected' }));
  });

  test.each([
    ['cars/+', 'cars/1', true], ['cars/+', 'cars', false], ['cars/+', 'cars/1/x', false], ['cars/#', 'cars', true], ['cars/#', 'cars/1/x', true],
    ['#', 'a/b', true], ['+/b', 'a/b', true], ['a/+/#', 'a', false], ['a/+/#', 'a/b', true], ['a/b', 'a/c', false],
  ])('%s and %s: %s', (pattern, channel, expected) => {
    expect(matcher(pattern).test(channel)).toBe(expected);
  });
});

describe('errors', () => {
  test.each([
    [1006, 'network', true], [1001, 'network', true], [1012, 'network', true], [1011, 'network', true], [1000, 'rejected', false],
    [1002, 'protocol', false], [1007, 'protocol', false], [1009, 'protocol', false], [1008, 'auth', false], [4000, 'rejected', false],
    [4001, 'network', true], [4003, 'auth', false],
  ])('close code %i is %s, retryable: %s', (code, kind, retryable) => {
    expect(closeError(code, '', 'ws://x')).toMatchObject({ code: kind, retryable });
  });

  test('the server decides whether an error is retryable', () => {
    expect(refused({ code: 'too_many', detail: 'x', retry: true })).toMatchObject({ code: 'rejected', reason: 'too_many', retryable: true, message: 'x' });
    expect(refused({ code: 'unavailable', retry: true })).toMatchObject({ code: 'network', retryable: true });
    expect(refused({ code: 'bad_channel', retry: false })).toMatchObject({ code: 'rejected', retryable: false });
  });
});
