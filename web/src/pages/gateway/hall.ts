/** A gateway in a page: takes offers, holds a connection to each peer, and moves what the forwarder says. */
import { millrace, type Client, type MillraceError, type State } from '@millrace/client';
import { refusalOf } from '../../lib/token';
import { after } from './clock';
import { LABEL, relays, whole } from './connection';
import { Forwarder, Refused, type Config, type Peer, type Stats } from './forwarder';
import { answers, idOf, missingAt, offers, readOffer, type Answer, type Offer } from './signals';

/** A peer whose channel is not open by then is forgotten. */
const OPEN_MS = 15_000;
/** So much may be on its way to a peer; the rest waits where the oldest can give way. */
const BUFFERED_MAX = 64 * 1024;
/** Offers that are looked at, and answers that are on their way, at one time. */
const PENDING_MAX = 64;
/** An answer that nobody has fetched by then is of no use, seconds. */
const ANSWER_TTL = 30;
/** How often one asks whether another page serves the same name. */
const OTHERS_MS = 10_000;
/** How often devices are told which receivers are missing, while messages for these come. */
const MISSING_MS = 2_000;

/** Where a peer sits. */
interface Seat {
  readonly connection: RTCPeerConnection;
  channel?: RTCDataChannel;
}

/** What there is to see. */
export interface View {
  readonly atMs: number;
  readonly peers: readonly (Peer & { readonly isOpen: boolean })[];
  readonly stats: Readonly<Stats>;
  /** Offers that were none, or came while there were too many. */
  readonly dropped: number;
  readonly link: State['name'];
  /** Other pages read the same offers. */
  readonly others: number;
  /** Why no offers come in. */
  readonly trouble: string;
  /** What the server said, if it refused this page. */
  readonly refusal: string | undefined;
  /** Receivers that have not joined, and how many messages were for each. */
  readonly missing: readonly (readonly [name: string, messages: number])[];
}

export class Hall {
  readonly #forwarder: Forwarder;
  readonly #client: Client;
  readonly #seats = new Map<number, Seat>();
  readonly #over = new AbortController();
  #pending = 0;
  #dropped = 0;
  #others = 0;
  #ended: MillraceError | undefined;
  /** Messages for missing receivers that devices have been told of. */
  #told = 0;
  /** When the timer rings that is set, and the way to stop it. */
  #alarm: { readonly dueMs: number; readonly stop: () => void } | undefined;

  constructor(
    readonly name: string,
    readonly token: string | undefined,
    config: Partial<Config>,
  ) {
    this.#forwarder = new Forwarder(config);
    this.#client = millrace(location.origin, token ? { token } : {});
    this.#client.subscribe(offers(name)).on(
      ({ data }) => void this.#take(data),
      (cause) => (this.#ended = cause),
    );
    void this.#watch();
    this.#tellMissing();
  }

  configure(change: Partial<Config>): void {
    this.#forwarder.configure(change);
    this.#move();
  }

