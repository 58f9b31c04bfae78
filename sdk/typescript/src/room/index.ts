// Rooms: calls and data between browsers. Signals use channels, so they survive lost connections and work on any
// transport.
//
//   import { joinRoom } from '@millrace/client/room';
//   const room = await joinRoom('https://example.com', 'kitchen', { name: 'Ann', stream });
//   room.on('track', ({ participant, stream }) => show(participant, stream));
//
// Each peer derives its links from the room's state; no peer controls another. Source: docs/reference/rooms.md.
import { pauseOf } from '../backoff.js';
import { payloadOf } from '../client.js';
import { toError, type MillraceError } from '../errors.js';
import { millrace } from '../index.js';
import { call, sleep } from '../listen.js';
import type { Client, Event, Subscription } from '../types.js';
import { ActiveSpeakerDetector } from './active-speaker.js';
import { LinkFlow, type Flow } from './flow.js';
import { Link, type LinkHost, type Sent } from './link.js';
import { measure } from './measure.js';
import { MutedTracks, isMuted } from './muted-tracks.js';
import { Meter } from './quality.js';
import { SteeredVideo } from './steered-video.js';
import { keepSeat, takeSeat, type FlowSnapshot, type Seat } from './seat.js';
import { Server, type Joined, type Signal } from './server.js';
import { DisplayedTracks } from './displayed-tracks.js';
import { MIX, neighbours, SWITCH } from './topology.js';
import { TreeFlow } from './tree.js';
import { DataPath } from './data-path.js';
import type { JoinOptions, Participant, Quality, Room, RoomEvents, RoomState, Topology, VideoChoice, VideoState } from './types.js';

export { hasSeat } from './seat.js';
export { isByServer, MIX, neighbours } from './topology.js';
export type * from './types.js';
export { MillraceError, type ErrorCode } from '../errors.js';

/** Interval of reports, ms. It is a fraction of the silent peer timeout. */
const REPORT_EVERY = 5_000;
/** Maximum time for which old links stay open while the new links do not yet show all participants at both ends, ms. */
const OVERLAP = 10_000;
/** A link that is not connected after this time counts as failed, ms. */
const CALL_FAILED_AFTER = 15_000;
/** Maximum number of streams in one report. The server refuses larger reports. */
const STREAMS_MAX = 32;
/** Maximum number of queued signals per sender that the state does not contain yet. */
const EARLY_MAX = 100;
/**
 * Limit of the random delay before the first attempt to rejoin, its maximum after doublings, and the time after a
 * rejoin during which the delay starts higher, ms.
 */
const REJOIN_MIN = 250;
const REJOIN_MAX = 10_000;
const SETTLED = 10_000;
/** Delay before the replacement of a connection to the SFU that ended soon after it was created, ms. */
const RECONNECT_AFTER = 3_000;
/** Maximum number of messages queued while the participant rejoins. */
const UNSENT_MAX = 1024;
/** Interval of checks for the active speaker, ms. */
const LISTEN_EVERY = 100;

/**
 * Joins a room. The first participant creates it. If `where` is a client, `options.url` is the server's URL; by
 * default, the origin of the page.
 */
export async function joinRoom(where: string | URL | Client, name: string, options: JoinOptions = {}): Promise<Room> {
  const isUrl = typeof where === 'string' || where instanceof URL;
  const serverOf = (): Server => new Server(isUrl ? where : (options.url ?? ''), name, options);
  const server = serverOf();
  const seat = options.resume ? takeSeat(name) : undefined;
  const joined = await server.join(options.topology, seat).catch((thrown: unknown) => {
    // The next attempt may resume the seat.
    if (seat && toError(thrown).retryable) keepSeat(name, seat);
    throw thrown;
  });
  return new Participation(isUrl ? millrace(where, options) : where, isUrl ? where : undefined, serverOf, name, options, server, joined, seat);
}

function rethrow(thrown: unknown): never {
  throw toError(thrown);
}

