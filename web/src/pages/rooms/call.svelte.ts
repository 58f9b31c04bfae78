/** A call as the page shows it: participants, streams, chat, and measurements. */
import { millrace, type Client } from '@millrace/client';
import { joinRoom, MillraceError, type Participant, type Quality, type Room, type RoomState, type Topology, type VideoChoice, type VideoState } from '@millrace/client/room';
import { reasonOf } from '../../lib/format';
import { keepChoice, keptChoice } from './choice';
import type { Devices } from './devices.svelte';
import { MIX, neighbours } from '@millrace/client/room';
import { SWITCH } from './graph';
import { Samples } from '../ui/chart/samples';
import { pushQuality } from './figures';
import { RunUpload } from './records';
import { Run } from './run';
import { isReportPublication, fetchRoom, type Report, type SwitchView } from './view';
import { diagnose } from './diagnosis';

/** Interval of measurements, ms, and number of measurements used for the diagnosis. */
const MEASURE_EVERY = 2_000;
const SAMPLES = 5;
/** Number of bit rates drawn per stream: two minutes. */
const RATES = 60;
/** Age up to which reports of the SFU are kept, to count changes, ms. */
const SWITCH_WINDOW = 60_000;
const CHAT_MAX = 500;
/** Time after which a missing link is reported, ms. */
const MISSED_AFTER = 5_000;

export interface ChatMessage {
  readonly from: string;
  readonly name: string;
  readonly text: string;
  readonly at: number;
  readonly mine: boolean;
  readonly id: string;
}

export interface CallOptions {
  readonly name: string;
  readonly topology?: Topology;
  readonly token?: string;
  /** Refuses a room with another topology. */
  readonly isStrict?: boolean;
  /** Uses only the TURN relay, in any topology. */
  readonly relay?: boolean;
  /** Uploads the statistics under this name. */
  readonly run?: string;
  /** Interval of measurements, ms. */
  readonly everyMs?: number;
}

export class Call {
  readonly room: Room;
  readonly run: Run;
  readonly devices: Devices;
  state = $state.raw() as RoomState;
  streams = $state.raw<ReadonlyMap<string, MediaStream>>(new Map());
  messages = $state.raw<readonly ChatMessage[]>([]);
  unread = $state(0);
  speaker = $state<string>();
  chatOpen = false;
  /** Text for screen readers: who has joined or left. */
  announcement = $state('');
  quality = $state.raw<Quality | undefined>();
  /** Last report of each participant. Own measurements are newer. */
  /** Size and frame rate of the own video: as the user has chosen them, and as they are now. */
  choice = $state.raw<VideoChoice>(keptChoice());
  video = $state.raw<VideoState | undefined>();
  /** Figures over time. */
  readonly samples = new Samples();
  sampled = $state(0);
  readonly #upload: RunUpload | undefined;
  uploaded = $state(0);
  uploadTrouble = $state('');
  reports = $state.raw<ReadonlyMap<string, Report>>(new Map());
  /** Last report of the SFU about each participant. */
  views = $state.raw<ReadonlyMap<string, SwitchView>>(new Map());
  rates = $state.raw<ReadonlyMap<string, readonly number[]>>(new Map());
  ended = $state.raw<{ readonly cause: MillraceError | undefined } | undefined>();
  readonly #client: Client;
  #screen: MediaStream | undefined;
  readonly #names = new Map<string, string>();
  readonly #stop: (() => void)[] = [];
  #samples: { readonly at: number; readonly quality: Quality }[] = [];
  #ownViews: { readonly at: number; readonly view: SwitchView }[] = [];
  #missingSince = new Map<string, number>();
  missing = $state.raw<readonly string[]>([]);

