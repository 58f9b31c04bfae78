// One link to another participant: negotiation, tracks, a data channel, and recovery when the network path breaks.
//
// The participant with the smaller id creates the link: it names the link, offers first, and wins if two offers collide
// ("perfect negotiation"; source: WebRTC 1.0, section 10.7). Signals with another link name belong to an old link.
import { markScreens, ownerOf, screensOf } from './screen.js';
import type { Signal } from './server.js';
import { SWITCH } from './topology.js';

/** Delay before an ICE restart on a broken path, and time after which the link is given up, ms. */
const RESTART_AFTER = 2_000;
const GIVE_UP_AFTER = 20_000;
/** Interval and maximum duration of the wait for the first media of the peer, ms. */
const CHECK_EVERY = 20;
const CHECK_MAX = 15_000;
/**
 * Interval of checks whether the SFU still sends, ms. A probe follows after two checks without packets, if more than
 * this number of checks before them had packets: the answers to ICE checks alone are rarer.
 */
const LISTEN_EVERY = 250;
const LIVELY_CHECKS = 4;
/** Maximum buffered bytes on the data channel. Above this, nothing is written. */
const BUFFERED_MAX = 4 << 20;

/**
 * To the SFU, a video is sent in several sizes at once (simulcast). The SFU forwards to each receiver the size that its
 * path can carry.
 */
const LAYERS: readonly RTCRtpEncodingParameters[] = [{ rid: 'q', scaleResolutionDownBy: 4 }, { rid: 'h', scaleResolutionDownBy: 2 }, { rid: 'f' }];
/**
 * Minimum size of a video for two and for three layers, in pixels. With a smaller video, Chromium would omit the best
 * layer.
 */
const PIXELS_MIN = [640 * 360, 960 * 540];

/** A track sent on a link, and the participant it belongs to. */
export interface Sent {
  readonly track: MediaStreamTrack;
  readonly stream: MediaStream;
  readonly owner: string;
  /** Whether the track is a shared screen, or the sound of one. */
  readonly screen?: true;
}

export interface LinkHost {
  readonly rtc: RTCConfiguration;
  /** Codec of sent audio that is preferred, for example `pcmu`. */
  readonly audioCodec?: string | undefined;
  signal(to: string, signal: Signal): void;
  /** Reports that the SFU may be lost. */
  silent(): void;
  /** Reports that the data channel is open. */
  opened(link: Link): void;
  received(link: Link, message: Record<string, unknown>): void;
  /** Reports that {@link Link.moved} has changed. */
  moved(): void;
  track(link: Link, sent: Sent): void;
  changed(link: Link): void;
  /** Reports that the link has failed. The participant that created it shall create a new one. */
  failed(link: Link): void;
}

export class Link {
  readonly to: string;
  readonly pc: RTCPeerConnection;
  readonly createdAt = performance.now();
  /** Time of the first connection; 0 before that. */
  connectedAt = 0;
  /** Time from the creation of the link to the first media of the peer, ms. */
  setupMs: number | undefined;
  /** Time at which the data channel last received a message. */
  receivedAt = 0;
  /** Number of ICE restarts. */
  restarts = 0;
  /**
   * Newest version of the room's state for which the peer reported that its links show all participants; and the newest
   * one reported to the peer.
   */
  moved = 0;
  #reportedMoved = 0;
  #name: string | undefined;
  readonly #host: LinkHost;
  readonly #polite: boolean;
  readonly #data: RTCDataChannel;
  readonly #senders = new Map<MediaStreamTrack, { sender: RTCRtpSender; sent: Sent }>();
  /** Senders of screens, and those of them that send nothing now. They are used again by the next screen. */
  readonly #screens = new Set<RTCRtpSender>();
  readonly #idleScreens: { kind: string; sender: RTCRtpSender }[] = [];
  #remoteScreens: ReadonlySet<string> = new Set();
  readonly #owners: Record<string, string> = {};
  /** Owners of the received tracks, by track id. */
  readonly #received = new Map<string, string>();
  #streams: Readonly<Record<string, string>> = {};
  #makingOffer = false;
  #settingAnswer = false;
  #ignoresOffer = false;
  #handling: Promise<void> = Promise.resolve();
  #brokenAt = 0;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #closed = false;
  #listening: ReturnType<typeof setInterval> | undefined;
  /**
   * Times of the last received media, received bytes, and number of checks in sequence with packets; the number is
   * negative after one check without packets.
   */
  #heard = '';
  #bytes = 0;
  #lively = 0;

