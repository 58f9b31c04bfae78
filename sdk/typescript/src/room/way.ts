// Reads and writes the channel `rooms/{room}/data`: by the client that already exists, or, on a connection with the
// SFU, by a session beside its media. After a switch, reading resumes from the same position. Source:
// docs/reference/rooms.md, "Data".
import { client, type Core } from '../client.js';
import { isNews } from '../position.js';
import { besideMedia } from '../transports/data-channel.js';
import type { ConnectOptions, Subscription } from '../types.js';

type Read = (data: unknown, position: string) => void;

export interface WayHost {
  readonly url: string | URL;
  readonly token: ConnectOptions['token'];
  readonly channel: string;
  /** Reads by the client that already exists. */
  read(after: string, fn: Read): Subscription;
  publish(message: object): Promise<void>;
}

export class DataWay {
  readonly #host: WayHost;
  #at: string;
  #hear: Read = () => {};
  #plain: Subscription | undefined;
  #beside: { readonly peer: RTCPeerConnection; readonly core: Core; isOpen: boolean } | undefined;

  constructor(host: WayHost, at: string) {
    this.#host = host;
    this.#at = at;
  }

  /** Reads all messages, once and in order. */
  read(fn: Read): void {
    // During a switch, both connections may deliver messages.
    this.#hear = (data, position) => {
      if (!isNews(position, this.#at)) return;
      this.#at = position;
      fn(data, position);
    };
    if (!this.#beside?.isOpen) this.#plain = this.#host.read(this.#at, this.#hear);
  }

  /**
   * Publishes a message. If the session beside the media breaks before its response, the message is published again by
   * the client. Readers detect the duplicate by its sequence number.
   */
  async publish(message: object): Promise<void> {
    const { core, isOpen } = this.#beside ?? {};
    if (isOpen && (await core!.publish(this.#host.channel, message).catch(() => undefined))) return;
    await this.#host.publish(message);
  }

  /** Tries to open a session beside the media of a connection with the SFU, once. */
  take(peer: RTCPeerConnection): void {
    this.leave(this.#beside?.peer);
    const { url, token, channel } = this.#host;
    const core = client(url, [besideMedia(peer)], { ...(token !== undefined && { token }) });
    const beside = { peer, core, isOpen: false as boolean };
    this.#beside = beside;
    core.onState((state) => {
      if (state.name === 'open') {
        beside.isOpen = true;
        void this.#plain?.close();
        this.#plain = undefined;
      } else if (beside.isOpen || state.name !== 'connecting' || state.retryAt) this.leave(peer);
    });
    core.subscribe(channel, { from: { position: this.#at } }).on(({ data, position }) => this.#hear(data, position), () => {});
  }

  /** Returns to the client after the connection or its session has closed. */
  leave(peer: RTCPeerConnection | undefined): void {
    const beside = this.#beside;
    if (!beside || beside.peer !== peer) return;
    this.#beside = undefined;
    void beside.core.close();
    if (beside.isOpen && !this.#plain) this.#plain = this.#host.read(this.#at, this.#hear);
  }

  end(): void {
    const beside = this.#beside;
    this.#beside = undefined;
    void beside?.core.close();
  }
}
