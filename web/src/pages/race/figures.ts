/** Figures of one lane in a race. They come from ticks, times and counters alone, so that tests can replay them. */
import { quantile, type Tick } from '../../lib/ticks';
import type { Impairment } from './api';

/** Newest ages that the live figure uses. */
const RECENT_MAX = 100;
/** Maximum length of `link`. */
export const LINK_CHARS_MAX = 120;

export interface Row {
  readonly ticks: number;
  /** Ticks that were published during the race and did not arrive. */
  readonly missed: number;
  readonly p50: number | undefined;
  readonly p99: number | undefined;
  readonly bytesPerTick: number | undefined;
  readonly requests: number;
  readonly reconnects: number;
  /** Impairments of the lane during the race, in words. */
  readonly link: string;
}

/** Counters of a lane that only grow. */
export interface Totals {
  readonly bytes: number;
  readonly requests: number;
  readonly reconnects: number;
}

const NONE: Totals = { bytes: 0, requests: 0, reconnects: 0 };

/** Describes an impairment, or returns an empty string. */
export function describe({ cut, delay_ms, rate_kbit_s }: Impairment): string {
  const parts = [cut && 'cut', delay_ms > 0 && `+${2 * delay_ms} ms`, rate_kbit_s > 0 && `${rate_kbit_s} kbit/s`];
  return parts.filter((part) => part !== false).join(', ');
}

export class Figures {
  /** The newest tick of any symbol, and of the symbol whose price all lanes show. */
  newest: Tick | undefined;
  shown: Tick | undefined;
  /** Time at which the lane arrived at the end of the race, ms since 1970. */
  finishedAt: number | undefined;
  /** Figures of the race, from the first count after its end. */
  final: Row | undefined;
  #from = Infinity;
  #to = Infinity;
  /** Ages of the ticks of the race, and of the newest ticks, ms. */
  #ages: number[] = [];
  #recent: number[] = [];
  #seqs = new Set<number>();
  #links = new Set<string>();
  #received = 0;
  /** The newest counters with the ticks that had arrived at the time; and those at the start of the race. */
  #counted = { ...NONE, received: 0 };
  #base = { ...NONE, received: 0 };

  /** Begins a race over the ticks `from` + 1 to `to`. */
  start(from: number, to: number): void {
    [this.#from, this.#to, this.finishedAt, this.final, this.#ages] = [from, to, undefined, undefined, []];
    this.#seqs.clear();
    this.#links.clear();
    // The request that is in progress belongs to the race.
    this.#base = { ...this.#counted, requests: Math.max(0, this.#counted.requests - 1) };
  }

  /** Handles a tick that arrived at `now`, by the publisher's clock. `symbol`: the one whose price all lanes show. */
  handle(tick: Tick, now: number, symbol: string): void {
    if (!this.newest || tick.seq > this.newest.seq) this.newest = tick;
    if (tick.symbol === symbol && tick.seq > (this.shown?.seq ?? 0)) this.shown = tick;
    const age = Math.max(0, now - tick.time);
    this.#received++;
    this.#recent.push(age);
    if (this.#recent.length > RECENT_MAX) this.#recent.shift();
    if (tick.seq > this.#from && tick.seq <= this.#to && !this.#seqs.has(tick.seq)) {
      this.#seqs.add(tick.seq);
      this.#ages.push(age);
    }
    // A reader that has lost the last tick finishes with a later one.
    if (this.finishedAt === undefined && tick.seq >= this.#to) this.finishedAt = now;
  }

  /** Takes over the counters of the server and of the reader, and the impairment of the lane. */
  count(totals: Totals, impairment: Impairment): void {
    this.#counted = { ...totals, received: this.#received };
    const link = describe(impairment);
    if (link && this.finishedAt === undefined) this.#links.add(link);
    if (this.finishedAt !== undefined) this.final ??= this.row();
  }

  /** Share of the race that has arrived, 0 to 1. */
  get progress(): number {
    return this.#from === Infinity ? 0 : this.#passed() / (this.#to - this.#from);
  }

  /** The 99th percentile of the newest ages, ms. */
  get recentP99(): number | undefined {
    return quantile(sorted(this.#recent), 0.99);
  }

  /** Returns the figures since the start of the race; `ticks`, `missed` and the ages count its ticks only. */
  row(): Row {
    const ages = sorted(this.#ages);
    const received = this.#counted.received - this.#base.received;
    return {
      ticks: this.#seqs.size,
      missed: Math.max(0, this.#passed() - this.#seqs.size),
      p50: quantile(ages, 0.5),
      p99: quantile(ages, 0.99),
      bytesPerTick: received > 0 ? (this.#counted.bytes - this.#base.bytes) / received : undefined,
      requests: this.#counted.requests - this.#base.requests,
      reconnects: this.#counted.reconnects - this.#base.reconnects,
      link: [...this.#links].join('; ').slice(0, LINK_CHARS_MAX),
    };
  }

  /** Ticks of the race up to the newest one that has arrived. */
  #passed(): number {
    return this.#from === Infinity ? 0 : Math.max(0, Math.min(this.newest?.seq ?? 0, this.#to) - this.#from);
  }
}

const sorted = (values: readonly number[]): number[] => [...values].sort((a, b) => a - b);
