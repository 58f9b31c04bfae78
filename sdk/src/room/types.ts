// The public types of a room. What they mean on the wire is in docs/rooms.md.
import type { MillraceError } from '../errors.js';
import type { ConnectOptions } from '../types.js';

export type Topology = 'p2p' | 'mesh' | 'star' | 'switch' | 'mixer' | 'relay' | 'tree' | 'auto';

export interface Participant {
  /** Sorts by when they joined. */
  readonly id: string;
  readonly name: string;
  readonly role: 'member' | 'hub' | 'viewer';
  readonly since_ms: number;
  /** As it says itself. */
  readonly muted?: boolean;
  /** What others neither hear nor see of it, because somebody who may has said so. */
  readonly muted_by_host?: readonly ('audio' | 'video')[];
}

export interface RoomState {
  readonly version: number;
  /** How participants are connected now; of `auto` that which holds. */
  readonly topology: Exclude<Topology, 'auto'>;
  readonly auto?: boolean;
  /** The participant who joined first, viewers last. The host moderates where no token is needed. */
  readonly host?: string;
  /** Of a star. */
  readonly hub?: string;
  /** Of a tree: everybody's parent but the root's. */
  readonly parents?: Readonly<Record<string, string>>;
  readonly participants: readonly Participant[];
}

export interface JoinOptions extends ConnectOptions {
  /** Where the server is, when a client is given instead of its URL. Default: where the page is from. */
  readonly url?: string | URL;
  readonly name?: string;
  /** Of a room that begins. Default `mesh`. */
  readonly topology?: Topology;
  readonly role?: 'member' | 'hub' | 'viewer';
  /** What others see and hear. */
  readonly stream?: MediaStream;
  /** Over those that the server names. `iceTransportPolicy: 'relay'` is what the topology `relay` sets. */
  readonly rtc?: RTCConfiguration;
}

/** What somebody sent with `send`: of each sender in order and once; in a tree of all senders. */
export interface Data {
  readonly from: string;
  readonly data: unknown;
}

export interface Said {
  readonly from: string;
  readonly text: string;
  readonly position: string;
}

export interface Seen {
  /** Whose it is. In a room with a mixer all sound comes as one track, whose participant is `mix`, in a stream of its own. */
  readonly participant: string;
  readonly track: MediaStreamTrack;
  readonly stream: MediaStream;
}

export interface RoomEvents {
  /** Somebody is there, those who were before you, too. */
  participant: Participant;
  left: Participant;
  track: Seen;
  data: Data;
  /** So many messages of somebody are lost: nobody has them any more. */
  gap: { readonly from: string; readonly count: number };
  chat: Said;
  state: RoomState;
  /** A link to somebody is connected, or is no longer. */
  link: { readonly to: string; readonly state: RTCPeerConnectionState };
  /** Who of the others speaks now; nobody after two seconds without a word. Not known in a room with a mixer. */
  speaker: string | undefined;
  /** The server had forgotten you, or the whole room, as after a restart: you are in it again, under another id, and so are the others soon. */
  rejoined: { readonly id: string; readonly was: string; readonly cause: MillraceError };
  /** It is over: you have left, or the server says so. */
  end: MillraceError | undefined;
}

/** What was measured of one stream since the last time, by `getStats`. */
export interface StreamQuality {
  /** Whose it is; `mix`: all others', as one. */
  readonly from: string;
  readonly direction: 'in' | 'out';
  readonly kind: 'audio' | 'video';
  /** Which of several that are sent of one picture. */
  readonly layer?: string;
  readonly rate_kbps: number;
  readonly rtt_ms: number;
  /** One way, of one that comes in: only where the clocks of both agree. */
  readonly owd_ms?: number;
  /** The share of packets that the way has lost; of one that goes out, as the other says. */
  readonly loss: number;
  /** The share that nothing has repaired, either; what was sent again without need hides some. */
  readonly residual_loss?: number;
  readonly fps?: number;
  readonly width?: number;
  readonly height?: number;
  readonly freezes?: number;
  readonly frozen_ms?: number;
  /** Why the picture is sent smaller, or less often, than it could be. */
  readonly limited_by?: 'none' | 'cpu' | 'bandwidth' | 'other';
  readonly codec: string;
}

/** What was measured of one link since the last time, by `getStats`. */
export interface LinkQuality {
  readonly to: string;
  /** Of pictures and sound that came, and were sent. */
  readonly rate_kbps: number;
  readonly sent_kbps: number;
  /** Of data that came, and were sent. */
  readonly data_kbps: number;
  readonly data_sent_kbps: number;
  readonly rtt_ms: number;
  readonly loss: number;
  readonly residual_loss: number;
  readonly fps: number;
  /** All that were decoded so far. */
  readonly frames: number;
  readonly frozen_ms: number;
  /** The way: `host`, `srflx`, `prflx` or `relay`. */
  readonly kind: string;
  /** From when the link was made to the other's first picture or sound. */
  readonly setup_ms?: number;
  readonly streams: readonly StreamQuality[];
}

export interface Quality {
  readonly uplink_kbps: number;
  readonly rtt_ms: number;
  /** Encoding and decoding of pictures, in cores: a browser tells no more of its CPU. */
  readonly codec_cpu: number;
  /** Links that were made so far, and those of them that were not connected within 15 s. */
  readonly calls: number;
  readonly calls_failed: number;
  readonly links: readonly LinkQuality[];
}

export interface Room {
  /** Yours; another one after `rejoined`. */
  readonly id: string;
  readonly state: RoomState;
  /** Whether you may mute others: by a token with `publish` on `rooms/{room}/moderate`, or as host where none is needed. */
  readonly moderates: boolean;
  /** Returns the way out. */
  on<E extends keyof RoomEvents>(event: E, fn: (value: RoomEvents[E]) => void): () => void;
  /** To everybody else in the room, by the links of its topology; what these do not reach goes by the channel `rooms/{room}/data`. JSON. */
  send(data: unknown): void;
  /** In the room's chat, which any client reads on any transport. */
  say(text: string): Promise<void>;
  /** Others see this instead, on the same links. */
  replaceStream(stream: MediaStream | undefined): Promise<void>;
  /** Your own microphone. While a host has muted you, this says how it is afterwards. */
  setMuted(muted: boolean): void;
  /**
   * Mutes somebody's sound, or picture, for everybody (true), or takes that back (false); what is not named stays as it is. The state says so.
   * Works only if `moderates`. Throws a MillraceError; its `reason` is `forbidden` otherwise, and `not_found` if no
   * participant has this id.
   */
  mute(id: string, what: { readonly audio?: boolean; readonly video?: boolean }): Promise<void>;
  quality(): Promise<Quality>;
  leave(): Promise<void>;
}
