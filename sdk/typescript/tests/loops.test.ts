// Every retry loop pauses between attempts, whatever the server sends. Only errors that are known to be temporary are
// retried.
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';
import { pauseOf } from '../src/backoff.js';
import { client } from '../src/core.js';
import { closeError, MillraceError, problem, refused, toError, unreachable } from '../src/errors.js';
import type { Link, LinkHost, Transport } from '../src/link.js';
import { millrace, type Client, type ConnectOptions } from '../src/index.js';
import { machine, type Attempt } from '../src/machine.js';
import { Server } from '../src/room/server.js';
import { longPoll } from '../src/transports/long-poll.js';
import { openSession } from '../src/transports/session.js';

const MINUTE = 60_000;
const RETRY = { jitter: 'none' } as const;
/** Number of attempts in a minute: pauses of 0.5, 1, 2, 4, 8, 16 and 20 s fit into it. */
const TRIES = 8;

beforeEach(() => void vi.useFakeTimers());
afterEach(() => void vi.useRealTimers());

/** Returns a transport whose links open at once and then fail every request. */
function failing(thrown: () => unknown): { transport: Transport; asked: () => number } {
  let asked = 0;
  const open = (host: LinkHost): Link => {
    queueMicrotask(() => host.report('opened', 1));
    queueMicrotask(() => host.report('alive', Infinity));
    const ask = async (): Promise<never> => {
      asked++;
      throw thrown();
    };
    return { changed() {}, ping() {}, close() {}, ask };
  };
  return { transport: { name: 'websocket', open }, asked: () => asked };
}

describe('the client', () => {
  test('a failing link is retried after the backoff', async () => {
    const { transport, asked } = failing(() => new MillraceError('network', 'gone'));
    const mr = client('http://x', [transport], { retry: RETRY });
    const published = mr.publish('a', 1);
    published.catch(() => {});
    await vi.advanceTimersByTimeAsync(MINUTE);
    expect(asked()).toBe(TRIES);
    await mr.close();
    await expect(published).rejects.toMatchObject({ code: 'aborted' });
  });

  test('an unknown error is not retried', async () => {
    const { transport, asked } = failing(() => new TypeError('a defect'));
    const mr = client('http://x', [transport]);
    await expect(mr.publish('a', 1)).rejects.toMatchObject({ code: 'invalid', retryable: false });
    expect(asked()).toBe(1);
    await mr.close();
  });

  test('a backoff can be aborted', async () => {
    const { transport } = failing(() => new MillraceError('network', 'gone'));
    const mr = client('http://x', [transport], { retry: RETRY });
    const controller = new AbortController();
    const published = mr.publish('a', 1, { signal: controller.signal });
    published.catch(() => {});
    await vi.advanceTimersByTimeAsync(100);
    controller.abort();
    await expect(published).rejects.toMatchObject({ code: 'aborted' });
    await mr.close();
  });
});

describe('short-lived links', () => {
  /** Returns the number of links opened in a minute, if `after` is called with each link as soon as it is open. */
  function opens(after: (link: Attempt, now: number, report: (...input: any) => void) => void): number {
    const made = machine({ order: ['websocket'], random: () => 0.5 });
    let [now, count] = [0, 0];
    const carryOut = (): void => {
      for (let output; (output = made.pollOutput()); ) {
        if (output[0] !== 'open') continue;
        const link = output[1];
        if (++count > 1000) throw new Error(`no pause: ${count} links in ${now} ms`);
        made.handleInput(now, 'opened', 1, link);
        after(link, now, (...input) => made.handleInput(now, ...(input as ['wake'])));
      }
    };
    made.handleInput(now, 'start');
    for (carryOut(); made.pollTimeout() <= MINUTE; carryOut()) {
      now = Math.max(now, made.pollTimeout());
      made.handleInput(now, 'timeout');
    }
    return count;
  }

  test.each([undefined, 0, -5])('immediate closes back off, with Retry-After %s', (retryAfter) => {
    expect(opens((link, _, report) => report('closed', new MillraceError('network', 'gone', { retryAfter }), link))).toBeLessThan(2 * TRIES);
  });

  test('immediate drains do not loop', () => {
    expect(opens((link, _, report) => report('drain', 0, link))).toBeLessThanOrEqual(MINUTE / 500 + 1);
  });
});

