// Detects the active speaker: the loudest of the other participants, once they have been loudest for a moment. The
// levels come from the packets; no audio is decoded for this.

/** Half-life of the smoothing of levels, ms. */
const HALF = 200;
/**
 * Decibels between digital silence and full scale, and the level of speech above silence (-50 dBov). A quiet room stays
 * below the level of speech.
 */
const SILENCE = 127;
const SPEECH = 77;
/**
 * To become the active speaker, a participant must be louder by this many decibels, and for this many ms. A cough is
 * not enough.
 */
const MARGIN = 3;
const HOLD = 400;
/** Time after which a participant who no longer speaks stops being the active speaker, ms. */
const QUIET = 2_000;

export class ActiveSpeakerDetector {
  speaker: string | undefined;
  #levels = new Map<string, number>();
  #at = 0;
  #candidate: { readonly id: string; readonly since: number } | undefined;
  #spokeAt = 0;

  /** Takes the levels of all participants that send audio, 0 to 1. Returns true if the active speaker has changed. */
  update(levels: ReadonlyMap<string, number>, now: number): boolean {
    const faded = 0.5 ** ((now - this.#at) / HALF);
    this.#at = now;
    this.#levels = new Map([...levels].map(([id, level]) => [id, above(level) + ((this.#levels.get(id) ?? 0) - above(level)) * faded]));
    const of = (id: string | undefined): number => this.#levels.get(id ?? '') ?? 0;
    if (of(this.speaker) >= SPEECH) this.#spokeAt = now;
    const before = this.speaker;
    if (before !== undefined && (!levels.has(before) || now - this.#spokeAt >= QUIET)) this.speaker = undefined;
    const [candidate] = [...this.#levels].reduce((loudest, one) => (one[1] > loudest[1] ? one : loudest), ['', 0]);
    if (candidate === this.speaker || of(candidate) < SPEECH || of(candidate) < of(this.speaker) + MARGIN) this.#candidate = undefined;
    else if (this.#candidate?.id !== candidate) this.#candidate = { id: candidate, since: now };
    else if (now - this.#candidate.since >= HOLD) [this.speaker, this.#candidate, this.#spokeAt] = [candidate, undefined, now];
    return this.speaker !== before;
  }
}

const above = (level: number): number => (level > 0 ? Math.max(SILENCE + 20 * Math.log10(level), 0) : 0);
