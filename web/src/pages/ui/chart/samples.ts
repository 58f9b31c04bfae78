/** Samples of one node, one per second: ring buffers that are read without copies of the whole. Never reactive. */

/** 15 minutes at one sample per second, the history that the server keeps. */
const KEPT = 900;

/** History of the server (`GET /v1/admin/samples`). */
export interface SamplesAnswer {
  readonly every_ms: number;
  readonly times_ms: readonly number[];
  readonly columns: Readonly<Record<string, readonly (number | null)[]>>;
}

export class Samples {
  /** Times in seconds since 1970. Sample `i` of the `length` samples is at `(#start + i) % KEPT`. */
  readonly #times = new Float64Array(KEPT);
  readonly #columns = new Map<string, Float64Array>();
  #start = 0;
  length = 0;
  /** Server's clock minus the clock of this machine, ms; estimated from the fastest samples. */
  #offsetMs = -Infinity;

  get columns(): readonly string[] {
    return [...this.#columns.keys()];
  }

  /** Appends a sample. A sample that is not newer than the last one is ignored. */
  push(timeMs: number, values: Readonly<Record<string, number | null | undefined>>): void {
    if (this.length > 0 && timeMs / 1000 <= this.#times[this.#at(this.length - 1)]!) return;
    if (this.length < KEPT) this.length++;
    else this.#start = (this.#start + 1) % KEPT;
    const at = this.#at(this.length - 1);
    this.#times[at] = timeMs / 1000;
    for (const name of Object.keys(values)) if (!this.#columns.has(name)) this.#columns.set(name, new Float64Array(KEPT).fill(NaN));
    for (const [name, column] of this.#columns) column[at] = values[name] ?? NaN;
  }

  /** Adds history before the samples that this page has received. */
  prepend({ times_ms, columns }: SamplesAnswer): void {
    const own = Array.from({ length: this.length }, (_, i) => ({ timeMs: this.#times[this.#at(i)]! * 1000, values: Object.fromEntries([...this.#columns].map(([name, column]) => [name, column[this.#at(i)]!])) }));
    const first = own[0]?.timeMs ?? Infinity;
    [this.#start, this.length] = [0, 0];
    times_ms.forEach((timeMs, i) => timeMs < first - 500 && this.push(timeMs, Object.fromEntries(Object.entries(columns).map(([name, column]) => [name, column[i]]))));
    for (const { timeMs, values } of own) this.push(timeMs, values);
  }

  /** Forgets all samples, for example after a pause that left a hole. */
  clear(): void {
    [this.#start, this.length] = [0, 0];
  }

  /** Notes that a sample of `timeMs` by the server's clock has just arrived. */
  tick(timeMs: number): void {
    // Grows slowly, so that the estimate follows a clock that drifts.
    this.#offsetMs = Math.max(this.#offsetMs - 1, timeMs - Date.now());
  }

  /** Time by the server's clock, ms. */
  now(): number {
    return Date.now() + (Number.isFinite(this.#offsetMs) ? this.#offsetMs : 0);
  }

  time(i: number): number {
    return this.#times[this.#at(i)]!;
  }

  value(name: string, i: number): number | undefined {
    const value = this.#columns.get(name)?.[this.#at(i)];
    return value === undefined || Number.isNaN(value) ? undefined : value;
  }

  newest(name: string): number | undefined {
    return this.length === 0 ? undefined : this.value(name, this.length - 1);
  }

  /** Returns whether a column has a value other than 0. */
  some(name: string): boolean {
    const column = this.#columns.get(name);
    for (let i = 0; column && i < this.length; i++) if (column[this.#at(i)]! > 0) return true;
    return false;
  }

  /** Returns the index of the first sample at or after a time in seconds. */
  from(seconds: number): number {
    let [low, high] = [0, this.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.time(middle) < seconds) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  #at(i: number): number {
    return (this.#start + i) % KEPT;
  }
}