test.each([undefined, 0, -5, NaN, 3e9, Infinity])('the backoff is valid for Retry-After %s', (retryAfter) => {
  const pause = pauseOf(new MillraceError('network', '', { retryAfter }), 0, undefined, 0.5);
  // A timer of more than 2^31 ms fires at once.
  expect(pause).toBeGreaterThanOrEqual(250);
  expect(pause).toBeLessThan(2 ** 31);
});

describe('transports', () => {
  /** Returns the number of requests in a minute, by method. */
  async function requests(options: ConnectOptions, answer: (request: { url: string; method: string }) => Response, use: (mr: Client) => void): Promise<Record<string, number>> {
    const count: Record<string, number> = {};
    const fetch = async (url: unknown, { method = 'GET' }: RequestInit = {}): Promise<Response> => {
      count[method] = (count[method] ?? 0) + 1;
      if (count[method] > 2000) throw new Error('no pause');
      return answer({ url: String(url), method });
    };
    const mr: Client = millrace('http://x', { retry: RETRY, ...options, fetch: fetch as typeof globalThis.fetch });
    use(mr);
    await vi.advanceTimersByTimeAsync(MINUTE);
    await mr.close();
    return count;
  }
  const busy = (after: string) => new Response('', { status: 503, headers: { 'Retry-After': after } });

  test.each(['http-stream', 'sse', 'long-poll', 'poll'] as const)('%s: a busy server is not flooded', async (transport) => {
    for (const after of ['0', '-1', '3000000', 'soon']) {
      const { GET } = await requests({ transports: [transport] }, () => busy(after), (mr) => void mr.subscribe('a'));
      expect(GET, after).toBeLessThanOrEqual(TRIES);
      // Publications have their own loop once the link is open.
      const answer = ({ method }: { method: string }): Response => (method === 'POST' ? busy(after) : new Response('{}'));
      const { POST } = await requests({ transports: [transport] }, answer, (mr) => void mr.publish('a', 1).catch(() => {}));
      expect(POST, after).toBeLessThanOrEqual(TRIES);
    }
  });

  test('empty long poll responses do not loop', async () => {
    const empty = (): Response => new Response(undefined, { status: 204, headers: { 'Millrace-Position': 'a@e:1' } });
    const { GET } = await requests({ transports: ['long-poll'] }, empty, (mr) => void mr.subscribe('a'));
    expect(GET).toBeGreaterThan(10);
    expect(GET).toBeLessThanOrEqual(MINUTE / 500 + 2);
    expect(longPoll.name).toBe('long-poll');
  });

  test('tokens that expire at once do not loop', async () => {
    let refreshed = 0;
    const host = { token: async () => 't', hub: { wanted: () => [] }, counts: {}, report() {} } as unknown as LinkHost;
    const link = openSession(host, (_, __, receive) => {
      queueMicrotask(() => receive(JSON.stringify({ push: 'connected', ping_ms: 25_000, message_bytes_max: 1 << 20, expires_ms: 1 })));
      return {
        send(text) {
          const { id, refresh } = JSON.parse(text);
          if (!refresh) return;
          if (++refreshed > 2000) throw new Error('no pause');
          queueMicrotask(() => receive(JSON.stringify({ id, ok: { expires_ms: 0.001 } })));
        },
        close() {},
      };
    });
    await vi.advanceTimersByTimeAsync(MINUTE);
    link.close();
    expect(refreshed).toBeGreaterThan(10);
    expect(refreshed).toBeLessThanOrEqual(MINUTE / 1000);
  });

  test('a session renews its token when an operator asks for it', async () => {
    const sent: string[] = [];
    let push: (message: object) => void;
    const host = { token: async () => 't', hub: { wanted: () => [] }, counts: {}, report() {} } as unknown as LinkHost;
    const link = openSession(host, (_, __, receive) => {
      push = (message) => receive(JSON.stringify(message));
      queueMicrotask(() => push({ push: 'connected', ping_ms: 25_000, message_bytes_max: 1 << 20, expires_ms: 10 * MINUTE }));
      return { send: (text) => void sent.push(...Object.keys(JSON.parse(text)).slice(1)), close() {} };
    });
    await vi.advanceTimersByTimeAsync(0);
    push!({ push: 'refresh', expires_ms: 30_000 });
    await vi.advanceTimersByTimeAsync(26_000);
    expect(sent).toEqual(['ping']);
    await vi.advanceTimersByTimeAsync(2000);
    expect(sent).toEqual(['ping', 'refresh']);
    await vi.advanceTimersByTimeAsync(10 * MINUTE);
    link.close();
    expect(sent, 'once: the earlier timer is over').toEqual(['ping', 'refresh']);
  });

  test('a subscription that an operator has ended is not made again', async () => {
    const sent: string[] = [];
    const ended: unknown[] = [];
    let wanted = [{ channel: 'a', policy: 'every' }, { channel: 'b', policy: 'every' }];
    let push: (message: object) => void;
    const hub = {
      wanted: () => wanted,
      started() {},
      refused(channel: string, cause: MillraceError) {
        ended.push([channel, cause.code, cause.retryable]);
        wanted = wanted.filter((want) => want.channel !== channel);
        return true;
      },
    };
    const host = { hub, counts: {}, report() {} } as unknown as LinkHost;
    const link = openSession(host, (_, __, receive) => {
      push = (message) => receive(JSON.stringify(message));
      return { send: (text) => void sent.push(JSON.parse(text).subscribe?.channel ?? Object.keys(JSON.parse(text))[1]), close() {} };
    });
    await vi.advanceTimersByTimeAsync(0);
    push!({ push: 'connected', ping_ms: 25_000, message_bytes_max: 1 << 20 });
    link.changed();
    push!({ push: 'unsubscribed', channel: 'a', code: 'forbidden', detail: 'an operator has ended this subscription', retry: false });
    link.changed();
    link.close();
    expect(ended).toEqual([['a', 'auth', false]]);
    expect(sent).toEqual(['ping', 'a', 'b']);
  });

  test('room signals are retried with backoff', async () => {
    const times: number[] = [];
    const fetch = async (): Promise<Response> => (times.push(Date.now()), busy('0'));
    new Server('http://x', 'r', { fetch: fetch as typeof globalThis.fetch }).signal('other', { bye: '' });
    await vi.advanceTimersByTimeAsync(MINUTE);
    expect(times.length).toBe(6);
    expect(times.at(-1)! - times[0]!).toBeGreaterThan(100);
  });
});

