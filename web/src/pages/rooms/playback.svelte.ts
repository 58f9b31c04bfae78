/** Playback of all participants. A browser may require a user action before it plays sound. */
export class Playback {
  readonly #refused = new Set<HTMLMediaElement>();
  /** Whether the browser has refused to play sound. One click plays all of it. */
  refused = $state(false);

  /** Plays an element with its sound; without sound if the browser refuses that, so that its video is shown. */
  async play(media: HTMLMediaElement): Promise<void> {
    try {
      await media.play();
      this.forget(media);
    } catch (error) {
      if (!(error instanceof DOMException && error.name === 'NotAllowedError')) return;
      this.#refused.add(media);
      this.refused = true;
      media.muted = true;
      await media.play().catch(() => {});
    }
  }

  /** Plays all refused elements with their sound. Call it for a click. */
  playAll(): void {
    for (const media of [...this.#refused]) {
      media.muted = false;
      void this.play(media);
    }
  }

  forget(media: HTMLMediaElement): void {
    this.#refused.delete(media);
    this.refused = this.#refused.size > 0;
  }
}
