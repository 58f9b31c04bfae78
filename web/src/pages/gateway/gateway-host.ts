/** A gateway in a page: accepts offers, holds a connection to each peer, and writes the outputs of the forwarder. */
import { millrace, type Client, type MillraceError, type State } from '@millrace/client';
import { refusalOf } from '../../lib/token';
import { after } from './clock';
import { LABEL, fetchRelays, completeDescription } from './connection';
import { Forwarder, JoinRefused, type Config, type Peer, type Stats } from './forwarder';
import { answers, idOf, missingAt, offers, readOffer, type Answer, type Offer } from './signals';

/** Time limit for the channel of a new peer to open. After that, the peer is removed. */
const OPEN_MS = 15_000;
/** Maximum bytes buffered on a channel. The rest stays in the forwarder's queue, which can drop the oldest messages. */
const BUFFERED_MAX = 64 * 1024;
/** Maximum number of offers and answers processed at the same time. */
const PENDING_MAX = 64;
/** Lifetime of an answer, seconds. */
const ANSWER_TTL = 30;
/** Interval of checks whether another page serves the same name. */
const OTHERS_MS = 10_000;
/** Interval at which devices are informed of missing receivers, while messages for these arrive. */
const MISSING_MS = 2_000;

/** Connection of a peer. */
interface PeerLink {
  readonly connection: RTCPeerConnection;
  channel?: RTCDataChannel;
}

/** State of the gateway for display. */
export interface View {
  readonly atMs: number;
  readonly peers: readonly (Peer & { readonly isOpen: boolean })[];
  readonly stats: Readonly<Stats>;
  /** Offers that were invalid, or came when too many were pending. */
  readonly dropped: number;
  readonly link: State['name'];
  /** Number of other pages that read the same offers. */
  readonly others: number;
  /** Why no offers arrive. */
  readonly trouble: string;
  /** The server's message, if it refused this page. */
  readonly refusal: string | undefined;
  /** Receivers that have not joined, with the number of messages for each. */
  readonly missing: readonly (readonly [name: string, messages: number])[];
}

export class GatewayHost {
  readonly #forwarder: Forwarder;
  /** The client of this page. It is closed with the gateway. */
  readonly client: Client;
  readonly #links = new Map<number, PeerLink>();
  readonly #over = new AbortController();
  #pending = 0;
  #dropped = 0;
  #others = 0;
  #ended: MillraceError | undefined;
  /** Number of messages for missing receivers when devices were last informed. */
  #reportedMissing = 0;
  /** Time of the current timer, and the function that cancels it. */
  #timer: { readonly dueMs: number; readonly stop: () => void } | undefined;

