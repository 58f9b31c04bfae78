// Media that a host has muted: it is neither sent nor played here, whatever the peer does. Source:
// docs/reference/rooms.md, "Mute".
import type { RoomState } from './types.js';

export const isMuted = ({ participants }: RoomState, id: string, kind: string): boolean =>
  participants.some((one) => one.id === id && one.muted_by_host?.some((muted) => muted === kind));

/** Tracks that are disabled for now, and whether they are enabled afterwards. */
export class MutedTracks {
  readonly #wanted = new Map<MediaStreamTrack, boolean>();

  has(track: MediaStreamTrack): boolean {
    return this.#wanted.has(track);
  }

  /** Disables exactly these tracks. If the page has enabled such a track meanwhile, it is enabled afterwards. */
  setMuted(tracks: readonly MediaStreamTrack[]): void {
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

  /** Enables or disables a track, for a disabled track as soon as it is released. */
  setEnabled(track: MediaStreamTrack, enabled: boolean): void {
    if (this.#wanted.has(track)) this.#wanted.set(track, enabled);
    else track.enabled = enabled;
  }
}
