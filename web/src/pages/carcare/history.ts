/** The last two minutes of the selected car in ring buffers: speed for the trace, positions for the trail. */
export const HISTORY_MS = 120_000;
/** Capacity for two minutes at up to 10 records per second. */
const CAPACITY = 1_200;

export class History {
  readonly #time = new Float64Array(CAPACITY);
  readonly #speed = new Float32Array(CAPACITY);
  readonly #lat = new Float64Array(CAPACITY);
  readonly #lon = new Float64Array(CAPACITY);
  #next = 0;
  #size = 0;

  /** Adds a sample. `at` is in ms since 1970, `speed` in m/s. */
  push(at: number, speed: number, lat: number, lon: number): void {
    this.#time[this.#next] = at;
    this.#speed[this.#next] = speed;
    this.#lat[this.#next] = lat;
    this.#lon[this.#next] = lon;
    this.#next = (this.#next + 1) % CAPACITY;
    this.#size = Math.min(CAPACITY, this.#size + 1);
  }

  clear(): void {
    this.#next = 0;
    this.#size = 0;
  }

  /** Visits the samples of the last HISTORY_MS before `now`, oldest first. */
  each(now: number, visit: (at: number, speed: number, lat: number, lon: number) => void): void {
    for (let i = 0; i < this.#size; i++) {
      const k = (this.#next - this.#size + i + CAPACITY) % CAPACITY;
      const at = this.#time[k]!;
      if (at >= now - HISTORY_MS) visit(at, this.#speed[k]!, this.#lat[k]!, this.#lon[k]!);
    }
  }
}
