/** The device's side of a connection: joins a gateway by its name, and joins again after every loss. */
import type { Client } from '@millrace/client';
import { after } from './clock';
import { LABEL, fetchRelays, completeDescription } from './connection';
import type { JoinRequest } from './forwarder';
import { answers, randomId, offers, readAnswer, type Offer } from './signals';

/** Time limit from the offer to an open channel. */
const JOIN_MS = 15_000;
/** Minimum delay between two attempts. A random delay of up to the same length is added. */
const RETRY_MS = 1_000;
/** Time for which buffered messages are still sent after `close`. */
const LINGER_MS = 1_000;
/** Maximum buffered bytes on a slow path. Above this, messages are not sent. */
const BUFFERED_MAX = 256 * 1024;

export type PeerState = 'joining' | 'open' | 'refused' | 'closed';

export class Device {
  state: PeerState = 'joining';
  /** Why the device is not connected. */
  trouble = '';
  #connection: RTCPeerConnection | undefined;
  #channel: RTCDataChannel | undefined;
  #stop: () => void = () => {};

  constructor(
    readonly client: Client,
    readonly gateway: string,
    readonly request: JoinRequest,
    readonly token: string | undefined,
    readonly onMessage: (data: string | ArrayBuffer) => void,
  ) {
    void this.#join();
  }

  /** Sends a message. Returns false if it could not be sent. */
  send(text: string): boolean {
    const channel = this.#channel;
    if (channel?.readyState !== 'open' || channel.bufferedAmount > BUFFERED_MAX) return false;
    channel.send(text);
    return true;
  }

  close(): void {
    this.state = 'closed';
    this.#stop();
    const [connection, channel] = [this.#connection, this.#channel];
    if (channel?.readyState !== 'open') return connection?.close();
    // Closing the connection would discard buffered messages. Closing the channel does not.
    channel.onclose = () => connection?.close();
    channel.close();
    after(LINGER_MS, () => connection?.close());
  }

  async #join(): Promise<void> {
    const connection = (this.#connection = new RTCPeerConnection({ iceServers: await fetchRelays(this.token) }));
    const channel = (this.#channel = connection.createDataChannel(LABEL));
    channel.binaryType = 'arraybuffer';
    channel.onmessage = ({ data }: MessageEvent<string | ArrayBuffer>) => this.onMessage(data);
    const opened = new Promise<void>((resolve) => (channel.onopen = () => resolve()));
    const closed = new Promise<void>((resolve) => {
      channel.onclose = () => resolve();
      connection.onconnectionstatechange = () => /failed|closed/.test(connection.connectionState) && resolve();
    });
    const ended = new AbortController();
    const late = after(JOIN_MS, () => ended.abort());
    try {
      await this.#offer(connection, ended.signal);
      await Promise.race([opened, closed, aborted(ended.signal)]);
      if (channel.readyState !== 'open') throw new Error('the data channel did not open');
      late();
      if (this.#is('closed')) return connection.close();
      this.state = 'open';
      this.trouble = '';
      await closed;
      this.trouble = 'the gateway has disconnected';
    } catch (error) {
      this.trouble = ended.signal.aborted ? `no gateway named “${this.gateway}” answers; open it in another tab` : error instanceof Error ? error.message : String(error);
    }
    late();
    ended.abort();
    connection.close();
    if (this.#is('closed') || this.#is('refused')) return;
    this.state = 'joining';
    this.#stop = after(RETRY_MS * (1 + Math.random()), () => void this.#join());
  }

  /** Offers a connection. Throws if no answer arrives, or if the answer is a refusal. */
  async #offer(connection: RTCPeerConnection, signal: AbortSignal): Promise<void> {
    const id = randomId();
    const answered = this.client.subscribe(answers(this.gateway, id), { signal });
    try {
      const first = new Promise<unknown>((resolve, reject) => answered.on(({ data }) => resolve(data), (cause) => reject(cause ?? new Error('the subscription to the answer ended'))));
      // Prevents an unhandled rejection if `ready` fails first.
      first.catch(() => {});
      await answered.ready;
      const offer: Offer = { id, ...this.request, offer: await completeDescription(connection) };
      await this.client.publish(offers(this.gateway), offer, { ttl: JOIN_MS / 1000, signal });
      const answer = readAnswer(await Promise.race([first, aborted(signal)]));
      if (!answer) throw new Error('the answer of the gateway is not valid');
      if ('error' in answer) {
        if (answer.error === 'bad_request') this.state = 'refused';
        throw new Error(answer.detail || answer.error);
      }
      await connection.setRemoteDescription({ type: 'answer', sdp: answer.answer });
    } finally {
      void answered.close();
    }
  }

  /** Compares the state. A method, because the state may change during an `await`. */
  #is(state: PeerState): boolean {
    return this.state === state;
  }
}

const aborted = (signal: AbortSignal): Promise<never> =>
  new Promise((_, reject) => {
    if (signal.aborted) reject(new Error('too late'));
    signal.addEventListener('abort', () => reject(new Error('too late')));
  });
