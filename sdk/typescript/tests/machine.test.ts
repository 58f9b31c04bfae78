import { beforeEach, describe, expect, test } from 'vitest';
import { MillraceError } from '../src/errors.js';
import { machine, type Attempt, type Input as MachineInput, type Machine, type MachineOptions } from '../src/machine.js';
import type { State, TransportName } from '../src/types.js';

/** Inputs and outputs as the tests write them: links are numbered in the order in which they were opened. */
type Input =
  | { type: 'start' | 'online' | 'offline' | 'visible' | 'hidden' | 'wake' | 'close' }
  | { type: 'use'; order: TransportName[] }
  | { type: 'opened'; link: number; rtt: number }
  | { type: 'alive'; link: number; withinMs: number }
  | { type: 'closed'; link: number; error: MillraceError }
  | { type: 'drain'; link: number; afterMs: number };
type Output =
  | { type: 'open'; link: number; transport: TransportName }
  | { type: 'abort' | 'active' | 'ping'; link: number }
  | { type: 'stayed'; error: MillraceError }
  | { type: 'state'; state: State };

/** A machine with virtual time. `at` is the current time, ms. */
class Bench {
  at = 0;
  readonly outputs: Output[] = [];
  readonly #links: Attempt[] = [];
  readonly machine: Machine;

  constructor(options: Partial<MachineOptions> = {}) {
    this.machine = machine({ order: ['websocket'], random: () => 0.5, ...options });
  }

