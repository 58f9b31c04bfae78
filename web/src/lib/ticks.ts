/** Price ticks, as `millrace simulate ticker` publishes them, and a market that a page can simulate by itself. */
export const CHANNEL = 'ticker';

export interface Tick {
  readonly symbol: string;
  readonly price: number;
  /** Time of publication by the publisher's clock, ms since 1970. */
  readonly time: number;
  /** Number of the tick over all symbols; increases by 1. */
  readonly seq: number;
}

const SYMBOL_CHARS_MAX = 12;
const isCount = (value: unknown): value is number => Number.isSafeInteger(value) && (value as number) >= 0;

/** Returns the tick in a message, or `undefined`: everyone who may publish can publish anything. */
export function tickOf(data: unknown): Tick | undefined {
  if (typeof data !== 'object' || data === null) return undefined;
  const { symbol, price, time, seq } = data as Partial<Record<keyof Tick, unknown>>;
  const isTick = typeof symbol === 'string' && symbol.length > 0 && symbol.length <= SYMBOL_CHARS_MAX && typeof price === 'number' && Number.isFinite(price) && isCount(time) && isCount(seq);
  return isTick ? { symbol, price, time, seq } : undefined;
}

/** The symbols and the first prices of crates/simulate/src/ticker.rs. */
const SYMBOLS = [['MILL', 128.4], ['RACE', 64.25], ['WEIR', 311.9], ['LOCK', 42.75], ['DAM', 187.1], ['FLUME', 96.6]] as const;
const CHANGE = 0.0012;
const RETURN = 0.002;

/** Prices that change one at a time: first one of each symbol, then random ones. */
export class Market {
  readonly #prices: number[] = SYMBOLS.map(([, price]) => price);
  #seq = 0;

  next(time: number): Tick {
    const index = this.#seq < SYMBOLS.length ? this.#seq : Math.floor(Math.random() * SYMBOLS.length);
    const [symbol, first] = SYMBOLS[index]!;
    // Nearly normal, with a standard deviation of 1.
    const normal = Array.from({ length: 4 }, () => Math.random() - 0.5).reduce((sum, one) => sum + one) * Math.sqrt(3);
    const before = this.#prices[index]!;
    const price = before + before * CHANGE * normal + (first - before) * RETURN;
    this.#prices[index] = price;
    return { symbol, price: Math.round(price * 100) / 100, time, seq: ++this.#seq };
  }
}

/** Returns the value below which a share of the sorted values lies. `undefined` without values. */
export const quantile = (sorted: readonly number[], share: number): number | undefined => sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))];
