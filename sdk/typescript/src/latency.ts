// Latency from publishing to the callback of the application, in `stats()`.
//
//   import { latency } from '@millrace/client/latency';
//   const mr = latency(millrace('https://example.com'));
//   setInterval(() => show(mr.stats().latency), 1000);
//
// A publication carries the time of the server's clock, so the difference between that clock and the one of this
// machine must be known. Every ping gives bounds: the server reads its clock after the ping was sent and before the
// answer arrived. The bounds of several pings together are narrower than those of one. A ping is a command of a
// session; on HTTP transports it is a request of `/v1/info`.
import type { Ask } from './link.js';
import { sleep } from './listen.js';
import type { Client, Event, Stats, SubscribeOptions, Subscription } from './types.js';

export interface Latency {
  /** Number of callbacks in the figures: the newest ones, at most 1024. */
  readonly count: number;
  /**
   * Milliseconds from the time that the server gave the publication to the callback. Undefined while there is no
   * callback, or while the difference of the clocks is unknown.
   */
  readonly p50: number | undefined;
  readonly p99: number | undefined;
  readonly max: number | undefined;
  /**
   * The figures are correct to this many milliseconds: at most half the shortest round trip, plus 1 ms for the
   * resolution of the clocks, plus 0.1 ms per second since that ping. A small latency may therefore be negative.
   */
  readonly errorMs: number | undefined;
  /** The server's clock minus the clock of this machine, ms. */
  readonly offsetMs: number | undefined;
}

export type WithLatency<C extends { stats(): Stats }> = Omit<C, 'stats'> & { stats(): ReturnType<C['stats']> & { readonly latency: Latency } };

export interface LatencyOptions {
  /** Milliseconds between two measurements of the clocks. Default 30,000. */
  readonly everyMs?: number;
}

const SAMPLES = 1024;
/** Pings right after the connection has opened, and the pause between them, ms. */
const FIRST_PINGS = 5;
const FIRST_PAUSE = 200;
/** Pings whose bounds are used. */
const PINGS = 10;
/** Two clocks move apart by at most this part of the time; quartz clocks have 20 to 50 millionths. */
const DRIFT = 1e-4;
/** The server's clock has no fractions of a millisecond. */
const RESOLUTION = 1;

/** Bounds of the server's clock minus the clock of this machine at the time `at`. */
interface Bounds {
  readonly low: number;
  readonly high: number;
  readonly at: number;
}

/** Estimates the server's clock. No I/O: every function gets the time of this machine, ms. */
export class ClockEstimate {
  #bounds: Bounds[] = [];

  /**
   * Adds a ping that was sent at `sent`, and whose answer arrived at `received` with the time `server`. Returns whether
   * a clock was set meanwhile.
   */
  add(sent: number, received: number, server: number): boolean {
    this.#bounds = [...this.#bounds.slice(1 - PINGS), { low: server - received, high: server + RESOLUTION - sent, at: received }];
    if (this.at(received)) return false;
    // The bounds contradict each other: a clock was set, or this machine was suspended.
    this.#bounds = this.#bounds.slice(-1);
    return true;
  }

  /** Returns the estimate at the time `now`: the middle of the bounds, and its error. */
  at(now: number): { readonly offset: number; readonly error: number } | undefined {
    const drift = ({ at }: Bounds): number => (now - at) * DRIFT;
    const low = Math.max(...this.#bounds.map((bounds) => bounds.low - drift(bounds)));
    const high = Math.min(...this.#bounds.map((bounds) => bounds.high + drift(bounds)));
    return this.#bounds.length && low <= high ? { offset: (low + high) / 2, error: (high - low) / 2 } : undefined;
  }
}

/**
 * Adds `latency` to `stats()` of a client, and returns the client. Subscriptions that were made before are not
 * measured, and neither are events from history, because they were published long before.
 *
 * The server's clock is measured over any transport. With several nodes, the clock is that of the node that answers;
 * the difference to the clock that gave the publication its time is not in `errorMs`.
 */
export function latency<C extends Pick<Client<any>, 'subscribe' | 'stats' | 'onState' | 'state'>>(mr: C, { everyMs = 30_000 }: LatencyOptions = {}): WithLatency<C> {
  const { ask } = mr as unknown as { ask: Ask };
  const subscribe = mr.subscribe as (channel: string, options?: SubscribeOptions<any>) => Subscription<any>;
  const { stats } = mr;
  const clock = new ClockEstimate();
  /** Time of this machine at the callback, minus the time of the publication by the server's clock. */
  let samples: number[] = [];
  /** Number of the present round of pings. A later round ends it. */
  let round = 0;

  async function measure(): Promise<void> {
    const mine = ++round;
    for (let n = 1; mine === round && mr.state.name === 'open'; n++) {
      const sent = performance.now();
      const { time } = await ask('ping', { channel: 'ping' });
      // An older server has no `time` in `/v1/info`.
      if (time && clock.add(sent, performance.now(), time)) samples = [];
      await sleep(n < FIRST_PINGS ? FIRST_PAUSE : everyMs);
    }
  }

  function record({ publishedAt, replayed, complete }: Event): void {
    if (replayed || complete) return;
    samples.push(performance.now() - publishedAt);
    if (samples.length > SAMPLES) samples.shift();
  }

  function measured(channel: string, options?: SubscribeOptions<any>): Subscription<any> {
    const subscription = subscribe(channel, options);
    const { on } = subscription;
    const iterate = subscription[Symbol.asyncIterator];
    return Object.assign(subscription, {
      on(fn: (event: Event) => void, end?: Parameters<typeof on>[1]) {
        return on((event) => {
          record(event);
          fn(event);
        }, end);
      },
      [Symbol.asyncIterator](): AsyncIterator<Event> {
        const iterator = iterate();
        return {
          ...iterator,
          async next() {
            const result = await iterator.next();
            if (!result.done) record(result.value);
            return result;
          },
        };
      },
    });
  }

  function current(): Latency {
    const now = performance.now();
    const estimate = clock.at(now);
    const sorted = estimate && samples.map((sample) => sample + estimate.offset - RESOLUTION / 2).sort((a, b) => a - b);
    const quantile = (part: number): number | undefined => sorted?.[Math.max(0, Math.ceil(sorted.length * part) - 1)];
    return {
      count: samples.length,
      p50: quantile(0.5),
      p99: quantile(0.99),
      max: quantile(1),
      errorMs: estimate && estimate.error + RESOLUTION / 2,
      offsetMs: estimate && estimate.offset + now - Date.now(),
    };
  }

  const start = (): void => void measure().catch(() => {});
  mr.onState(({ name }) => name === 'open' && start());
  if (mr.state.name === 'open') start();
  return Object.assign(mr, { subscribe: measured, stats: () => ({ ...stats(), latency: current() }) }) as unknown as WithLatency<C>;
}
