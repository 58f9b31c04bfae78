/**
 * Servo loop: steps of lamp A, detected by the light sensor. Decides from readings and times that the caller gives, and
 * uses neither DOM nor clock.
 */

/** Levels of a pattern, repeated. */
export const PATTERNS = [
  { name: 'square', label: 'Square wave', levels: [15, 0] },
  { name: 'steps', label: 'Steps', levels: [5, 10, 15, 10, 5, 0] },
] as const;
export type Pattern = (typeof PATTERNS)[number]['name'];

/** Width of a bar of the histogram, ms; the last bar has all longer latencies. */
export const BAR_MS = 20;
export const BARS = 26;
/** Maximum number of latencies kept. */
const KEPT_MAX = 10_000;
/** Least difference of two readings that can be distinguished. */
const DIFFERENCE_MIN = 20;

export interface Figures {
  readonly steps: number;
  readonly detected: number;
  /** Steps without a detection before the next step. */
  readonly missed: number;
  /** Readings that went back over the threshold after a detection. */
  readonly repeated: number;
  readonly p50: number | undefined;
  readonly p99: number | undefined;
  readonly max: number | undefined;
  /** Number of latencies per bar. */
  readonly histogram: readonly number[];
}

/** Detects each step once, from the time when it was due. */
export class StepDetector {
  readonly #readings: ReadonlyMap<number, number>;
  readonly #latencies: number[] = [];
  #level: number;
  #step: { readonly dueMs: number; readonly threshold: number; readonly rises: boolean; isDetected: boolean } | undefined;
  #steps = 0;
  #missed = 0;
  #repeated = 0;

  /** `readings`: the reading of the sensor for each level, from a calibration. `level`: the present one. */
  constructor(readings: ReadonlyMap<number, number>, level: number) {
    this.#readings = readings;
    this.#level = level;
  }

  /** Begins a step to a level at the time when it is due. */
  begin(level: number, dueMs: number): void {
    if (this.#step && !this.#step.isDetected) this.#missed++;
    const [from, to] = [this.#readings.get(this.#level)!, this.#readings.get(level)!];
    this.#step = { dueMs, threshold: (from + to) / 2, rises: to > from, isDetected: false };
    this.#level = level;
    this.#steps++;
  }

  handle(raw: number, atMs: number): void {
    const step = this.#step;
    if (!step) return;
    const isBeyond = step.rises ? raw > step.threshold : raw < step.threshold;
    if (!step.isDetected && isBeyond) {
      step.isDetected = true;
      this.#latencies.push(atMs - step.dueMs);
      if (this.#latencies.length > KEPT_MAX) this.#latencies.shift();
    } else if (step.isDetected && !isBeyond) this.#repeated++;
  }

  figures(): Figures {
    const sorted = [...this.#latencies].sort((a, b) => a - b);
    const at = (share: number): number | undefined => sorted[Math.min(Math.floor(share * sorted.length), sorted.length - 1)];
    const histogram = Array.from({ length: BARS }, () => 0);
    for (const latency of sorted) histogram[Math.min(Math.floor(latency / BAR_MS), BARS - 1)]!++;
    const pending = this.#step && !this.#step.isDetected ? 1 : 0;
    return { steps: this.#steps, detected: this.#steps - this.#missed - pending, missed: this.#missed, repeated: this.#repeated, p50: at(0.5), p99: at(0.99), max: sorted.at(-1), histogram };
  }
}

/** Returns why these readings cannot be distinguished, or an empty text. */
export function troubleOf(readings: ReadonlyMap<number, number>): string {
  const sorted = [...readings].sort(([a], [b]) => a - b).map(([, raw]) => raw);
  const isClose = sorted.some((raw, i) => i > 0 && raw - sorted[i - 1]! < DIFFERENCE_MIN);
  if (!isClose) return '';
  const last = sorted.at(-1)!;
  if (last >= 1023) return 'The light sensor is saturated: use less light around it';
  return last === 0 ? 'The light sensor stays dark: check it' : 'The light sensor does not see lamp A: point it at the lamp';
}
