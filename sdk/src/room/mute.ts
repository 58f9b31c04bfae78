// What a host has muted: it is neither sent from here nor played here, whatever the other end does. Source: docs/rooms.md, "Mute".
import type { RoomState } from './types.js';

export const isMuted = ({ participants }: RoomState, id: string, kind: string): boolean =>
  participants.some((one) => one.id === id && one.muted_by_host?.some((muted) => muted === kind));

/** Tracks that are silent, or black, for now, and whether they are enabled afterwards. */
export class Held {
  readonly #wanted = new Map<MediaStreamTrack, boolean>();

  has(track: MediaStreamTrack): boolean {
    return this.#wanted.has(track);
  }

  /** These and no others. One that somebody has enabled meanwhile is wanted so. */
  hold(tracks: readonly MediaStreamTrack[]): void {
    for (const [track, wanted] of this.#wanted) {
      if (tracks.includes(track)) continue;
      this.#wanted.delete(track);
      track.enabled = wanted;
    }
    for (const track of tracks) {
      if (track.enabled || !this.#wanted.has(track)) this.#wanted.set(track, track.enabled);
      track.enabled = false;
    }
  }

  /** Enabled or not, as soon as that may be. */
  want(track: MediaStreamTrack, enabled: boolean): void {
    if (this.#wanted.has(track)) this.#wanted.set(track, enabled);
    else track.enabled = enabled;
  }
}