  constructor(
    readonly name: string,
    readonly token: string | undefined,
    config: Partial<Config>,
  ) {
    this.#forwarder = new Forwarder(config);
    this.client = millrace(location.origin, token ? { token } : {});
    this.client.subscribe(offers(name)).on(
      ({ data }) => void this.#handleOffer(data),
      (cause) => (this.#ended = cause),
    );
    void this.#watchOtherPages();
    this.#publishMissing();
  }

  configure(change: Partial<Config>): void {
    this.#forwarder.configure(change);
    this.#process();
  }

  snapshot(): View {
    const peers = this.#forwarder.peers().map((peer) => {
      const channel = this.#links.get(peer.id)?.channel;
      return { ...peer, waitingBytes: peer.waitingBytes + (channel?.bufferedAmount ?? 0), isOpen: channel?.readyState === 'open' };
    });
    return {
      atMs: performance.now(),
      peers,
      stats: { ...this.#forwarder.stats },
      dropped: this.#dropped,
      link: this.client.state.name,
      others: this.#others,
      trouble: this.#over.signal.aborted ? '' : (this.#ended?.message ?? ''),
      refusal: refusalOf(this.client.state, this.#ended),
      missing: [...this.#forwarder.missing()],
    };
  }

  /** Closes all connections at once, so that the peers need not detect the end. */
  close(): void {
    this.#over.abort();
    for (const id of [...this.#links.keys()]) this.#leave(id);
    this.#timer?.stop();
    void this.client.close();
  }

  async #watchOtherPages(): Promise<void> {
    try {
      for await (const { count } of this.client.presence(offers(this.name), { signal: this.#over.signal, everyMs: OTHERS_MS })) this.#others = Math.max(count - 1, 0);
    } catch {
      // A token without this permission: `others` stays 0.
    }
  }

  /** Publishes which receivers are missing, because devices cannot know that themselves. */
  #publishMissing(): void {
    after(MISSING_MS, () => {
      if (this.#over.signal.aborted) return;
      const missing = this.#forwarder.missing();
      const count = [...missing.values()].reduce((sum, messages) => sum + messages, 0);
      // If publishing fails, devices only miss a warning.
      if (count > this.#reportedMissing) this.client.publish(missingAt(this.name), { missing: Object.fromEntries(missing) }, { ttl: ANSWER_TTL, signal: this.#over.signal }).catch(() => {});
      this.#reportedMissing = count;
      this.#publishMissing();
    });
  }

  /** Processes a publication on the channel of offers. */
  async #handleOffer(data: unknown): Promise<void> {
    const id = idOf(data);
    if (id === undefined || this.#pending >= PENDING_MAX) return void this.#dropped++;
    this.#pending++;
    try {
      const answer = await this.#createAnswer(data).catch((error: unknown): Answer => {
        this.#dropped++;
        return error instanceof JoinRefused ? { error: error.code, detail: error.message } : { error: 'bad_request', detail: 'this browser does not support the offer' };
      });
      await this.client.publish(answers(this.name, id), answer, { ttl: ANSWER_TTL, signal: AbortSignal.any([this.#over.signal, AbortSignal.timeout(OPEN_MS)]) });
    } catch {
      // The peer receives no answer and tries again. Its connection is removed after the timeout.
    } finally {
      this.#pending--;
    }
  }

  async #createAnswer(data: unknown): Promise<Answer> {
    const request: Offer = readOffer(data);
    const { name, to, urgent, offer } = request;
    const id = this.#forwarder.join({ name, ...(to !== undefined && { to }), ...(urgent !== undefined && { urgent }) });
    try {
      const connection = new RTCPeerConnection({ iceServers: await fetchRelays(this.token) });
      const link: PeerLink = { connection };
      this.#links.set(id, link);
      const late = after(OPEN_MS, () => link.channel?.readyState === 'open' || this.#leave(id));
      connection.onconnectionstatechange = () => {
        if (connection.connectionState !== 'failed' && connection.connectionState !== 'closed') return;
        late();
        this.#leave(id);
      };
      connection.ondatachannel = ({ channel }) => {
        if (channel.label === LABEL && !link.channel) this.#attach(id, link, channel);
        else channel.close();
      };
      await connection.setRemoteDescription({ type: 'offer', sdp: offer });
      const answer = await completeDescription(connection);
      if (!answer) throw new Error('the browser created no answer');
      return { answer };
    } catch (error) {
      this.#leave(id);
      throw error;
    }
  }

  #attach(id: number, link: PeerLink, channel: RTCDataChannel): void {
    link.channel = channel;
    channel.binaryType = 'arraybuffer';
    channel.bufferedAmountLowThreshold = BUFFERED_MAX / 2;
    channel.onopen = channel.onbufferedamountlow = () => this.#flush(id);
    channel.onclose = () => this.#leave(id);
    channel.onmessage = ({ data }: MessageEvent<string | ArrayBuffer>) => {
      this.#forwarder.handle(performance.now(), id, data);
      this.#process();
    };
    this.#flush(id);
  }

  #leave(id: number): void {
    this.#forwarder.leave(id);
    const link = this.#links.get(id);
    if (!link) return;
    this.#links.delete(id);
    if (link.channel) link.channel.onclose = null;
    link.connection.onconnectionstatechange = null;
    link.connection.close();
  }

  /** Sends bundles whose window has ended, flushes all peers, and sets the next timer. */
  #process(): void {
    this.#forwarder.handleTimeout(performance.now());
    for (let id; (id = this.#forwarder.pollReady()) !== undefined; ) this.#flush(id);
    const dueMs = this.#forwarder.timeout();
    if (dueMs === this.#timer?.dueMs) return;
    this.#timer?.stop();
    this.#timer = undefined;
    if (dueMs === undefined) return;
    const fire = (): void => {
      this.#timer = undefined;
      this.#process();
    };
    this.#timer = { dueMs, stop: after(Math.max(dueMs - performance.now(), 0), fire) };
  }

  #flush(id: number): void {
    const channel = this.#links.get(id)?.channel;
    while (channel?.readyState === 'open' && channel.bufferedAmount < BUFFERED_MAX) {
      const message = this.#forwarder.pollOutput(id);
      if (!message) return;
      try {
        channel.send(message.data as string);
      } catch {
        // The channel accepts no more, or no message of this size. The peer joins again.
        return this.#leave(id);
      }
    }
  }
}
