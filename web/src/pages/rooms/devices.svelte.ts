/**
 * Camera and microphone: permission, choice, on and off. Without devices, a participant joins with chat and data only.
 */

import { reasonOf } from '../../lib/format';
import { keptChoice } from './choice';

export type Kind = 'camera' | 'microphone';
type On = 'off' | 'asking' | 'on';

const CONSTRAINTS = {
  microphone: { echoCancellation: true, noiseSuppression: true, autoGainControl: true },
} as const satisfies Partial<Record<Kind, MediaTrackConstraints>>;

/** Returns the constraints of a new track. Those of the camera are the choice of the user. */
function constraintsOf(kind: Kind): MediaTrackConstraints {
  if (kind === 'microphone') return CONSTRAINTS.microphone;
  const { width, height, frameRate } = keptChoice();
  return { width: { ideal: width }, height: { ideal: height }, frameRate: { ideal: frameRate } };
}

/** Devices of this tab, kept over a reload of the page. */
const KEPT = 'millrace-devices';
interface Kept {
  readonly on: readonly Kind[];
  readonly chosen: Readonly<Partial<Record<Kind, string>>>;
}

export class Devices {
  /** The same stream object during the whole call. Its tracks change. */
  readonly stream = new MediaStream();
  camera = $state.raw<On>('off');
  microphone = $state.raw<On>('off');
  trouble = $state.raw<Readonly<Partial<Record<Kind, string>>>>({});
  list = $state.raw<readonly MediaDeviceInfo[]>([]);
  chosen = $state.raw<Readonly<Partial<Record<Kind, string>>>>({});
  /** Id of the speaker; empty: the default one. */
  speaker = $state('');
  /** Increases when the tracks of the stream change. */
  version = $state(0);
  /**
   * Name of the participant during a call. A still image with its initials replaces a camera that is off, so that no
   * negotiation is needed.
   */
  #standInFor: string | undefined;
  #changed: () => void = () => {};
  readonly #over = new AbortController();

  constructor() {
    this.#media?.addEventListener('devicechange', () => void this.#relist(), { signal: this.#over.signal });
  }

  /**
   * Requests both devices with one prompt. If that fails, requests each separately, so that one missing device does not
   * block the other.
   */
  async start(): Promise<void> {
    this.camera = this.microphone = 'asking';
    try {
      this.#take(await this.#ask({ camera: true, microphone: true }));
    } catch {
      await this.#turnOn('camera');
      await this.#turnOn('microphone');
    }
    this.camera = this.#track('camera') ? 'on' : 'off';
    this.microphone = this.#track('microphone') ? 'on' : 'off';
    await this.#relist();
  }

  /** Starts the devices that were on before the page was reloaded. */
  async restart(): Promise<void> {
    const { on = [], chosen = {} } = JSON.parse(sessionStorage.getItem(KEPT) ?? '{}') as Partial<Kept>;
    this.chosen = chosen;
    await Promise.all(on.map((kind) => this.set(kind, true)));
  }

  /** Keeps for {@link Devices.restart} which devices are on, and stops them. */
  keep(): void {
    const on = (['camera', 'microphone'] as const).filter((kind) => this[kind] === 'on');
    sessionStorage.setItem(KEPT, JSON.stringify({ on, chosen: this.chosen } satisfies Kept));
    this.stop();
  }

  async set(kind: Kind, on: boolean): Promise<void> {
    if (this[kind] === 'asking') return;
    const track = this.#track(kind);
    if (kind === 'microphone' && track) {
      // Only mutes the track, so that it is available again at once.
      track.enabled = on;
      this.microphone = on ? 'on' : 'off';
    } else if (on) {
      this[kind] = 'asking';
      this[kind] = (await this.#turnOn(kind)) ? 'on' : 'off';
      await this.#relist();
    } else {
      this.#swap(kind, undefined);
      this[kind] = 'off';
    }
    this.#changed();
  }

  async choose(kind: Kind, id: string): Promise<void> {
    this.chosen = { ...this.chosen, [kind]: id };
    if (this[kind] !== 'on') return;
    this[kind] = (await this.#turnOn(kind)) ? 'on' : 'off';
    this.#changed();
  }

  of(kind: Kind): readonly MediaDeviceInfo[] {
    const wanted = kind === 'camera' ? 'videoinput' : 'audioinput';
    // Without permission, devices have neither names nor ids.
    return this.list.filter((one) => one.kind === wanted && one.deviceId);
  }

  /** Speakers, in browsers where a page can choose one. */
  get speakers(): readonly MediaDeviceInfo[] {
    return 'setSinkId' in HTMLMediaElement.prototype ? this.list.filter((one) => one.kind === 'audiooutput' && one.deviceId && one.deviceId !== 'default') : [];
  }

  /** Starts to report changes of the stream, and enables the still image. */
  joined(name: string, changed: () => void): void {
    this.#standInFor = name;
    this.#changed = changed;
  }

  stop(): void {
    this.#over.abort();
    for (const track of this.stream.getTracks()) track.stop();
  }

  get #media(): MediaDevices | undefined {
    // Undefined on pages without TLS, although the type says otherwise.
    return navigator.mediaDevices as MediaDevices | undefined;
  }

  #track(kind: Kind): MediaStreamTrack | undefined {
    const tracks = kind === 'camera' ? this.stream.getVideoTracks() : this.stream.getAudioTracks();
    return tracks.find((track) => track.readyState === 'live' && !standIns.has(track));
  }

