/** The newest tick of each symbol, its prices of the last minute, and the delays of the newest ticks. */
import type { Event } from '@millrace/client';
import { quantile, tickOf } from '../../lib/ticks';

export const SPAN_MS = 60_000;
/** Symbols beyond this number are not shown. */
const SYMBOLS_MAX = 24;
const DELAYS_MAX = 500;

export interface Quote {
  readonly symbol: string;
  readonly price: number;
  /** Time of publication by the clock of this page, ms since 1970. */
  readonly at: number;
  /** Prices of the last minute by the clock of this page. */
  readonly points: readonly (readonly [time: number, price: number])[];
}

/** The part of an event that the board uses. */
export type Arrival = Pick<Event, 'data' | 'publishedAt' | 'receivedAt' | 'replayed'>;

export class Board {
  readonly #quotes = new Map<string, Quote>();
  /** Times from publication to arrival of the newest live ticks, ms. */
  readonly #delays: number[] = [];
  /** Difference of the clocks: the smallest time from publication to arrival. A phone's clock may be off by minutes. */
  #skew: number | undefined;
  #arrivals: number[] = [];
  live = 0;

  /** Accepts a message; returns false if it is no tick. */
  accept({ data, publishedAt, receivedAt, replayed }: Arrival): boolean {
    const tick = tickOf(data);
    const known = tick && this.#quotes.get(tick.symbol);
    if (!tick || (!known && this.#quotes.size >= SYMBOLS_MAX)) return false;
    const at = this.#pageTime(publishedAt, receivedAt, replayed);
    if (!replayed) {
      this.live++;
      this.#delays.push(receivedAt - at);
      if (this.#delays.length > DELAYS_MAX) this.#delays.shift();
      this.#arrivals.push(receivedAt);
    }
    const points = [...(known?.points ?? []), [at, tick.price] as const];
    // The last point before the minute stays: it is the price at the left edge.
    const first = points.findIndex(([time]) => time >= at - SPAN_MS);
    this.#quotes.set(tick.symbol, { symbol: tick.symbol, price: tick.price, at, points: points.slice(Math.max(0, first - 1)) });
    return true;
  }

  quotes(): Quote[] {
    return [...this.#quotes.values()].sort((a, b) => a.symbol.localeCompare(b.symbol));
  }

  /** Returns the median and the 99th percentile of the delays, ms. */
  delays(): { p50: number | undefined; p99: number | undefined } {
    const sorted = [...this.#delays].sort((a, b) => a - b);
    return { p50: quantile(sorted, 0.5), p99: quantile(sorted, 0.99) };
  }

  /** Forgets the delays, for example because the transport has changed. */
  forgetDelays(): void {
    this.#delays.length = 0;
  }

  /** Returns the live ticks per second over the last 5 s. */
  rate(now: number): number {
    this.#arrivals = this.#arrivals.filter((at) => at > now - 5_000);
    return this.#arrivals.length / 5;
  }

  /** If the clocks agree within 2 s, as on one machine, the difference counts as delay, not as skew. */
  #pageTime(publishedAt: number, receivedAt: number, replayed: boolean): number {
    const difference = receivedAt - publishedAt;
    if (!replayed && (this.#skew === undefined || difference < this.#skew)) this.#skew = difference;
    const skew = this.#skew !== undefined && (this.#skew < 0 || this.#skew > 2_000) ? this.#skew : 0;
    return Math.min(receivedAt, publishedAt + skew);
  }
}

/** Returns the change from the oldest price of the last minute, as a share. */
export const changeOf = ({ points, price }: Quote): number => price / points[0]![1] - 1;
