// Reads and writes the channel `rooms/{room}/data`: by the client that already exists, or, on a connection with the
// SFU, by a session beside its media. After a switch, reading resumes from the same position. Source:
// docs/reference/rooms.md, "Data".
import { client, type Core } from '../client.js';
import { isNewer } from '../position.js';
import { dataChannelOn } from '../transports/data-channel.js';
import type { ConnectOptions, Subscription } from '../types.js';

type Read = (data: unknown, position: string) => void;

export interface DataPathHost {
  readonly url: string | URL;
  readonly token: ConnectOptions['token'];
  readonly channel: string;
  /** Reads by the client that already exists. */
  read(after: string, fn: Read): Subscription;
  publish(message: object): Promise<void>;
}

export class DataPath {
  readonly #host: DataPathHost;
  #at: string;
  #deliver: Read = () => {};
  #subscription: Subscription | undefined;
  #session: { readonly peer: RTCPeerConnection; readonly core: Core; isOpen: boolean } | undefined;

  constructor(host: DataPathHost, at: string) {
    this.#host = host;
    this.#at = at;
  }

  /** Position of the last message. */
  get at(): string {
    return this.#at;
  }

  /** Reads all messages, once and in order. */
  read(fn: Read): void {
    // During a switch, both connections may deliver messages.
    this.#deliver = (data, position) => {
      if (!isNewer(position, this.#at)) return;
      this.#at = position;
      fn(data, position);
    };
    if (!this.#session?.isOpen) this.#subscription = this.#host.read(this.#at, this.#deliver);
  }

  /**
   * Publishes a message. If the session beside the media breaks before its response, the message is published again by
   * the client. Readers detect the duplicate by its sequence number.
   */
  async publish(message: object): Promise<void> {
    const { core, isOpen } = this.#session ?? {};
    if (isOpen && (await core!.publish(this.#host.channel, message).catch(() => undefined))) return;
    await this.#host.publish(message);
  }

  /** Tries to open a session beside the media of a connection with the SFU, once. */
  openSession(peer: RTCPeerConnection): void {
    this.closeSession(this.#session?.peer);
    const { url, token, channel } = this.#host;
    const core = client(url, [dataChannelOn(peer)], { ...(token !== undefined && { token }) });
    const session = { peer, core, isOpen: false as boolean };
    this.#session = session;
    core.onState((state) => {
      if (state.name === 'open') {
        session.isOpen = true;
        void this.#subscription?.close();
        this.#subscription = undefined;
      } else if (session.isOpen || state.name !== 'connecting' || state.retryAt) this.closeSession(peer);
    });
    core.subscribe(channel, { from: { position: this.#at } }).on(({ data, position }) => this.#deliver(data, position), () => {});
  }

  /** Returns to the client after the connection or its session has closed. */
  closeSession(peer: RTCPeerConnection | undefined): void {
    const session = this.#session;
    if (!session || session.peer !== peer) return;
    this.#session = undefined;
    void session.core.close();
    if (session.isOpen && !this.#subscription) this.#subscription = this.#host.read(this.#at, this.#deliver);
  }

  end(): void {
    const session = this.#session;
    this.#session = undefined;
    void session?.core.close();
  }
}
