// Applies the size and frame rate that the user has chosen to the own video, and lowers them while the network or the
// processor is too slow. Source: docs/reference/rooms.md, "Size and frame rate".
import { LEVELS, Steering, type SteeringSample } from './steering.js';
import type { Quality, VideoChoice, VideoState } from './types.js';

/** Interval of samples, ms. */
const EVERY = 1_000;
/** Age from which a link counts, ms. On a new link, browsers still search for the bandwidth. */
const SETTLED = 6_000;

export interface SteeredVideoHost {
  /** Measures the links that have been connected for at least `age` ms. */
  measure(age: number): Promise<Quality>;
  /** Tracks of the camera that others receive. */
  tracks(): readonly MediaStreamTrack[];
  changed(state: VideoState): void;
}

export class SteeredVideo {
  readonly #host: SteeredVideoHost;
  #choice: VideoChoice;
  readonly #steering: Steering;
  #limit: VideoState['limited_by'];
  /** Last constraints of each track. */
  readonly #asked = new WeakMap<MediaStreamTrack, string>();
  readonly #timer = setInterval(() => void this.#tick(), EVERY);

  constructor(host: SteeredVideoHost, choice: VideoChoice) {
    this.#host = host;
    this.#choice = choice;
    this.#steering = new Steering(choice);
  }

  get state(): VideoState {
    const { scale, frames } = LEVELS[this.#steering.level]!;
    const { width, height, frameRate } = this.#choice;
    // Encoders need even sides.
    const side = (pixels: number): number => 2 * Math.round((pixels * scale) / 2);
    return { width: side(width), height: side(height), frameRate: Math.max(1, Math.round(frameRate * frames)), level: this.#steering.level, ...(this.#limit && { limited_by: this.#limit }) };
  }

  choose(choice: VideoChoice): void {
    this.#choice = choice;
    this.#steering.choose(choice);
    this.#limit = undefined;
    this.#apply();
    this.#host.changed(this.state);
  }

  end(): void {
    clearInterval(this.#timer);
  }

  async #tick(): Promise<void> {
    this.#apply();
    if (!this.#choice.steer || !this.#host.tracks().length) return;
    const sample = sampleOf(await this.#host.measure(SETTLED));
    if (!sample || !this.#steering.update(sample)) return;
    this.#limit = !this.#steering.level ? undefined : sample.limited_by === 'cpu' ? 'cpu' : (this.#limit ?? 'bandwidth');
    this.#apply();
    this.#host.changed(this.state);
  }

  /** Asks each track once for the current size and frame rate. */
  #apply(): void {
    const { width, height, frameRate } = this.state;
    const wanted = `${width} ${height} ${frameRate}`;
    for (const track of this.#host.tracks()) {
      if (this.#asked.get(track) === wanted) continue;
      this.#asked.set(track, wanted);
      // A track without these constraints, such as that of a canvas, stays as it is.
      track.applyConstraints({ width: { ideal: width }, height: { ideal: height }, frameRate: { ideal: frameRate, max: frameRate } }).catch(() => {});
    }
  }
}

/** Returns what the figures say about the own video; undefined while none is sent. */
export function sampleOf({ links }: Quality): SteeringSample | undefined {
  const least = (figures: readonly number[]): number | undefined => (figures.length ? Math.min(...figures) : undefined);
  const most = (figures: readonly number[]): number | undefined => (figures.length ? Math.max(...figures) : undefined);
  const isSent = ({ direction, kind }: { direction: string; kind: string }): boolean => direction === 'out' && kind === 'video';
  const sending = links.filter(({ streams }) => streams.some(isSent));
  const streams = sending.flatMap((link) => link.streams.filter(isSent));
  if (!streams.length) return undefined;
  /** Returns the lowest sum of a figure over the videos of a link: the narrowest link decides. */
  const narrowest = (figure: 'rate_kbps' | 'target_kbps'): number | undefined =>
    least(sending.flatMap((link) => link.streams.filter((stream) => isSent(stream) && stream[figure] !== undefined).reduce<number[]>(([sum = 0], stream) => [sum + stream[figure]!], [])));
  return {
    at: performance.now(),
    // The peer reports losses about once per second, and none while nothing arrives. Retransmissions show those, too.
    loss: most(streams.flatMap(({ loss = 0, retransmitted = 0 }) => [loss, retransmitted])),
    rtt_ms: most([...sending, ...streams].flatMap(({ rtt_ms = [] }) => rtt_ms)),
    uplink_kbps: least(sending.flatMap(({ uplink_kbps = [] }) => uplink_kbps)),
    sent_kbps: narrowest('rate_kbps'),
    target_kbps: narrowest('target_kbps'),
    limited_by: ['cpu', 'bandwidth'].find((limit) => streams.some(({ limited_by }) => limited_by === limit)) ?? streams[0]!.limited_by,
  };
}
