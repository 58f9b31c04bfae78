/** What a simulated wearer says, and what becomes known of it where it arrives. No document in here. */

/** The shortest that a number, a time and a name fit into, mostly. */
export const CHARACTERS_MIN = 32;

export interface Sample {
  readonly number: number;
  /** When it was sent, ms since 1970 by the sender's clock. */
  readonly atMs: number;
  readonly from: string;
}

/** So many characters, where its name is not longer. */
export const write = ({ number, atMs, from }: Sample, characters: number): string => `${number} ${atMs.toFixed(2)} ${from}`.padEnd(characters);

export function readSample(text: string): Sample | undefined {
  const [, number, at, from] = /^(\d{1,15}) (\d{1,15}\.\d\d) (.*?) *$/.exec(text) ?? [];
  return from ? { number: Number(number), atMs: Number(at), from } : undefined;
}

/** The clock of this machine, with fractions: that of a page begins with it. */
export const nowMs = (): number => performance.timeOrigin + performance.now();

/** Of figures that are sorted, the one that so large a share of them does not exceed. */
export const quantile = (sorted: readonly number[], share: number): number | undefined => sorted[Math.min(Math.floor(share * sorted.length), sorted.length - 1)];

/** Whether numbers come in order, of each sender: what is missing, and what comes again. */
export class Order {
  readonly #last = new Map<string, number>();
  missing = 0;
  again = 0;

  /** `1` begins anew: a page was loaded again. */
  see(from: string, number: number): void {
    const last = this.#last.get(from);
    if (last !== undefined && number !== 1) {
      if (number <= last) this.again++;
      else this.missing += number - last - 1;
    }
    this.#last.set(from, number);
  }
}
