/** Messages of a simulated device, and the statistics that a receiver derives from them. Uses no DOM. */

/** Minimum length of a message. It usually holds a number, a time and a name. */
export const CHARACTERS_MIN = 32;

export interface Sample {
  readonly number: number;
  /** Time of sending, ms since 1970 by the sender's clock. */
  readonly atMs: number;
  readonly from: string;
}

/** Encodes a sample with this many characters, or more if the name is longer. */
export const write = ({ number, atMs, from }: Sample, characters: number): string => `${number} ${atMs.toFixed(2)} ${from}`.padEnd(characters);

export function readSample(text: string): Sample | undefined {
  const [, number, at, from] = /^(\d{1,15}) (\d{1,15}\.\d\d) (.*?) *$/.exec(text) ?? [];
  return from ? { number: Number(number), atMs: Number(at), from } : undefined;
}

/** Returns the time of this machine with fractions of a ms. The clock of a page starts with the page. */
export const nowMs = (): number => performance.timeOrigin + performance.now();

/** Returns a quantile of sorted figures. */
export const quantile = (sorted: readonly number[], share: number): number | undefined => sorted[Math.min(Math.floor(share * sorted.length), sorted.length - 1)];

/** Checks the sequence numbers of each sender, and counts missing and repeated ones. */
export class Order {
  readonly #last = new Map<string, number>();
  missing = 0;
  duplicates = 0;

  /** Processes a number. `1` starts a new sequence, because the sending page was reloaded. */
  observe(from: string, number: number): void {
    const last = this.#last.get(from);
    if (last !== undefined && number !== 1) {
      if (number <= last) this.duplicates++;
      else this.missing += number - last - 1;
    }
    this.#last.set(from, number);
  }
}