  constructor(host: LinkHost, to: string, polite: boolean) {
    this.#host = host;
    this.to = to;
    this.#polite = polite;
    if (!polite) this.#name = crypto.getRandomValues(new Uint32Array(2)).join('-');
    const pc = (this.pc = new RTCPeerConnection(host.rtc));
    this.#data = pc.createDataChannel('room', { negotiated: true, id: 0 });
    this.#data.onopen = () => {
      this.receivedAt = performance.now();
      host.opened(this);
    };
    this.#data.onmessage = ({ data }) => this.#read(data);
    pc.onnegotiationneeded = () => void this.#offer();
    pc.onicecandidate = ({ candidate }) => candidate && this.#signal({ candidate: candidate.toJSON() });
    pc.ontrack = ({ track, streams: [stream], transceiver: { mid } }) => {
      if (!stream) return;
      const bySwitch = to === SWITCH ? ownerOf(stream.id) : undefined;
      const owner = this.#streams[stream.id] ?? bySwitch?.owner ?? to;
      this.#received.set(track.id, owner);
      host.track(this, { track, stream, owner, ...((bySwitch?.screen || this.#remoteScreens.has(mid ?? '')) && { screen: true }) });
    };
    pc.onconnectionstatechange = () => this.#check();
    pc.oniceconnectionstatechange = () => this.#check();
    if (to === SWITCH) this.#listening = setInterval(() => void this.#listen(), LISTEN_EVERY);
  }

  get isOpen(): boolean {
    return this.#data.readyState === 'open';
  }

  /** Whether the data channel is open and its buffer is mostly empty. */
  get isIdle(): boolean {
    return this.isOpen && this.#data.bufferedAmount < BUFFERED_MAX / 4;
  }

  get isClosed(): boolean {
    return this.#closed;
  }

  get isConnected(): boolean {
    return this.pc.connectionState === 'connected';
  }

  /** Returns the owner of a track that is received or sent. */
  readonly ownerOf = (trackId: string): string | undefined =>
    this.#received.get(trackId) ?? [...this.#senders.values()].find(({ sent }) => sent.track.id === trackId)?.sent.owner;

  /** Returns the audio level of a received track, 0 to 1. */
  levelOf(track: MediaStreamTrack): number {
    const receiver = this.pc.getReceivers().find((receiver) => receiver.track === track);
    return receiver?.getSynchronizationSources()[0]?.audioLevel ?? 0;
  }

  /** Sends a message. Returns false if the data channel is not open, or if its buffer is full. */
  send(message: object): boolean {
    if (!this.isOpen || this.#data.bufferedAmount > BUFFERED_MAX) return false;
    try {
      this.#data.send(JSON.stringify(message));
      return true;
    } catch {
      return false;
    }
  }

  /** Reports to the peer that the links of this version of the state show all participants here. */
  reportMoved(version: number): void {
    if (version > this.#reportedMoved && this.send({ moved: version })) this.#reportedMoved = version;
  }

  /** Sends exactly these tracks. A new track replaces a removed track of the same owner and kind. */
  async setTracks(tracks: readonly Sent[]): Promise<void> {
    if (this.#closed) return;
    const wanted = new Set(tracks.map(({ track }) => track));
    const gone = [...this.#senders].filter(([track]) => !wanted.has(track));
    for (const sent of tracks) {
      const { track, stream, owner, screen } = sent;
      if (this.#senders.has(track)) continue;
      const i = gone.findIndex(([old, { sent }]) => old.kind === track.kind && sent.owner === owner && sent.screen === screen);
      const [replaced] = i < 0 ? [] : gone.splice(i, 1);
      const idle = screen ? this.#idleScreens.findIndex(({ kind }) => kind === track.kind) : -1;
      const sender = (replaced?.[1] ?? this.#idleScreens.splice(idle, +(idle >= 0))[0])?.sender;
      if (replaced) this.#senders.delete(replaced[0]);
      if (!sender) this.#owners[stream.id] = owner;
      this.#senders.set(track, { sender: sender ?? this.#add(track, stream, screen), sent });
      if (sender) await sender.replaceTrack(track);
    }
    for (const [track, { sender, sent }] of gone) {
      this.#senders.delete(track);
      if (sent.screen) {
        this.#idleScreens.push({ kind: track.kind, sender });
        await sender.replaceTrack(null);
      } else this.pc.removeTrack(sender);
    }
  }

  #add(track: MediaStreamTrack, stream: MediaStream, screen: true | undefined): RTCRtpSender {
    const sender = this.#addSender(track, stream, screen);
    if (screen) this.#screens.add(sender);
    const { audioCodec } = this.#host;
    const transceiver = track.kind === 'audio' && audioCodec ? this.pc.getTransceivers().find((one) => one.sender === sender) : undefined;
    const codecs = transceiver ? (RTCRtpReceiver.getCapabilities('audio')?.codecs ?? []) : [];
    const isPreferred = ({ mimeType }: { mimeType: string }): boolean => mimeType.toLowerCase() === `audio/${audioCodec}`;
    // The SFU answers in its own order, so it gets the preferred codec only.
    const others = this.to === SWITCH ? [] : codecs.filter((codec) => !isPreferred(codec));
    if (codecs.some(isPreferred)) transceiver!.setCodecPreferences([...codecs.filter(isPreferred), ...others]);
    return sender;
  }

  #addSender(track: MediaStreamTrack, stream: MediaStream, screen: true | undefined): RTCRtpSender {
    const { width = 0, height = 0 } = track.getSettings();
    const more = PIXELS_MIN.filter((pixels) => width * height >= pixels).length;
    // The SFU sends on m-lines of its own, so each track to the SFU gets a transceiver that only sends.
    if (this.to !== SWITCH) return this.pc.addTrack(track, stream);
    const sendEncodings = track.kind === 'video' && more && !screen ? LAYERS.slice(-1 - more) : undefined;
    return this.pc.addTransceiver(track, { direction: 'sendonly', streams: [stream], ...(sendEncodings && { sendEncodings }) }).sender;
  }

  /** Processes a signal of the peer. Signals are processed in order. */
  handleSignal(signal: Signal): void {
    this.#handling = this.#handling.then(() => this.#handleSignal(signal)).catch((thrown: unknown) => console.warn('a signal could not be processed:', thrown));
  }

  /** Returns whether a signal with this name belongs to another link. */
  isOther(name: string | undefined): boolean {
    return !!name && !!this.#name && name !== this.#name;
  }

  close(): void {
    this.#closed = true;
    clearTimeout(this.#timer);
    clearInterval(this.#listening);
    this.#data.onopen = this.#data.onmessage = null;
    this.pc.onnegotiationneeded = this.pc.onicecandidate = this.pc.ontrack = this.pc.onconnectionstatechange = this.pc.oniceconnectionstatechange = null;
    this.pc.close();
  }

  #signal(signal: Signal): void {
    this.#host.signal(this.to, { ...signal, ...(this.#name && { link: this.#name }) });
  }

  #describe(): void {
    const { localDescription } = this.pc;
    if (!localDescription) return;
    const screens = this.pc.getTransceivers().flatMap(({ sender, mid }) => (mid !== null && this.#screens.has(sender) ? [mid] : []));
    this.#signal({ description: markScreens(localDescription.toJSON() as RTCSessionDescriptionInit, screens), streams: this.#owners });
  }

  async #offer(): Promise<void> {
    // The polite side does not offer first. Its tracks are part of its first answer.
    if (this.#polite && !this.pc.remoteDescription) return;
    try {
      this.#makingOffer = true;
      await this.pc.setLocalDescription();
      this.#describe();
    } catch (thrown) {
      if (!this.#closed) console.warn('cannot create an offer:', thrown);
    } finally {
      this.#makingOffer = false;
    }
  }

  async #handleSignal({ description, candidate, link, streams }: Signal): Promise<void> {
    const { pc } = this;
    if (this.#closed) return;
    this.#name ??= link;
    if (description) {
      const isReady = !this.#makingOffer && (pc.signalingState === 'stable' || this.#settingAnswer);
      this.#ignoresOffer = !this.#polite && description.type === 'offer' && !isReady;
      if (this.#ignoresOffer) return;
      // A duplicate answer, or an answer to an offer that was withdrawn.
      if (description.type === 'answer' && pc.signalingState === 'stable') return;
      this.#streams = { ...this.#streams, ...streams };
      this.#remoteScreens = new Set([...this.#remoteScreens, ...screensOf(description.sdp)]);
      this.#settingAnswer = description.type === 'answer';
      await pc.setRemoteDescription(description).finally(() => (this.#settingAnswer = false));
      if (description.type === 'offer') {
        await pc.setLocalDescription();
        this.#describe();
      }
    } else if (candidate) {
      await pc.addIceCandidate(candidate).catch((thrown: unknown) => {
        if (!this.#ignoresOffer) throw thrown;
      });
    }
  }

  #read(data: unknown): void {
    this.receivedAt = performance.now();
    try {
      const message: unknown = JSON.parse(data as string);
      if (!message || typeof message !== 'object') return;
      const { moved } = message as { moved?: unknown };
      if (typeof moved !== 'number') return this.#host.received(this, message as Record<string, unknown>);
      this.moved = moved;
      this.#host.moved();
    } catch (thrown) {
      if (!(thrown instanceof SyntaxError)) throw thrown;
    }
  }

  /** Restarts ICE on a broken path without leaving the room, and gives up a link that stays broken. */
  #check(): void {
    const { connectionState, iceConnectionState } = this.pc;
    clearTimeout(this.#timer);
    this.#timer = undefined;
    if (connectionState === 'connected') {
      if (!this.connectedAt) this.#awaitMedia((this.connectedAt = performance.now()));
      this.#brokenAt = 0;
    } else if (iceConnectionState === 'failed' || iceConnectionState === 'disconnected' || connectionState === 'failed') {
      this.#brokenAt ||= performance.now();
      // The participant that created the link restarts first, so that the offers do not collide.
      const after = (iceConnectionState === 'failed' ? 0 : RESTART_AFTER) + (this.#polite ? RESTART_AFTER : 0);
      this.#timer = setTimeout(() => this.#recover(), after);
    }
    this.#host.changed(this);
  }

  /**
   * Probes an SFU that was active and is silent now. Other packets than media are counted only while no media arrives,
   * because statistics of many streams are costly.
   */
  async #listen(): Promise<void> {
    const { pc } = this;
    const heard = String(pc.getReceivers().map((one) => one.getSynchronizationSources().map(({ timestamp }) => timestamp)));
    let bytes = 0;
    if (heard === this.#heard) (await pc.getStats()).forEach(({ bytesReceived = 0 }) => (bytes += bytesReceived));
    if (heard !== this.#heard || bytes !== this.#bytes) this.#lively = Math.abs(this.#lively) + 1;
    else if (this.#lively > LIVELY_CHECKS) this.#lively *= -1;
    else {
      if (this.#lively < 0) this.#probe();
      this.#lively = 0;
    }
    this.#heard = heard;
    this.#bytes = bytes;
  }

  /** Sends an empty signal to the SFU. If its node has ended, another node takes its place and answers with `bye`. */
  #probe(): void {
    if (this.to !== SWITCH) return;
    this.#signal({ candidate: null });
    this.#host.silent();
  }

  #awaitMedia(since: number): void {
    const timer = setInterval(() => {
      const now = performance.now();
      const hasMedia = this.pc.getReceivers().some((receiver) => receiver.getSynchronizationSources().length);
      if (hasMedia) this.setupMs = now - this.createdAt;
      if (hasMedia || this.#closed || now - since > CHECK_MAX) clearInterval(timer);
    }, CHECK_EVERY);
  }

  #recover(): void {
    if (this.#closed || this.pc.connectionState === 'connected') return;
    if (performance.now() - this.#brokenAt > GIVE_UP_AFTER) return this.#host.failed(this);
    this.restarts++;
    this.#probe();
    this.pc.restartIce();
    this.#timer = setTimeout(() => this.#recover(), GIVE_UP_AFTER / 4);
  }
}