  input(input: Input): void {
    const { type, link, ...rest } = { link: 0, ...input };
    this.machine.handleInput(this.at, ...([type, Object.values(rest)[0], this.#links[link - 1]] as unknown as MachineInput));
    this.#take();
  }

  /** Advances the time, and fires every deadline when it is due. */
  pass(ms: number): void {
    const end = this.at + ms;
    expect(end).toBeLessThan(Infinity);
    while (this.machine.pollTimeout() <= end) {
      this.at = Math.max(this.at, this.machine.pollTimeout());
      this.machine.handleInput(this.at, 'timeout');
      this.#take();
    }
    this.at = end;
  }

  /** Advances the time without timers, as during a suspend. Then one late timer fires. */
  sleep(ms: number): void {
    this.at += ms;
    this.machine.handleInput(this.at, 'timeout');
    this.#take();
  }

  #take(): void {
    for (let output; (output = this.machine.pollOutput()); ) {
      const [type, what] = output;
      if (type === 'state') this.outputs.push({ type, state: what });
      else if (type === 'stayed') this.outputs.push({ type, error: what });
      else if (type === 'open') this.outputs.push({ type, link: this.#links.push(what), transport: what.transport });
      else this.outputs.push({ type, link: this.#links.indexOf(what) + 1 });
    }
  }

  of<T extends Output['type']>(type: T): Extract<Output, { type: T }>[] {
    return this.outputs.filter((output): output is Extract<Output, { type: T }> => output.type === type);
  }

  get lastOpened(): number {
    return this.of('open').at(-1)!.link;
  }

  get opens(): string[] {
    return this.of('open').map(({ transport }) => transport);
  }

  opened(link = this.lastOpened): void {
    this.input({ type: 'opened', link, rtt: 20 });
    this.input({ type: 'alive', link, withinMs: 25_000 });
  }

  closed(error: MillraceError = lost, link = this.lastOpened): void {
    this.input({ type: 'closed', link, error });
  }
}

const lost = new MillraceError('network', 'gone');
let bench: Bench;

beforeEach(() => {
  bench = new Bench();
});

function open(options?: Partial<MachineOptions>): Bench {
  bench = new Bench(options);
  bench.input({ type: 'start' });
  bench.opened();
  return bench;
}

test('the client opens nothing before first use', () => {
  bench.pass(60_000);
  expect(bench.outputs).toEqual([]);
  bench.input({ type: 'start' });
  expect(bench.opens).toEqual(['websocket']);
  expect(bench.machine.state).toMatchObject({ name: 'connecting', attempt: 0, transport: 'websocket' });
});

describe('racing', () => {
  const order = ['websocket', 'http-stream', 'sse'] as const;

  test('the next transport starts after 1.5 s; first open wins', () => {
    bench = new Bench({ order });
    bench.input({ type: 'start' });
    bench.pass(1499);
    expect(bench.opens).toEqual(['websocket']);
    bench.pass(1);
    expect(bench.opens).toEqual(['websocket', 'http-stream']);
    bench.opened();
    expect(bench.machine.state).toMatchObject({ name: 'open', transport: 'http-stream', resumed: false });
    expect(bench.of('abort')).toEqual([{ type: 'abort', link: 1 }]);
    bench.pass(5000);
    expect(bench.opens).toHaveLength(2);
  });

  test('a failed transport starts the next one at once', () => {
    bench = new Bench({ order });
    bench.input({ type: 'start' });
    bench.closed();
    expect(bench.opens).toEqual(['websocket', 'http-stream']);
    bench.opened();
    bench.pass(20_000);
    bench.closed();
    bench.pass(300);
    expect(bench.opens).toEqual(['websocket', 'http-stream', 'http-stream']);
  });

  test('a late loser changes nothing', () => {
    bench = new Bench({ order });
    bench.input({ type: 'start' });
    bench.pass(1500);
    bench.opened(2);
    bench.opened(1);
    expect(bench.machine.state).toMatchObject({ transport: 'http-stream' });
    expect(bench.of('active')).toEqual([{ type: 'active', link: 2 }]);
  });

  test('an attempt is given up after 10 s', () => {
    bench.input({ type: 'start' });
    bench.pass(10_000);
    expect(bench.of('abort')).toEqual([{ type: 'abort', link: 1 }]);
    expect(bench.machine.state).toMatchObject({ name: 'connecting', cause: { code: 'timeout' } });
  });
});

describe('backoff', () => {
  test('doubles from 0.5 s to 20 s, with full jitter', () => {
    bench = new Bench({ random: () => 0.999999 });
    bench.input({ type: 'start' });
    const delays = [];
    for (let n = 0; n < 8; n++) {
      const { at } = bench;
      bench.closed();
      delays.push(Math.round(bench.machine.pollTimeout() - at));
      bench.pass(delays[n]! + 1);
    }
    expect(delays).toEqual([500, 1000, 2000, 4000, 8000, 16_000, 20_000, 20_000]);
    bench = new Bench({ random: () => 0 });
    bench.input({ type: 'start' });
    bench.closed();
    expect(bench.machine.pollTimeout()).toBe(0);
  });

  test('only a stable connection resets the backoff', () => {
    open({ random: () => 0.999999 });
    bench.pass(10_000);
    bench.closed();
    expect(Math.round(bench.machine.pollTimeout() - bench.at)).toBe(300);
    bench.pass(301);
    bench.opened();
    bench.pass(5000);
    bench.closed();
    expect(Math.round(bench.machine.pollTimeout() - bench.at)).toBe(1000);
  });

  test('retryAfter of the server takes precedence', () => {
    bench.input({ type: 'start' });
    bench.closed(new MillraceError('network', 'busy', { retryAfter: 30_000 }));
    expect(bench.machine.pollTimeout()).toBe(33_000);
  });
});

test('complaint 01: the client retries at once when online', () => {
  open();
  bench.pass(60_000 - 25_000 - 1);
  bench.input({ type: 'offline' });
  bench.pass(2000);
  expect(bench.machine.state).toEqual({ name: 'paused', reason: 'offline' });
  bench.pass(7000);
  const before = bench.opens.length;
  bench.input({ type: 'online' });
  expect(bench.opens).toHaveLength(before + 1);
  expect(bench.machine.state).toMatchObject({ name: 'connecting' });
});

test('complaint 01: a network change replaces a hanging attempt', () => {
  bench.input({ type: 'start' });
  bench.pass(5000);
  bench.input({ type: 'online' });
  expect(bench.opens).toEqual(['websocket', 'websocket']);
  expect(bench.of('abort')).toEqual([{ type: 'abort', link: 1 }]);
});

test('complaint 01: one hanging attempt restarts all attempts', () => {
  bench = new Bench({ order: ['websocket', 'http-stream'] });
  bench.input({ type: 'start' });
  bench.pass(2500);
  bench.input({ type: 'online' });
  expect(bench.opens).toEqual(['websocket', 'http-stream', 'websocket']);
  expect(bench.of('abort')).toEqual([{ type: 'abort', link: 1 }, { type: 'abort', link: 2 }]);
});

test('a responding connection survives an offline event', () => {
  open();
  bench.input({ type: 'offline' });
  bench.pass(1000);
  bench.input({ type: 'alive', link: 1, withinMs: 25_000 });
  bench.pass(20_000);
  expect(bench.machine.state).toMatchObject({ name: 'open' });
});

test('complaint 02: a dead connection is detected within 2 s of waking', () => {
  open();
  bench.at += 3_600_000;
  bench.input({ type: 'visible' });
  expect(bench.of('ping')).toEqual([{ type: 'ping', link: 1 }]);
  bench.pass(2000);
  expect(bench.of('abort')).toEqual([{ type: 'abort', link: 1 }]);
  expect(bench.machine.state).toMatchObject({ name: 'connecting', cause: { code: 'timeout' } });
  bench.pass(300);
  expect(bench.opens).toHaveLength(2);
});

test('complaint 03: a healthy connection survives the overdue timer after sleep', () => {
  open();
  bench.sleep(3_600_000);
  expect(bench.machine.state).toMatchObject({ name: 'open' });
  expect(bench.of('ping')).toHaveLength(1);
  // After another suspend, the deadline of that ping is overdue too. Data that arrived meanwhile is read first.
  bench.sleep(600_000);
  expect(bench.machine.state).toMatchObject({ name: 'open' });
  bench.input({ type: 'alive', link: 1, withinMs: 25_000 });
  bench.pass(20_000);
  expect(bench.of('abort')).toEqual([]);
  expect(bench.machine.state).toMatchObject({ name: 'open' });
});

test('complaint 03: a dead connection gets that grace once', () => {
  open();
  bench.sleep(3_600_000);
  bench.sleep(600_000);
  bench.sleep(600_000);
  expect(bench.machine.state).toMatchObject({ name: 'connecting' });
});

test('a silent connection is pinged, then given up after 10 s', () => {
  open();
  bench.pass(25_000);
  expect(bench.of('ping')).toHaveLength(1);
  bench.pass(9999);
  expect(bench.machine.state).toMatchObject({ name: 'open' });
  bench.pass(1);
  expect(bench.machine.state).toMatchObject({ name: 'connecting' });
});

test('complaint 07: close is final', () => {
  open();
  bench.input({ type: 'close' });
  const { length } = bench.outputs;
  for (const type of ['start', 'visible', 'online', 'wake'] as const) bench.input({ type });
  bench.input({ type: 'use', order: ['sse'] });
  bench.pass(3_600_000);
  expect(bench.outputs).toHaveLength(length);
  expect(bench.machine.state).toEqual({ name: 'closed' });
  expect(bench.machine.pollTimeout()).toBe(Infinity);
});

describe('complaint 08: drain', () => {
  test('clients reconnect at their assigned time', () => {
    open();
    bench.input({ type: 'drain', link: 1, afterMs: 10_000 });
    bench.pass(9999);
    expect(bench.opens).toHaveLength(1);
    bench.pass(1);
    expect(bench.opens).toHaveLength(2);
    expect(bench.machine.state).toMatchObject({ name: 'open' });
    bench.opened();
    expect(bench.outputs.slice(-3, -1)).toEqual([{ type: 'abort', link: 1 }, { type: 'active', link: 2 }]);
    expect(bench.machine.state).toMatchObject({ name: 'open', resumed: true });
  });

  test('hidden pages wait five times as long', () => {
    open();
    bench.input({ type: 'hidden' });
    bench.input({ type: 'drain', link: 1, afterMs: 10_000 });
    bench.pass(10_000);
    bench.closed(lost, 1);
    expect(bench.machine.state).toMatchObject({ name: 'connecting', retryAt: 50_000 });
    bench.pass(39_999);
    expect(bench.opens).toHaveLength(1);
    bench.pass(1);
    expect(bench.opens).toHaveLength(2);
  });
});

describe('complaint 09: no silent stop, no endless loop', () => {
  test('the state shows next attempt and cause', () => {
    bench.input({ type: 'start' });
    bench.closed();
    expect(bench.machine.state).toEqual({ name: 'connecting', attempt: 1, transport: 'websocket', retryAt: 250, cause: lost });
  });

  test('giveUpAfter closes the client with the cause', () => {
    bench = new Bench({ retry: { giveUpAfter: 5000 } });
    bench.input({ type: 'start' });
    for (let n = 0; n < 50; n++) {
      bench.closed();
      if (bench.machine.state.name === 'closed') break;
      bench.pass(bench.machine.pollTimeout() - bench.at);
    }
    expect(bench.machine.state).toEqual({ name: 'closed', cause: lost });
    expect(bench.at).toBe(5000);
  });

  test('an error that is not retryable closes at once', () => {
    open();
    const refusal = new MillraceError('protocol', '1002');
    bench.closed(refusal);
    expect(bench.machine.state).toEqual({ name: 'closed', cause: refusal });
  });

  test('one refused transport does not close the client', () => {
    bench = new Bench({ order: ['websocket', 'poll'] });
    bench.input({ type: 'start' });
    bench.closed(new MillraceError('rejected', '404'));
    expect(bench.opens).toEqual(['websocket', 'poll']);
    bench.closed();
    expect(bench.machine.state).toMatchObject({ name: 'connecting' });
  });
});

test('complaint 14: wake retries now', () => {
  bench.input({ type: 'start' });
  bench.closed();
  bench.input({ type: 'wake' });
  expect(bench.opens).toHaveLength(2);
});

describe('use', () => {
  test('the old link works until the new one opens', () => {
    open();
    bench.input({ type: 'use', order: ['sse'] });
    expect(bench.opens).toEqual(['websocket', 'sse']);
    expect(bench.of('abort')).toEqual([]);
    bench.opened();
    expect(bench.machine.state).toMatchObject({ name: 'open', transport: 'sse', resumed: true });
    expect(bench.of('abort')).toEqual([{ type: 'abort', link: 1 }]);
  });

  test('a failed switch keeps the working link', () => {
    open({ order: ['websocket', 'poll'] });
    bench.input({ type: 'use', order: ['sse'] });
    bench.closed();
    expect(bench.of('stayed')).toEqual([{ type: 'stayed', error: lost }]);
    expect(bench.machine.state).toMatchObject({ name: 'open', transport: 'websocket' });
    bench.closed(lost, 1);
    bench.pass(1000);
    expect(bench.opens).toEqual(['websocket', 'sse', 'websocket']);
  });

  test('losing the old link waits for the new one', () => {
    open();
    bench.input({ type: 'use', order: ['sse'] });
    bench.closed(lost, 1);
    bench.opened(2);
    expect(bench.machine.state).toMatchObject({ name: 'open', transport: 'sse' });
    expect(bench.opens).toEqual(['websocket', 'sse']);
  });

  test('a reconnect uses the chosen transport', () => {
    open({ order: ['websocket', 'poll'] });
    bench.input({ type: 'use', order: ['sse'] });
    bench.opened();
    bench.pass(20_000);
    bench.closed();
    bench.pass(30_000);
    expect(bench.opens.slice(2).every((transport) => transport === 'sse')).toBe(true);
  });
});

test('hidden pages pause after 10 s and resume', () => {
  open({ pauseHidden: true });
  bench.input({ type: 'hidden' });
  bench.pass(9999);
  expect(bench.machine.state).toMatchObject({ name: 'open' });
  bench.pass(1);
  expect(bench.machine.state).toEqual({ name: 'paused', reason: 'hidden' });
  bench.input({ type: 'online' });
  expect(bench.opens).toHaveLength(1);
  bench.input({ type: 'visible' });
  expect(bench.opens).toHaveLength(2);
});

test('random inputs leave at most one active link', () => {
  for (let seed = 1; seed <= 300; seed++) {
    let n = seed;
    const random = (): number => (n = (n * 48271) % 2147483647) / 2147483647;
    bench = new Bench({ order: ['websocket', 'http-stream', 'poll'], random, pauseHidden: seed % 2 === 0 });
    const live = new Set<number>();
    let active = 0;
    let seen = 0;
    for (let step = 0; step < 200; step++) {
      const link = Math.ceil(random() * (bench.opens.length + 1));
      const inputs: Input[] = [
        { type: 'start' }, { type: 'wake' }, { type: 'online' }, { type: 'offline' }, { type: 'hidden' }, { type: 'visible' },
        { type: 'use', order: ['sse'] }, { type: 'use', order: ['websocket', 'poll'] },
        { type: 'opened', link, rtt: 1 }, { type: 'opened', link: bench.opens.length, rtt: 1 }, { type: 'alive', link, withinMs: 25_000 },
        { type: 'closed', link, error: lost }, { type: 'drain', link, afterMs: 3000 },
      ];
      const input = inputs[Math.floor(random() * inputs.length)]!;
      // Only open links, and links that are being opened, report events.
      if (!('link' in input) || live.has(input.link)) {
        if (input.type === 'closed') live.delete(input.link);
        bench.input(input);
      }
      if (random() < 0.5) bench.pass(random() * 15_000);
      for (const output of bench.outputs.slice(seen)) {
        if (output.type === 'open') live.add(output.link);
        else if (output.type === 'abort') live.delete(output.link);
        else if (output.type === 'active') active = output.link;
        else if (output.type === 'ping') expect(output.link, `seed ${seed}`).toBe(active);
      }
      seen = bench.outputs.length;
      const { name } = bench.machine.state;
      if (name === 'open') expect(live.has(active), `seed ${seed}, step ${step}`).toBe(true);
      if (name === 'paused') expect(live.size, `seed ${seed}, step ${step}`).toBe(0);
      if (name === 'connecting' || name === 'open') expect(bench.machine.pollTimeout(), `seed ${seed}, step ${step}`).toBeLessThan(Infinity);
    }
  }
});