class Participation implements Room {
  id!: string;
  state!: RoomState;
  readonly #client: Client;
  /** The server's URL. Undefined if the client belongs to the application; the URL is then in the options. */
  readonly #url: string | URL | undefined;
  readonly #serverOf: () => Server;
  readonly #options: JoinOptions;
  readonly resumed: boolean;
  readonly #name: string;
  readonly #channel: (what: string) => string;
  readonly #links = new Map<string, Link>();
  /** Meters for the page and for reports. They are separate because each reads at its own times. */
  readonly #meters = { asked: new Map<Link, Meter>(), reported: new Map<Link, Meter>(), steered: new Map<Link, Meter>() };
  readonly #early = new Map<string, Signal[]>();
  readonly #listeners = new Map<keyof RoomEvents, Set<(value: any) => void>>();
  readonly #displayed = new DisplayedTracks((track) => {
    this.#emit('track', track);
    this.#closeOldLinks();
  });
  readonly #over = new AbortController();
  readonly #subscriptions = new Set<Subscription>();
  readonly #timers: ReturnType<typeof setInterval>[] = [];
  /** Tracks received on each link, so that a hub can forward them. */
  readonly #received = new Map<Link, Sent[]>();
  #stream: MediaStream | undefined;
  #screen: MediaStream | undefined;
  #muted = false;
  #hand = false;
  readonly #mutedTracks = new MutedTracks();
  #calls = 0;
  #callsFailed = 0;
  #ended = false;
  #video: SteeredVideo | undefined;
  readonly #activeSpeaker = new ActiveSpeakerDetector();
  #speakerTimer: ReturnType<typeof setInterval> | undefined;
  /**
   * State of the current membership, replaced by a rejoin: the server with its credentials, the permissions, the
   * relays, and the data path.
   */
  #server!: Server;
  #moderates: Joined['moderates'];
  #ticket = '';
  #rtc!: RTCConfiguration;
  #flow!: Flow;
  #dataPath!: DataPath;
  #rejoinedAt = -SETTLED;
  /** Messages sent while the participant rejoins; undefined otherwise. */
  #unsent: unknown[] | undefined;
  #overlap: ReturnType<typeof setTimeout> | undefined;
  /** Version of the state in which the topology or the hub last changed. */
  #changedAt = 0;

  constructor(client: Client, url: string | URL | undefined, serverOf: () => Server, room: string, options: JoinOptions, server: Server, joined: Joined, seat: Seat | undefined) {
    this.#client = client;
    this.#url = url;
    this.#serverOf = serverOf;
    this.#options = options;
    this.#stream = options.stream;
    this.#name = room;
    this.#channel = (what) => `rooms/${room}/${what}`;
    this.resumed = !!joined.resumed;
    this.#begin(server, joined, joined.resumed && seat?.flow);
    const me = joined.resumed && joined.state.participants.find(({ id }) => id === this.id);
    if (me) [this.#muted, this.#hand] = [me.muted ?? false, me.hand !== undefined];
    // Participants that are already present are reported after the page had time to add listeners.
    queueMicrotask(() => {
      if (this.#ended) return;
      this.#read('chat', options.chatHistory ? joined.chat_since : joined.positions[this.#channel('chat')]!, (event) => this.#receiveChat(event));
      this.#subscribe(joined);
    });
    this.#timers.push(
      setInterval(() => void this.#report(), REPORT_EVERY),
      setInterval(() => this.#flow.tick(), 1_000),
    );
    if (options.video) this.chooseVideo(options.video);
    const scope = globalThis as Partial<Window & typeof globalThis>;
    scope.addEventListener?.('pagehide', (event) => (event as PageTransitionEvent).persisted || (options.resume ? this.#goAway() : void this.leave()), this.#over);
    options.signal?.addEventListener('abort', () => void this.leave(), this.#over);
    // A server that has restarted does not know this participant. A report after each reconnect finds this out at once.
    this.#over.signal.addEventListener('abort', client.onState(({ name }) => name === 'open' && void this.#report()));
  }

  #begin(server: Server, { participant, ticket, state, positions, ice_servers, moderates }: Joined, before?: FlowSnapshot): void {
    this.id = participant;
    this.#ticket = ticket;
    this.#moderates = moderates;
    this.state = { ...state, participants: [] };
    this.#server = server;
    this.#rtc = { iceServers: ice_servers, ...(state.topology === 'relay' && { iceTransportPolicy: 'relay' }), ...this.#options.rtc };
    this.#changedAt = 0;
    const channel = this.#channel('data');
    const at = before?.at ?? positions[channel]!;
    const read = (after: string, fn: (message: unknown, position: string) => void): Subscription => this.#read('data', after, ({ data, position }) => fn(data, position));
    const publish = async (message: object): Promise<void> => void (await this.#client.publish(channel, message));
    this.#dataPath = new DataPath({ url: this.#url ?? this.#options.url ?? '', token: this.#options.token, channel, read, publish }, at);
    const host = {
      me: participant,
      links: this.#links,
      deliver: (data: RoomEvents['data']) => this.#emit('data', data),
      lost: (from: string, count: number) => this.#emit('gap', { from, count }),
      publish: (message: object) => void this.#dataPath.publish(message).catch((thrown: unknown) => this.#end(toError(thrown))),
      read,
      report: () => void this.#report(),
    };
    this.#flow = state.topology === 'tree' ? new TreeFlow(host, at) : new LinkFlow(host, before);
  }

  #subscribe({ participant, state, positions }: Joined): void {
    this.#follow(state);
    this.#readState();
    const inbox = `inbox/${participant}`;
    this.#read(inbox, positions[this.#channel(inbox)]!, ({ data }) => this.#handleSignal(data as Signal & { from: string }));
    if (state.topology !== 'tree') this.#dataPath.read((data, position) => this.#flow.read(data, position));
  }

  on<E extends keyof RoomEvents>(event: E, fn: (value: RoomEvents[E]) => void): () => void {
    let listeners = this.#listeners.get(event);
    if (!listeners) this.#listeners.set(event, (listeners = new Set()));
    listeners.add(fn);
    if (event === 'speaker' && !this.#ended) this.#speakerTimer ??= setInterval(() => this.#detectSpeaker(), LISTEN_EVERY);
    return () => void listeners.delete(fn);
  }

  get moderates(): boolean {
    return this.#moderates === 'always' || (this.#moderates === 'as_host' && this.state.host === this.id);
  }

  send(data: unknown): void {
    payloadOf(data);
    if (this.#ended) return;
    if (!this.#unsent) this.#flow.send(data);
    else if (this.#unsent.push(data) > UNSENT_MAX) this.#unsent.shift();
  }

  async say(text: string): Promise<void> {
    const name = this.state.participants.find(({ id }) => id === this.id)?.name;
    await this.#client.publish(this.#channel('chat'), { from: this.id, text, name });
  }

  async replaceStream(stream: MediaStream | undefined): Promise<void> {
    const old = this.#stream;
    this.#stream = stream;
    // The old stream is released when it is no longer sent.
    this.#applyMutes(old);
    await this.#updateTracks();
    this.#applyMutes();
  }

  setMuted(muted: boolean): void {
    this.#muted = muted;
    for (const track of this.#stream?.getAudioTracks() ?? []) this.#mutedTracks.setEnabled(track, !muted);
    void this.#report();
  }

  async mute(id: string, media: { readonly audio?: boolean; readonly video?: boolean }): Promise<void> {
    await this.#server.mute(id, media).catch(rethrow);
  }

  async shareScreen(screen: MediaStream | undefined): Promise<void> {
    this.#screen = screen;
    await this.#updateTracks();
    void this.#report();
  }

  chooseVideo(choice: VideoChoice): void {
    if (this.#ended) return;
    const host = { measure: (age: number) => this.#measure(this.#meters.steered, age), tracks: () => this.#stream?.getVideoTracks() ?? [], changed: (state: VideoState) => this.#emit('video', state) };
    this.#video ??= new SteeredVideo(host, choice);
    this.#video.choose(choice);
  }

  raiseHand(up: boolean): void {
    this.#hand = up;
    void this.#report();
  }

  async remove(id: string): Promise<void> {
    await this.#server.remove(id).catch(rethrow);
  }

  async lock(locked: boolean): Promise<void> {
    await this.#server.lock(locked).catch(rethrow);
  }

  quality(): Promise<Quality> {
    return this.#measure(this.#meters.asked);
  }

  async leave(): Promise<void> {
    if (this.#ended) return;
    const left = this.#server.leave().catch(() => {});
    this.#end(undefined);
    await left;
  }

  /** Hands the seat over to the next page of this tab. */
  #goAway(): void {
    keepSeat(this.#name, { participant: this.id, ticket: this.#ticket, flow: this.#flow.snapshot(this.#dataPath.at) });
    void this.#server.away().catch(() => {});
  }

  /**
   * Reads a channel of the room after `position`; without one, as a keyed state. All subscriptions have the same
   * policy, so that an HTTP transport reads them with one request.
   */
  #read(what: string, position: string | undefined, fn: (event: Event) => void): Subscription {
    const subscription = this.#client.subscribe(this.#channel(what), { from: position ? { position } : 'state' });
    this.#subscriptions.add(subscription);
    subscription.on(fn, (cause) => {
      this.#subscriptions.delete(subscription);
      if (cause?.code === 'gap') this.#readState();
      else if (cause) this.#end(cause);
    });
    return subscription;
  }

  /** Reads the state of the room, and after lost changes the newest state again. */
  #readState(): void {
    this.#read('state', undefined, ({ data }) => data && this.#follow(data as RoomState));
  }

  #emit<E extends keyof RoomEvents>(event: E, value: RoomEvents[E]): void {
    this.#listeners.get(event)?.forEach((fn) => call(fn, value));
  }

  #receiveChat({ data, position, publishedAt: at }: Event): void {
    const { from, text, name } = (data ?? {}) as Record<string, unknown>;
    if (typeof text === 'string') this.#emit('chat', { from: String(from ?? ''), text, position, at, ...(typeof name === 'string' && { name }) });
  }

  /** Applies a state. Each state is complete, so a skipped state does no harm. */
  #follow(state: RoomState): void {
    if (this.#ended || state.version < this.state.version) return;
    const { participants: before, topology: was, hub } = this.state;
    const present = new Set(state.participants.map(({ id }) => id));
    if (state.removed?.includes(this.id)) return this.#end(toError('a moderator has removed you from the room', 'rejected'));
    if (!present.has(this.id)) return void this.#rejoin(toError('the server has removed this participant', 'rejected'));
    this.state = state;
    this.#applyMutes();
    const known = new Set(before.map(({ id }) => id));
    for (const id of this.#early.keys()) if (!present.has(id) && id !== SWITCH) this.#early.delete(id);
    for (const [id, link] of this.#links) if (!present.has(id) && id !== SWITCH) this.#removeLink(link);
    this.#flow.follow(state);
    this.#emit('state', state);
    for (const one of before) {
      if (present.has(one.id)) continue;
      this.#displayed.removeParticipant(one.id);
      this.#emit('left', one);
    }
    for (const one of state.participants as Participant[]) if (!known.has(one.id) && one.id !== this.id) this.#emit('participant', one);
    if (typeof RTCPeerConnection === 'undefined') return present.forEach((id) => id === this.id || this.#flow.unreachable(id));
    for (const { id, resumed } of state.participants) {
      const was = before.find((one) => one.id === id);
      // The page of the other participant was reloaded. The participant with the smaller id creates the new link.
      if (was && resumed !== was.resumed && id > this.id && this.#links.has(id)) this.#replaceLink(id);
    }
    for (const id of neighbours(state, this.id)) if (!this.#links.has(id)) this.#createLink(id);
    void this.#updateTracks();
    if (before.length && (state.topology !== was || state.hub !== hub)) this.#changedAt = state.version;
    clearTimeout(this.#overlap);
    this.#overlap = setTimeout(() => this.#closeOldLinks(true), OVERLAP);
    this.#closeOldLinks();
  }

  /**
   * Closes the links that the state no longer contains, once the new links show all participants, here and at the other
   * participants, which report this with `moved`. With `now`, closes them in any case.
   */
  #closeOldLinks(now?: true): void {
    const wanted = neighbours(this.state, this.id);
    const links = [...this.#links.values()];
    const old = links.filter(({ to }) => !wanted.includes(to));
    const others = links.filter(({ to, isConnected }) => to !== SWITCH && isConnected);
    const isShown = (link: Link): boolean => !!this.#received.get(link)?.some(({ owner }) => this.#displayed.linkOf(owner) === link);
    const hasMoved = wanted.every((id) => this.#links.get(id)?.isConnected) && !old.some(isShown);
    if (hasMoved) for (const link of others) link.reportMoved(this.state.version);
    if (now || (hasMoved && others.every(({ moved }) => moved >= this.#changedAt))) old.forEach((link) => this.#removeLink(link));
  }

  #createLink(to: string): Link {
    const polite = to < this.id;
    const host: LinkHost = {
      rtc: this.#rtc,
      audioCodec: this.#options.audioCodec,
      signal: (to, signal) => this.#server.signal(to, signal),
      // With its last node, the room itself is lost.
      silent: () => void this.#report(),
      opened: (link) => {
        if (to === SWITCH) this.#dataPath.openSession(link.pc);
        else this.#flow.opened(link);
        this.#closeOldLinks();
      },
      received: (link, message) => this.#flow.received(link, message),
      moved: () => this.#closeOldLinks(),
      track: (link, sent) => this.#trackReceived(link, sent),
      changed: (link) => {
        this.#emit('link', { to: link.to, state: link.pc.connectionState });
        this.#closeOldLinks();
      },
      failed: (link) => {
        if (!polite && this.#links.get(link.to) === link) this.#replaceLink(link.to);
      },
    };
    const link = new Link(host, to, polite);
    this.#links.set(to, link);
    for (const meters of Object.values(this.#meters)) meters.set(link, new Meter());
    this.#calls++;
    setTimeout(() => (this.#callsFailed += Number(!this.#ended && !link.isClosed && !link.connectedAt)), CALL_FAILED_AFTER);
    const early = this.#early.get(to);
    this.#early.delete(to);
    void link.setTracks(this.#tracksFor(link));
    early?.forEach((signal) => link.isOther(signal.link) || link.handleSignal(signal));
    return link;
  }

  #replaceLink(to: string): Link {
    const old = this.#links.get(to);
    if (old) this.#removeLink(old);
    return this.#createLink(to);
  }

  #removeLink(link: Link): void {
    if (this.#links.get(link.to) === link) this.#links.delete(link.to);
    for (const meters of Object.values(this.#meters)) meters.delete(link);
    this.#early.delete(link.to);
    this.#dataPath.closeSession(link.pc);
    link.close();
    this.#flow.closed(link);
    this.#displayed.removeLink(link);
    if (this.#received.delete(link)) void this.#updateTracks();
  }

  #handleSignal({ from, ...signal }: Signal & { from: string }): void {
    if (signal.bye !== undefined) return from === SWITCH ? this.#switchLost(signal.link) : this.#flow.unreachable(from);
    if (!signal.description && !signal.candidate) return;
    if (typeof RTCPeerConnection === 'undefined') {
      // Sent once for each link: this runtime supports only channels.
      if (signal.description) this.#server.signal(from, { bye: 'no WebRTC here' });
      return;
    }
    const link = this.#links.get(from);
    if (!link) {
      const early = this.#early.get(from) ?? [];
      if (early.length < EARLY_MAX) this.#early.set(from, [...early, signal]);
    } else if (!link.isOther(signal.link)) link.handleSignal(signal);
    // The other participant has created a new link. Signals of the old link arrive late and are ignored.
    else if (from < this.id && signal.description?.type === 'offer') this.#replaceLink(from).handleSignal(signal);
  }

  /**
   * Replaces a connection that the SFU has ended, identified by `name`. A connection that ended early is replaced after
   * a delay.
   */
  #switchLost(name: string | undefined): void {
    const link = this.#links.get(SWITCH);
    if (!link || !name || link.isOther(name)) return;
    const wait = performance.now() - link.createdAt < SETTLED ? RECONNECT_AFTER : 0;
    setTimeout(() => this.#links.get(SWITCH) === link && this.#replaceLink(SWITCH), wait);
  }

  #trackReceived(link: Link, sent: Sent): void {
    const { track, stream, owner: participant, screen } = sent;
    const received = this.#received.get(link) ?? [];
    this.#received.set(link, received);
    received.push(sent);
    track.addEventListener('ended', () => received.splice(0, received.length, ...received.filter((sent) => sent.track !== track)));
    stream.addEventListener('removetrack', ({ track: gone }) => {
      received.splice(0, received.length, ...received.filter((sent) => sent.track !== gone));
      void this.#updateTracks();
    });
    this.#applyMutes();
    this.#displayed.add(link, { participant, track, stream, ...(screen && { screen }) });
    void this.#updateTracks();
  }

  /**
   * Stops the sending and playing of tracks that a host has muted. The server itself can mute only what it forwards.
   */
  #applyMutes(leaving?: MediaStream): void {
    if (this.#ended) return;
    const { id, state } = this;
    const own = [this.#stream, leaving].flatMap((stream) => stream?.getTracks() ?? []).filter(({ kind }) => isMuted(state, id, kind));
    // A track from a participant that does not forward belongs to that participant, whatever its signals say.
    const others = [...this.#received].flatMap(([{ to }, sent]) =>
      sent.filter(({ track: { kind }, owner }) => isMuted(state, owner, kind) || (to !== state.hub && state.topology !== 'tree' && isMuted(state, to, kind))),
    );
    this.#mutedTracks.setMuted([...own, ...others.map(({ track }) => track)]);
  }

  /** Updates the active speaker. A mixed track does not identify its speakers, so it is ignored. */
  #detectSpeaker(): void {
    const levels = new Map<string, number>();
    for (const [link, sent] of this.#received) {
      for (const { track, owner } of sent) if (track.kind === 'audio' && owner !== MIX && !this.#mutedTracks.has(track)) levels.set(owner, Math.max(levels.get(owner) ?? 0, link.levelOf(track)));
    }
    if (this.#activeSpeaker.update(levels, performance.now())) this.#emit('speaker', this.#activeSpeaker.speaker);
  }

  /**
   * Returns the tracks to send on a link: own tracks, and on a hub those of all other participants. In a tree, the
   * tracks of the root are forwarded from parents to children.
   */
  #tracksFor(link: Link): Sent[] {
    const { topology, hub, parents = {}, participants } = this.state;
    const me = participants.find(({ id }) => id === this.id);
    const stream = me?.role === 'viewer' ? undefined : this.#stream;
    const screen = me?.role === 'viewer' ? undefined : this.#screen;
    const own: Sent[] = (stream?.getTracks() ?? []).map((track) => ({ track, stream: stream!, owner: this.id }));
    own.push(...(screen?.getTracks() ?? []).map((track) => ({ track, stream: screen!, owner: this.id, screen: true as const })));
    if (topology === 'tree') {
      const parent = parents[this.id];
      if (parents[link.to] !== this.id) return [];
      return parent === undefined ? own : (this.#received.get(this.#links.get(parent)!) ?? []);
    }
    if (topology !== 'star' || hub !== this.id) return own;
    return [...own, ...[...this.#received].flatMap(([from, sent]) => (from === link ? [] : sent))];
  }

  async #updateTracks(): Promise<void> {
    await Promise.all([...this.#links.values()].map((link) => link.setTracks(this.#tracksFor(link))));
  }

  #measure(meters: ReadonlyMap<Link, Meter>, age?: number): Promise<Quality> {
    return measure(this.#links.values(), meters, { calls: this.#calls, calls_failed: this.#callsFailed }, age);
  }

  async #report(): Promise<void> {
    const server = this.#server;
    try {
      const { links, ...rest } = await this.#measure(this.#meters.reported);
      let room = STREAMS_MAX;
      const reported = links.map((link) => {
        const streams = link.streams.slice(0, room);
        room -= streams.length;
        return { ...link, streams };
      });
      await server.report({ ...rest, muted: this.#muted, hand: this.#hand, screen: !!this.#screen, links: reported, ...this.#flow.reportFields?.() });
    } catch (thrown) {
      const error = toError(thrown);
      // After a lost connection, the next report may arrive.
      if (server !== this.#server) return;
      if (error.reason === 'not_found') void this.#rejoin(error);
      else if (error.code === 'auth') this.#end(error);
    }
  }

  /**
   * Joins again, as a new participant in the same topology, after the server has forgotten this participant or the
   * room.
   */
  async #rejoin(cause: MillraceError): Promise<void> {
    if (this.#ended || this.#unsent) return;
    const unsent: unknown[] = (this.#unsent = []);
    let topology: Topology | undefined = this.state.auto ? 'auto' : this.state.topology;
    let error = cause;
    for (let attempt = performance.now() - this.#rejoinedAt < SETTLED ? 4 : 0; ; attempt++) {
      // The other participants rejoin at the same time, so the delay is random.
      await sleep(pauseOf(error, attempt, { min: REJOIN_MIN, max: REJOIN_MAX }));
      if (this.#ended) return;
      const server = this.#serverOf();
      const joined = await server.join(topology).catch((thrown: unknown) => toError(thrown));
      if (!(joined instanceof Error)) return this.#restart(server, joined, cause, unsent);
      // Another participant has created the room with a different topology.
      if (joined.reason === 'conflict') topology = undefined;
      else if (!joined.retryable) return this.#end(joined);
      error = joined;
    }
  }

  #restart(server: Server, joined: Joined, cause: MillraceError, unsent: readonly unknown[]): void {
    if (this.#ended) return void server.leave().catch(() => {});
    const { id: was, state } = this;
    this.#clear();
    for (const one of state.participants) if (one.id !== was) this.#emit('left', one);
    this.#unsent = undefined;
    this.#rejoinedAt = performance.now();
    this.#begin(server, joined);
    this.#emit('rejoined', { id: this.id, was, cause });
    this.#subscribe(joined);
    if (this.#muted || this.#hand || this.#screen) void this.#report();
    unsent.forEach((data) => this.send(data));
  }

  /** Releases everything that belongs to the current membership. */
  #clear(): void {
    clearTimeout(this.#overlap);
    this.#flow.end();
    this.#dataPath.end();
    this.#displayed.clear();
    for (const link of this.#links.values()) link.close();
    for (const map of [this.#links, ...Object.values(this.#meters), this.#early, this.#received]) map.clear();
    this.#mutedTracks.setMuted([]);
    // The chat continues from its position after a rejoin.
    for (const subscription of [...this.#subscriptions]) if (this.#ended || subscription.channel !== this.#channel('chat')) void subscription.close();
  }

  #end(cause: MillraceError | undefined): void {
    if (this.#ended) return;
    this.#ended = true;
    this.#timers.forEach(clearInterval);
    clearInterval(this.#speakerTimer);
    this.#video?.end();
    this.#clear();
    this.#over.abort();
    if (this.#url !== undefined) void this.#client.close();
    this.#emit('end', cause);
  }
}
