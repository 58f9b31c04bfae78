// The tracks of others that the application shows. Each participant is shown by the tracks of one link. Tracks of
// another link replace them once their video plays, so that a playing video is always shown. Source:
// docs/reference/rooms.md, "The state".
import { sleep } from '../listen.js';
import type { Link } from './link.js';
import type { RemoteTrack } from './types.js';

/** Interval and maximum duration of the check whether a video plays, ms. */
const CHECK_EVERY = 300;
const CHECK_MAX = 8_000;

export class DisplayedTracks {
  readonly #notify: (track: RemoteTrack) => void;
  /** For each participant: the link whose tracks are shown, and the link that will replace it, with its tracks. */
  readonly #by = new Map<string, Link>();
  readonly #next = new Map<string, { readonly link: Link; readonly tracks: RemoteTrack[] }>();

  constructor(notify: (track: RemoteTrack) => void) {
    this.#notify = notify;
  }

  /** Returns the link by which a participant is shown. */
  linkOf(participant: string): Link | undefined {
    return this.#by.get(participant);
  }

  add(link: Link, track: RemoteTrack): void {
    const { participant } = track;
    const by = this.#by.get(participant) ?? link;
    if (by === link) {
      this.#by.set(participant, link);
      return this.#notify(track);
    }
    const next = this.#next.get(participant);
    if (next?.link === link) return void next.tracks.push(track);
    const pending = { link, tracks: [track] };
    this.#next.set(participant, pending);
    const isPending = (): boolean => this.#next.get(participant) === pending;
    void untilPlaying(link, track.stream, isPending).then(() => isPending() && this.#switchLink(participant));
  }

  /** Removes a closed link. The tracks of the next link replace its tracks at once. */
  removeLink(link: Link): void {
    for (const [one, next] of this.#next) if (next.link === link) this.#next.delete(one);
    for (const [one, by] of this.#by) {
      if (by !== link) continue;
      this.#by.delete(one);
      this.#switchLink(one);
    }
  }

  clear(): void {
    this.#by.clear();
    this.#next.clear();
  }

  removeParticipant(participant: string): void {
    this.#by.delete(participant);
    this.#next.delete(participant);
  }

  #switchLink(participant: string): void {
    const next = this.#next.get(participant);
    if (!next) return;
    this.#next.delete(participant);
    this.#by.set(participant, next.link);
    next.tracks.forEach((track) => this.#notify(track));
  }
}

/**
 * Settles when each video of a stream plays, or when waiting is no longer useful. One frame is not enough: on a new
 * path, the second frame may take a second, and the page would show a still image until then.
 */
async function untilPlaying({ pc }: Link, stream: MediaStream, isPending: () => boolean): Promise<void> {
  const decoded = async (receiver: RTCRtpReceiver): Promise<number> => {
    const stats = (await receiver.getStats()) as unknown as Map<string, { readonly framesDecoded?: number }>;
    return Math.max(...[...stats.values()].map(({ framesDecoded = 0 }) => framesDecoded));
  };
  let before = new Map<RTCRtpReceiver, number>();
  for (const until = performance.now() + CHECK_MAX; isPending() && performance.now() < until; await sleep(CHECK_EVERY)) {
    const receivers = pc.getReceivers().filter(({ track }) => track.kind === 'video' && stream.getTracks().includes(track));
    const now = new Map(await Promise.all(receivers.map(async (one) => [one, await decoded(one).catch(() => 0)] as const)));
    if ([...now].every(([one, count]) => count > (before.get(one) || Infinity))) return;
    before = now;
  }
}