  look(): View {
    const peers = this.#forwarder.peers().map((peer) => {
      const channel = this.#seats.get(peer.id)?.channel;
      return { ...peer, waitingBytes: peer.waitingBytes + (channel?.bufferedAmount ?? 0), isOpen: channel?.readyState === 'open' };
    });
    return {
      atMs: performance.now(),
      peers,
      stats: { ...this.#forwarder.stats },
      dropped: this.#dropped,
      link: this.#client.state.name,
      others: this.#others,
      trouble: this.#over.signal.aborted ? '' : (this.#ended?.message ?? ''),
      refusal: refusalOf(this.#client.state, this.#ended),
      missing: [...this.#forwarder.missing()],
    };
  }

  /** All peers are let go, at once: they need not find out. */
  close(): void {
    this.#over.abort();
    for (const id of [...this.#seats.keys()]) this.#leave(id);
    this.#alarm?.stop();
    void this.#client.close();
  }

  async #watch(): Promise<void> {
    try {
      for await (const { count } of this.#client.presence(offers(this.name), { signal: this.#over.signal, everyMs: OTHERS_MS })) this.#others = Math.max(count - 1, 0);
    } catch {
      // Whose token does not let it ask does without.
    }
  }

  /** Devices cannot know whether their receivers are there. */
  #tellMissing(): void {
    after(MISSING_MS, () => {
      if (this.#over.signal.aborted) return;
      const missing = this.#forwarder.missing();
      const count = [...missing.values()].reduce((sum, messages) => sum + messages, 0);
      // Devices that lack this word only lack a warning.
      if (count > this.#told) this.#client.publish(missingAt(this.name), { missing: Object.fromEntries(missing) }, { ttl: ANSWER_TTL, signal: this.#over.signal }).catch(() => {});
      this.#told = count;
      this.#tellMissing();
    });
  }

  /** Something was published among the offers. */
  async #take(data: unknown): Promise<void> {
    const id = idOf(data);
    if (id === undefined || this.#pending >= PENDING_MAX) return void this.#dropped++;
    this.#pending++;
    try {
      const answer = await this.#answer(data).catch((error: unknown): Answer => {
        this.#dropped++;
        return error instanceof Refused ? { error: error.code, detail: error.message } : { error: 'bad_request', detail: 'the offer is none that this browser understands' };
      });
      await this.#client.publish(answers(this.name, id), answer, { ttl: ANSWER_TTL, signal: AbortSignal.any([this.#over.signal, AbortSignal.timeout(OPEN_MS)]) });
    } catch {
      // It gets no answer, and tries again; its seat is given up when nobody comes.
    } finally {
      this.#pending--;
    }
  }

  async #answer(data: unknown): Promise<Answer> {
    const ticket: Offer = readOffer(data);
    const { name, to, urgent, offer } = ticket;
    const id = this.#forwarder.join({ name, ...(to !== undefined && { to }), ...(urgent !== undefined && { urgent }) });
    try {
      const connection = new RTCPeerConnection({ iceServers: await relays(this.token) });
      const seat: Seat = { connection };
      this.#seats.set(id, seat);
      const late = after(OPEN_MS, () => seat.channel?.readyState === 'open' || this.#leave(id));
      connection.onconnectionstatechange = () => {
        if (connection.connectionState !== 'failed' && connection.connectionState !== 'closed') return;
        late();
        this.#leave(id);
      };
      connection.ondatachannel = ({ channel }) => {
        if (channel.label === LABEL && !seat.channel) this.#seat(id, seat, channel);
        else channel.close();
      };
      await connection.setRemoteDescription({ type: 'offer', sdp: offer });
      const answer = await whole(connection);
      if (!answer) throw new Error('no answer');
      return { answer };
    } catch (error) {
      this.#leave(id);
      throw error;
    }
  }

  #seat(id: number, seat: Seat, channel: RTCDataChannel): void {
    seat.channel = channel;
    channel.binaryType = 'arraybuffer';
    channel.bufferedAmountLowThreshold = BUFFERED_MAX / 2;
    channel.onopen = channel.onbufferedamountlow = () => this.#flush(id);
    channel.onclose = () => this.#leave(id);
    channel.onmessage = ({ data }: MessageEvent<string | ArrayBuffer>) => {
      this.#forwarder.handle(performance.now(), id, data);
      this.#move();
    };
    this.#flush(id);
  }

  #leave(id: number): void {
    this.#forwarder.leave(id);
    const seat = this.#seats.get(id);
    if (!seat) return;
    this.#seats.delete(id);
    if (seat.channel) seat.channel.onclose = null;
    seat.connection.onconnectionstatechange = null;
    seat.connection.close();
  }

  /** Windows that have ended, then everything that can go, then the next alarm. */
  #move(): void {
    this.#forwarder.handleTimeout(performance.now());
    for (let id; (id = this.#forwarder.pollReady()) !== undefined; ) this.#flush(id);
    const dueMs = this.#forwarder.timeout();
    if (dueMs === this.#alarm?.dueMs) return;
    this.#alarm?.stop();
    this.#alarm = undefined;
    if (dueMs === undefined) return;
    const ring = (): void => {
      this.#alarm = undefined;
      this.#move();
    };
    this.#alarm = { dueMs, stop: after(Math.max(dueMs - performance.now(), 0), ring) };
  }

  #flush(id: number): void {
    const channel = this.#seats.get(id)?.channel;
    while (channel?.readyState === 'open' && channel.bufferedAmount < BUFFERED_MAX) {
      const message = this.#forwarder.pollOutput(id);
      if (!message) return;
      try {
        channel.send(message.data as string);
      } catch {
        // It takes nothing more, or nothing as large as this: it comes again.
        return this.#leave(id);
      }
    }
  }
}
