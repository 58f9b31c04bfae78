// How the channel `rooms/{room}/data` is read and written: by the client that there is anyway, or, where there is a connection with the
// server's unit, by a session beside the media in it. Whichever it is, it goes on from where the other was. Source: docs/rooms.md, "Data".
import { client, type Core } from '../client.js';
import { isNews } from '../position.js';
import { besideMedia } from '../transports/data-channel.js';
import type { ConnectOptions, Subscription } from '../types.js';

type Read = (data: unknown, position: string) => void;

export interface WayHost {
  readonly url: string | URL;
  readonly token: ConnectOptions['token'];
  readonly channel: string;
  /** By the client that there is anyway. */
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

  /** All of it, in order and once. */
  read(fn: Read): void {
    // Both may read for a moment.
    this.#hear = (data, position) => {
      if (!isNews(position, this.#at)) return;
      this.#at = position;
      fn(data, position);
    };
    if (!this.#beside?.isOpen) this.#plain = this.#host.read(this.#at, this.#hear);
  }

  /** What was not answered when its way broke goes by the other one: whoever reads it tells the two by their number. */
  async publish(message: object): Promise<void> {
    const { core, isOpen } = this.#beside ?? {};
    if (isOpen && (await core!.publish(this.#host.channel, message).catch(() => undefined))) return;
    await this.#host.publish(message);
  }

  /** There is a connection with the server's unit: a session is tried in it, once. */
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

  /** The connection has gone, or its session has. */
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