describe('retryable errors', () => {
  test.each([
    ['fetch: a network error', unreachable(Object.assign(new TypeError('fetch failed'), { cause: { code: 'ECONNREFUSED' } }), 'http://x:9/y'), 'network', true],
    ['fetch: a time limit', unreachable(new DOMException('', 'TimeoutError'), 'http://x'), 'timeout', true],
    ['fetch: a defect', unreachable(new RangeError('x'), 'http://x'), 'invalid', false],
    ['anything else', toError(new TypeError('x')), 'invalid', false],
    ['no error at all', toError('x'), 'invalid', false],
    ['what is not JSON', toError(new SyntaxError('x')), 'protocol', false],
    ['a lost connection', closeError(1006, '', 'ws://x'), 'network', true],
    ['a code of the server that is not known', refused({ code: 'new' }), 'rejected', false],
  ])('%s', (_, error, code, retryable) => {
    expect(error).toMatchObject({ code, retryable });
  });

  test.each([[500, true], [502, true], [429, true], [408, true], [404, false], [400, false], [401, false], [403, false]])('status %i of a proxy is retryable: %s', async (status, retryable) => {
    expect(await problem(new Response('<html>', { status }))).toMatchObject({ retryable, message: `HTTP ${status}` });
  });

  test('an error names the address and its cause', () => {
    expect(unreachable(Object.assign(new TypeError('fetch failed'), { cause: { code: 'ECONNREFUSED' } }), 'http://x:9/y').message).toBe('no connection to http://x:9: ECONNREFUSED');
    expect(closeError(1006, undefined, 'ws://x:9/v1/connect').message).toBe('ws://x:9/v1/connect closed with 1006: no reason given');
  });
});