  async #turnOn(kind: Kind): Promise<boolean> {
    try {
      this.#take(await this.#ask({ [kind]: true }));
      return true;
    } catch (error) {
      this.trouble = { ...this.trouble, [kind]: inWords(kind, error) };
      return false;
    }
  }

  #ask(what: Partial<Record<Kind, boolean>>): Promise<MediaStream> {
    if (!this.#media) return Promise.reject(new DOMException('no TLS', 'SecurityError'));
    const want = (kind: Kind): MediaTrackConstraints | false => {
      const id = this.chosen[kind];
      return what[kind] ? { ...constraintsOf(kind), ...(id && { deviceId: { exact: id } }) } : false;
    };
    return this.#media.getUserMedia({ video: want('camera'), audio: want('microphone') });
  }

  #take(got: MediaStream): void {
    for (const track of got.getTracks()) {
      const kind = track.kind === 'video' ? 'camera' : 'microphone';
      this.#swap(kind, track);
      const { [kind]: _, ...rest } = this.trouble;
      this.trouble = rest;
      const id = track.getSettings().deviceId;
      if (id) this.chosen = { ...this.chosen, [kind]: id };
      track.addEventListener('ended', () => {
        if (!this.stream.getTracks().includes(track)) return;
        this.trouble = { ...this.trouble, [kind]: `The ${kind} was unplugged, or its permission was removed. Turn it on to try again.` };
        this.#swap(kind, undefined);
        this[kind] = 'off';
        this.#changed();
      });
    }
  }

  #swap(kind: Kind, track: MediaStreamTrack | undefined): void {
    const old = kind === 'camera' ? this.stream.getVideoTracks() : this.stream.getAudioTracks();
    const next = track ?? (kind === 'camera' && this.#standInFor !== undefined && old.length ? standIn(this.#standInFor) : undefined);
    for (const one of old) {
      this.stream.removeTrack(one);
      one.stop();
    }
    if (next) this.stream.addTrack(next);
    this.version++;
  }

  async #relist(): Promise<void> {
    this.list = (await this.#media?.enumerateDevices().catch(() => [])) ?? [];
  }
}

const standIns = new WeakSet<MediaStreamTrack>();

/** Returns a video track that shows the initials of a name. */
function standIn(name: string): MediaStreamTrack {
  const canvas = Object.assign(document.createElement('canvas'), { width: 320, height: 180 });
  const pen = canvas.getContext('2d')!;
  const draw = (): void => {
    pen.fillStyle = '#16363a';
    pen.fillRect(0, 0, canvas.width, canvas.height);
    pen.fillStyle = '#62d2d3';
    pen.font = '600 64px system-ui, sans-serif';
    pen.textAlign = 'center';
    pen.textBaseline = 'middle';
    pen.fillText(initials(name), canvas.width / 2, canvas.height / 2);
  };
  draw();
  const track = canvas.captureStream(2).getVideoTracks()[0]!;
  standIns.add(track);
  // The canvas sends a frame only when it is drawn.
  const timer = setInterval(() => (track.readyState === 'live' ? draw() : clearInterval(timer)), 500);
  return track;
}

export function initials(name: string): string {
  const words = name.trim().split(/\s+/).filter(Boolean);
  const letters = words.length > 1 ? [words[0]!, words.at(-1)!] : words;
  return letters.map((word) => [...word][0]!.toUpperCase()).join('') || '?';
}

function inWords(kind: Kind, error: unknown): string {
  switch (error instanceof DOMException ? error.name : '') {
    case 'SecurityError':
      return `The browser allows a ${kind} only on pages from HTTPS or localhost. Open this page with https://.`;
    case 'NotAllowedError':
      return `The browser blocks the ${kind}. Allow it in the site settings, beside the address of this page.`;
    case 'NotFoundError':
    case 'OverconstrainedError':
      return `No ${kind} was found. Connect one, then turn it on.`;
    case 'NotReadableError':
      return `Another program uses the ${kind}. Close that program, then turn the ${kind} on.`;
    default:
      return `The ${kind} could not be started: ${reasonOf(error)}. Turn it on to try again.`;
  }
}
