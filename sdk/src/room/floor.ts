// Who speaks now: of all others whoever is the loudest, and has been for a moment. By what the packets say of themselves; nothing is decoded for it.

/** After so long a change is heard by half, ms. */
const HALF = 200;
/** Decibels above silence: speech is louder (-50 dBov), and a quiet room is not. */
const SILENCE = 127;
const SPEECH = 77;
/** Whoever takes the floor is so much louder than who has it, and for so long, ms: a cough is not enough. */
const MARGIN = 3;
const HOLD = 400;
/** Whoever has not spoken for so long does not have it any more, ms. */
const QUIET = 2_000;

export class Floor {
  holder: string | undefined;
  #loud = new Map<string, number>();
  #at = 0;
  #rival: { readonly id: string; readonly since: number } | undefined;
  #spoke = 0;

  /** `levels`: of everybody who sends sound, 0 to 1. True if somebody else has the floor now, or nobody any more. */
  hear(levels: ReadonlyMap<string, number>, now: number): boolean {
    const faded = 0.5 ** ((now - this.#at) / HALF);
    this.#at = now;
    this.#loud = new Map([...levels].map(([id, level]) => [id, above(level) + ((this.#loud.get(id) ?? 0) - above(level)) * faded]));
    const of = (id: string | undefined): number => this.#loud.get(id ?? '') ?? 0;
    if (of(this.holder) >= SPEECH) this.#spoke = now;
    const before = this.holder;
    if (before !== undefined && (!levels.has(before) || now - this.#spoke >= QUIET)) this.holder = undefined;
    const [rival] = [...this.#loud].reduce((loudest, one) => (one[1] > loudest[1] ? one : loudest), ['', 0]);
    if (rival === this.holder || of(rival) < SPEECH || of(rival) < of(this.holder) + MARGIN) this.#rival = undefined;
    else if (this.#rival?.id !== rival) this.#rival = { id: rival, since: now };
    else if (now - this.#rival.since >= HOLD) [this.holder, this.#rival, this.#spoke] = [rival, undefined, now];
    return this.holder !== before;
  }
}

const above = (level: number): number => (level > 0 ? Math.max(SILENCE + 20 * Math.log10(level), 0) : 0);
