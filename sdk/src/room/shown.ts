// What the application shows of others. Of each participant that are the tracks of one link; those of another link take their place once
// their picture moves, so that there is always one that does. Source: docs/rooms.md, "The state".
import { sleep } from '../listen.js';
import type { Link } from './link.js';
import type { Seen } from './types.js';

/** How often it is looked whether a picture moves, and how long at most, ms. */
const LOOK_EVERY = 300;
const LOOK_MAX = 8_000;

export class Shown {
  readonly #tell: (seen: Seen) => void;
  /** Of each participant: the link that it is seen by, and the one that is to take its place, with its tracks. */
  readonly #by = new Map<string, Link>();
  readonly #next = new Map<string, { readonly link: Link; readonly tracks: Seen[] }>();

  constructor(tell: (seen: Seen) => void) {
    this.#tell = tell;
  }

  /** Which link somebody is seen by. */
  by(participant: string): Link | undefined {
    return this.#by.get(participant);
  }

  take(link: Link, seen: Seen): void {
    const { participant } = seen;
    const by = this.#by.get(participant) ?? link;
    if (by === link) {
      this.#by.set(participant, link);
      return this.#tell(seen);
    }
    const next = this.#next.get(participant);
    if (next?.link === link) return void next.tracks.push(seen);
    const waits = { link, tracks: [seen] };
    this.#next.set(participant, waits);
    const isWaited = (): boolean => this.#next.get(participant) === waits;
    void moves(link, seen.stream, isWaited).then(() => isWaited() && this.#change(participant));
  }

  /** Nothing comes by this link any more: what waits takes its place as it is. */
  drop(link: Link): void {
    for (const [one, next] of this.#next) if (next.link === link) this.#next.delete(one);
    for (const [one, by] of this.#by) {
      if (by !== link) continue;
      this.#by.delete(one);
      this.#change(one);
    }
  }

  clear(): void {
    this.#by.clear();
    this.#next.clear();
  }

  forget(participant: string): void {
    this.#by.delete(participant);
    this.#next.delete(participant);
  }

  #change(participant: string): void {
    const next = this.#next.get(participant);
    if (!next) return;
    this.#next.delete(participant);
    this.#by.set(participant, next.link);
    next.tracks.forEach((seen) => this.#tell(seen));
  }
}

/**
 * Settles when each picture of a stream moves, or need not be waited for. The first one alone is not enough: on a way that is new the next
 * may take a second, and whoever is shown the stream from then on sees nothing before that.
 */
async function moves({ pc }: Link, stream: MediaStream, isWaited: () => boolean): Promise<void> {
  const decoded = async (receiver: RTCRtpReceiver): Promise<number> => {
    const stats = (await receiver.getStats()) as unknown as Map<string, { readonly framesDecoded?: number }>;
    return Math.max(...[...stats.values()].map(({ framesDecoded = 0 }) => framesDecoded));
  };
  let before = new Map<RTCRtpReceiver, number>();
  for (const until = performance.now() + LOOK_MAX; isWaited() && performance.now() < until; await sleep(LOOK_EVERY)) {
    const pictures = pc.getReceivers().filter(({ track }) => track.kind === 'video' && stream.getTracks().includes(track));
    const now = new Map(await Promise.all(pictures.map(async (one) => [one, await decoded(one).catch(() => 0)] as const)));
    if ([...now].every(([one, count]) => count > (before.get(one) || Infinity))) return;
    before = now;
  }
}