  private constructor(room: Room, client: Client, name: string, { run, everyMs = MEASURE_EVERY }: CallOptions, devices: Devices) {
    this.room = room;
    this.state = room.state;
    this.#client = client;
    this.devices = devices;
    this.run = new Run(name, room.id);
    this.#subscribe(name);
    devices.joined(this.me?.name ?? '', () => {
      void room.replaceStream(devices.stream);
      room.setMuted(devices.microphone === 'off');
    });
    if (devices.microphone === 'off') room.setMuted(true);
    this.#upload = run ? new RunUpload(client, run, { room: name, participant: room.id, name: this.me?.name ?? '' }) : undefined;
    void this.#uploading(this.#upload?.begin());
    const timer = setInterval(() => void this.#measure(), everyMs);
    this.#stop.push(() => clearInterval(timer));
  }

  /**
   * Joins a room. If another participant has created the room with a different topology, that topology is used. Throws
   * the errors of joining.
   */
  static async join(room: string, options: CallOptions, devices: Devices): Promise<Call> {
    const { token, topology, name, isStrict = false, relay = false } = options;
    const rights = token ? { token } : {};
    const client = millrace(location.origin, rights);
    const join = (wanted: { topology?: Topology }) => joinRoom(client, room, { url: location.origin, ...rights, ...wanted, name, stream: devices.stream, resume: true, chatHistory: true, ...(relay && { rtc: { iceTransportPolicy: 'relay' } }) });
    try {
      const joined = await join(topology ? { topology } : {}).catch((error: unknown) => {
        if (!topology || isStrict || !(error instanceof MillraceError) || error.reason !== 'conflict') throw error;
        return join({});
      });
      const call = new Call(joined, client, room, options, devices);
      void fetchRoom(room, token).then((view) => view && call.#applyReports(view.reports, view.switch), () => {});
      return call;
    } catch (error) {
      void client.close();
      throw error;
    }
  }

  get me(): Participant | undefined {
    return this.state.participants.find(({ id }) => id === this.room.id);
  }

  get others(): readonly Participant[] {
    return this.state.participants.filter(({ id }) => id !== this.room.id);
  }

  /** Last figures of all participants. Own figures come from the last measurement. */
  get figures(): ReadonlyMap<string, Report> {
    return this.quality ? new Map([...this.reports, [this.room.id, this.quality]]) : this.reports;
  }

  get reasons() {
    const samples = this.#samples;
    return diagnose({
      me: this.room.id,
      state: this.state,
      samples: this.quality ? samples.map(({ quality }) => quality) : [],
      overMs: samples.length ? samples.at(-1)!.at - samples[0]!.at + MEASURE_EVERY : 0,
      views: this.views,
      viewBefore: this.#ownViews[0]?.view,
      reports: this.reports,
      missing: this.missing,
      nameOf: this.nameOf,
    });
  }

  readonly nameOf = (id: string): string => (id === this.room.id ? 'You' : id === SWITCH ? 'Server' : id === MIX ? 'everyone' : this.#names.get(id) || 'Participant');

  /** Name over a cell of the video of all: of a participant, also of one who has just left, or of a WHIP publisher. */
  readonly cellName = (id: string): string => (id === this.room.id ? `${this.me?.name || 'Guest'} (you)` : (this.#names.get(id) ?? id));

  async sendChat(text: string): Promise<void> {
    await this.room.say(text);
  }

  /** Shares a screen that the user selects, or ends that. Returns why no screen is shared. */
  async shareScreen(share: boolean): Promise<string> {
    for (const track of this.#screen?.getTracks() ?? []) track.stop();
    this.#screen = undefined;
    if (share) {
      try {
        const screen = (this.#screen = await navigator.mediaDevices.getDisplayMedia({ video: { frameRate: { max: 15 } }, audio: true }));
        // Text must stay sharp; it may move slowly.
        for (const track of screen.getVideoTracks()) track.contentHint = 'detail';
        // The browser has a button of its own that ends the share.
        screen.getVideoTracks()[0]?.addEventListener('ended', () => this.#screen === screen && void this.shareScreen(false));
      } catch (error) {
        if (error instanceof DOMException && error.name === 'NotAllowedError') return '';
        return `The screen is not shared: ${reasonOf(error)}. Try again.`;
      }
    }
    await this.room.shareScreen(this.#screen);
    return '';
  }

  chooseVideo(change: Partial<VideoChoice>): void {
    this.choice = { ...this.choice, ...change };
    keepChoice(this.choice);
    this.room.chooseVideo(this.choice);
  }

  markRead(): void {
    this.unread = 0;
  }

  /** Uploads the last rows. */
  async finishUpload(): Promise<void> {
    await this.#uploading(this.#upload?.flush());
  }

  async #uploading(work: Promise<void> | undefined): Promise<void> {
    try {
      await work;
      this.uploaded = this.#upload?.uploaded ?? 0;
      this.uploadTrouble = '';
    } catch (error) {
      this.uploadTrouble = `The statistics are not uploaded: ${reasonOf(error)}. This page keeps them and tries again.`;
    }
  }

  async leave(): Promise<void> {
    await this.room.leave();
  }

  #subscribe(name: string): void {
    const { room } = this;
    const nameParticipant = (one: Participant): void => {
      // A number distinguishes participants of the same name, in the order of joining.
      const others = [...this.#names].filter(([id, name]) => id !== one.id && name.replace(/ \(\d+\)$/, '') === (one.name || 'Guest')).length;
      this.#names.set(one.id, (one.name || 'Guest') + (others ? ` (${others + 1})` : ''));
    };
    const follow = (state: RoomState): void => {
      this.state = state;
      for (const one of state.participants) if (!this.#names.has(one.id)) nameParticipant(one);
    };
    room.on('state', follow);
    // Participants who were present before are not announced.
    follow(room.state);
    room.on('participant', ({ id }) => (this.announcement = `${this.nameOf(id)} has joined`));
    room.on('left', ({ id }) => {
      this.announcement = `${this.nameOf(id)} has left`;
      this.streams = new Map([...this.streams].filter(([of]) => of !== id && of !== screenOf(id)));
      this.reports = new Map([...this.reports].filter(([of]) => of !== id));
    });
    room.on('track', ({ participant, stream, screen }) => (this.streams = new Map(this.streams).set(screen ? screenOf(participant) : participant, stream)));
    room.on('video', (video) => (this.video = video));
    room.chooseVideo(this.choice);
    room.on('speaker', (id) => (this.speaker = id));
    const began = Date.now();
    room.on('chat', ({ from, text, position, at, name }) => {
      const mine = from === room.id;
      // A sender of an earlier message may have left.
      const author = this.#names.has(from) || !name ? this.nameOf(from) : name;
      this.messages = [...this.messages, { from, name: author, text, at, mine, id: position }].slice(-CHAT_MAX);
      if (!mine && !this.chatOpen && at >= began) this.unread++;
    });
    room.on('end', (cause) => {
      this.#stop.forEach((stop) => stop());
      for (const track of this.#screen?.getTracks() ?? []) track.stop();
      void this.#client.close();
      this.ended = { cause };
    });
    const published = this.#client.subscribe(`rooms/${name}/reports`);
    published.on(
      ({ data }) => {
        if (isReportPublication(data)) this.#applyReports({ [data.participant]: data.report }, data.switch ? [data.switch] : []);
      },
      // Without permission to read the reports, only own figures are shown.
      () => {},
    );
    this.#stop.push(() => void published.close());
  }

  #applyReports(reports: Readonly<Record<string, Report>>, views: readonly SwitchView[]): void {
    this.reports = new Map([...this.reports, ...Object.entries(reports)]);
    this.views = new Map([...this.views, ...views.map((view) => [view.name, view] as const)]);
    const own = views.find(({ name }) => name === this.room.id);
    const at = Date.now();
    if (own) this.#ownViews = [...this.#ownViews.filter((one) => at - one.at < SWITCH_WINDOW), { at, view: own }];
  }

  async #measure(): Promise<void> {
    const quality = await this.room.quality();
    if (this.ended) return;
    const now = performance.now();
    const rows = this.run.add(quality, this.views.get(this.room.id), this.nameOf);
    if (this.#upload) void this.#uploading(this.#upload.add(rows));
    pushQuality(this.samples, Date.now(), quality);
    this.sampled++;
    this.#samples = [...this.#samples, { at: now, quality }].slice(-SAMPLES);
    const linked = new Set(quality.links.map(({ to }) => to));
    const wanted = new Set(neighbours(this.state, this.room.id).filter((id) => !linked.has(id)));
    for (const id of this.#missingSince.keys()) if (!wanted.has(id)) this.#missingSince.delete(id);
    for (const id of wanted) if (!this.#missingSince.has(id)) this.#missingSince.set(id, now);
    this.missing = [...this.#missingSince].flatMap(([id, since]) => (now - since > MISSED_AFTER ? [id] : []));
    const rates = quality.links.flatMap((link) => link.streams.map((stream) => [keyOf(link.to, stream), [...(this.rates.get(keyOf(link.to, stream)) ?? []), stream.rate_kbps].slice(-RATES)] as const));
    this.rates = new Map(rates);
    this.quality = quality;
  }
}

/** Key of the shared screen of a participant, among the streams. */
export const screenOf = (participant: string): string => `${participant} screen`;

/** Returns a key that identifies a stream. */
export const keyOf = (link: string, { direction, from, kind, layer }: { direction: string; from: string; kind: string; layer?: string }): string =>
  [link, direction, from, kind, layer ?? ''].join(' ');
