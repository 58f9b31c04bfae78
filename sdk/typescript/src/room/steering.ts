// Steers the size and frame rate of the own video by statistics: down soon after the network becomes narrow, up again
// when there is room. Pure: samples in, levels out. Source: docs/reference/rooms.md, "Size and frame rate".

/** Figures of a sender about its video, once per second. An absent figure is unknown. */
export interface SteeringSample {
  /** Time, ms. */
  readonly at: number;
  /** Highest share of lost packets of a sent video. */
  readonly loss?: number | undefined;
  readonly rtt_ms?: number | undefined;
  /** Bandwidth estimate of the browser. */
  readonly uplink_kbps?: number | undefined;
  readonly sent_kbps?: number | undefined;
  /** Bit rate that the browser has assigned to the encoder of the video. */
  readonly target_kbps?: number | undefined;
  readonly limited_by?: string | undefined;
}

/** Size and frame rate that the user has chosen. */
export interface VideoSize {
  readonly width: number;
  readonly height: number;
  readonly frameRate: number;
}

/** Factors of the sides and of the frame rate, best first. Each level needs about 40 % of the rate of the one above. */
export const LEVELS = [
  { scale: 1, frames: 1 },
  { scale: 0.75, frames: 0.8 },
  { scale: 0.5, frames: 2 / 3 },
  { scale: 0.375, frames: 0.5 },
] as const;

/** Bits per pixel at which a talking head looks acceptable (VP8). */
const BITS_PER_PIXEL = 0.07;
/** Share of lost packets, and growth of the round-trip time in ms, that mean a full path. */
const LOSS_BAD = 0.1;
const RTT_GROWTH_BAD = 150;
/** Shares of the rate that a level needs: a path is too narrow below the first, and wide enough from the second on. */
const NARROW = 0.5;
const ROOMY = 0.7;
/** A video that uses less than this share of its assigned rate has little to send. The rate is then no limit. */
const USED = 0.8;
/** Weight of the newest sample in the used share. */
const NEWEST = 1 / 3;
/** Maximum rate that a video needs, kbit/s. Chromium assigns at most 2,500. */
const NEEDS_MAX = 2_000;
/** Samples in a row before a step down: for the network, and for a busy CPU, which has short peaks. */
const BAD_SAMPLES = 2;
const BUSY_SAMPLES = 5;
/**
 * Bad samples tolerated after another choice of the user, because the browser needs time to assign more to a larger
 * video; and after a step down, while the queue of the larger video drains.
 */
const CHOSEN = 4;
const LOWERED = 2;
/** Time without trouble before a step up: the first one, and the next ones after a success, ms. */
const CALM = 7_000;
const CALM_NEXT = 4_000;
/** A step up that fails within this time was too early; the next attempt waits longer, at most CALM_MAX, ms. */
const FAILED_WITHIN = 8_000;
const CALM_MAX = 20_000;
/** Growth of the bandwidth estimate since the last failure that allows an early attempt. Less may be noise. */
const WIDER = 2;

export class Steering {
  /** Index in {@link LEVELS}. */
  level = 0;
  #size: VideoSize;
  #rttMin = Infinity;
  #bad = 0;
  #used = 1;
  #busy = 0;
  #calmSince = 0;
  #calm = CALM;
  #raisedAt = -Infinity;
  /** Bandwidth estimate at the last step down. */
  #failedUplink = Infinity;

  constructor(size: VideoSize) {
    this.#size = size;
  }

  /** Rate that a level needs, kbit/s. */
  needs(level: number): number {
    const { scale, frames } = LEVELS[level]!;
    const { width, height, frameRate } = this.#size;
    return Math.min((width * height * frameRate * scale * scale * frames * BITS_PER_PIXEL) / 1000, NEEDS_MAX * scale * scale * frames);
  }

  /** Takes another choice of the user, and begins again at its best level. */
  choose(size: VideoSize): void {
    this.#size = size;
    this.level = 0;
    [this.#bad, this.#busy, this.#calm, this.#failedUplink] = [-CHOSEN, 0, CALM, Infinity];
  }

  /** Takes a sample. Returns true if the level has changed. */
  update(sample: SteeringSample): boolean {
    const { at, rtt_ms = 0, uplink_kbps = 0, sent_kbps = 0, target_kbps = Infinity, loss = 0 } = sample;
    if (rtt_ms) this.#rttMin = Math.min(this.#rttMin, rtt_ms);
    const needed = this.needs(this.level);
    // A browser that estimates the bandwidth notices queues itself. Busy peers report late on a free path, too.
    const isFull = loss >= LOSS_BAD || (rtt_ms > this.#rttMin + RTT_GROWTH_BAD && uplink_kbps < needed);
    if (target_kbps < Infinity) this.#used += (Math.min(sent_kbps / target_kbps || 0, 1) - this.#used) * NEWEST;
    const assigned = this.#used < USED ? Infinity : target_kbps;
    this.#bad = isFull || assigned < needed * NARROW ? this.#bad + 1 : 0;
    this.#busy = sample.limited_by === 'cpu' ? this.#busy + 1 : 0;
    if (this.#bad > 0 || this.#busy) this.#calmSince = at;
    if (this.#bad >= BAD_SAMPLES || this.#busy >= BUSY_SAMPLES) return this.#lower(at, this.#busy >= BUSY_SAMPLES ? undefined : uplink_kbps || sent_kbps * (1 - loss), uplink_kbps);
    if (at - this.#raisedAt > FAILED_WITHIN && this.#raisedAt > -Infinity && this.#calm > CALM_NEXT) this.#calm = CALM_NEXT;
    if (!this.level || !this.#mayRaise(at, uplink_kbps, assigned)) return false;
    this.level--;
    this.#raisedAt = this.#calmSince = at;
    return true;
  }

  /** Steps down: to the best level that the available rate carries; at least one level. */
  #lower(at: number, available: number | undefined, uplink: number): boolean {
    [this.#bad, this.#busy, this.#calmSince] = [-LOWERED, 0, at];
    this.#failedUplink = uplink;
    const hasFailed = at - this.#raisedAt <= FAILED_WITHIN;
    this.#calm = hasFailed ? Math.min(Math.max(this.#calm, CALM) * 2, CALM_MAX) : CALM;
    this.#raisedAt = -Infinity;
    const was = this.level;
    do this.level = Math.min(this.level + 1, LEVELS.length - 1);
    while (this.level < LEVELS.length - 1 && available !== undefined && this.needs(this.level) > available);
    return this.level !== was;
  }

  #mayRaise(at: number, uplink: number, assigned: number): boolean {
    const enough = this.needs(this.level - 1) * ROOMY;
    // A path that has become wider since the last failure needs no long wait.
    const isWider = uplink > Math.max(this.#failedUplink * WIDER, enough);
    return assigned >= enough && at - this.#calmSince >= (isWider ? Math.min(this.#calm, CALM_NEXT) : this.#calm);
  }
}
