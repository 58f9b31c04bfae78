// The public types of a room. docs/reference/rooms.md describes what they mean on the wire.
import type { MillraceError } from '../errors.js';
import type { ConnectOptions } from '../types.js';

export type Topology = 'p2p' | 'mesh' | 'star' | 'switch' | 'mixer' | 'relay' | 'tree' | 'auto';

export interface Participant {
  /** Ids sort by the time of joining. */
  readonly id: string;
  readonly name: string;
  readonly role: 'member' | 'hub' | 'viewer';
  readonly since_ms: number;
  /** Whether the microphone is muted, as reported by the participant. */
  readonly muted?: boolean;
  /** Media of this participant that a moderator has muted for all. */
  readonly muted_by_host?: readonly ('audio' | 'video')[];
  /** Whether the participant shares its screen. */
  readonly screen?: true;
  /** Present while the hand is raised. Lower numbers were raised earlier. */
  readonly hand?: number;
  /** Whether the page of this participant reloads. The server holds the seat for 15 s. */
  readonly away?: true;
  /** Number of reloads so far. */
  readonly resumed?: number;
}

/** Layout of the video of all, in a room with a mixer and `rooms.mixer_video`: the cell of each participant. */
export interface CompositeLayout {
  /** Size of the video in pixels. */
  readonly width: number;
  readonly height: number;
  readonly cells: readonly CompositeCell[];
}

/** Part of the video of all, in pixels from its left upper corner. */
export interface CompositeCell {
  /** Id of the participant, or name of the WHIP publisher. */
  readonly participant: string;
  readonly x: number;
  readonly y: number;
  readonly width: number;
  readonly height: number;
}

export interface RoomState {
  readonly version: number;
  /** Current topology. With `auto`, the topology in use. */
  readonly topology: Exclude<Topology, 'auto'>;
  readonly auto?: boolean;
  /** The participant who joined first, viewers last. The host moderates if no token is required. */
  readonly host?: string;
  /** Whether a moderator has locked the room. A locked room refuses further participants. */
  readonly locked?: true;
  /** Ids of the last participants that a moderator has removed. */
  readonly removed?: readonly string[];
  /** The hub of a star. */
  readonly hub?: string;
  /** In a tree: the parent of each participant but the root. */
  readonly parents?: Readonly<Record<string, string>>;
  /** Layout of the video of all. Its cells change with the frames, so they may name a participant who has left. */
  readonly composite?: CompositeLayout;
  readonly participants: readonly Participant[];
}

export interface JoinOptions extends ConnectOptions {
  /** The server's URL, if a client is given instead of a URL. Default: the origin of the page. */
  readonly url?: string | URL;
  readonly name?: string;
  /** Topology of a new room. Default `mesh`. */
  readonly topology?: Topology;
  readonly role?: 'member' | 'hub' | 'viewer';
  /** Video and audio that others receive. */
  readonly stream?: MediaStream;
  /**
   * A reload of the page keeps the seat: the same id, and what others know about this participant. Without it, a reload
   * leaves the room. `sessionStorage` keeps the seat until `leave`.
   */
  readonly resume?: boolean;
  /** Reports also the chat messages since the room was opened, as far as history has them. */
  readonly chatHistory?: boolean;
  /** Preferred codec of sent audio. Default: that of the browser, which is Opus. */
  readonly audioCodec?: 'opus' | 'pcmu' | 'pcma';
  /** Size and frame rate of the video of `stream`. Default: those of its tracks. */
  readonly video?: VideoChoice;
  /** Overrides the server's settings. The topology `relay` sets `iceTransportPolicy: 'relay'`. */
  readonly rtc?: RTCConfiguration;
}

/** Size in pixels and frame rate in frames per second of the own video, as the user has chosen them. */
export interface VideoChoice {
  readonly width: number;
  readonly height: number;
  readonly frameRate: number;
  /** Lowers both while the network or the processor is too slow, and raises them again afterwards. */
  readonly steer?: boolean;
}

/** Size in pixels and frame rate in frames per second that the own video has now. */
export interface VideoState {
  readonly width: number;
  readonly height: number;
  readonly frameRate: number;
  /** 0: as chosen. Higher levels are smaller. */
  readonly level: number;
  /** Why the level is not 0. */
  readonly limited_by?: 'bandwidth' | 'cpu';
}

/**
 * A message sent with `send`. Messages arrive once and in order per sender; in a tree, in one order for all senders.
 */
export interface Data {
  readonly from: string;
  readonly data: unknown;
}

export interface ChatMessage {
  readonly from: string;
  readonly text: string;
  readonly position: string;
  /** Name of the sender when it sent the message. */
  readonly name?: string;
  /** Time of the message by the server's clock, ms since 1970. */
  readonly at: number;
}

/** @deprecated Use `ChatMessage`. The next version removes this name. */
export type Said = ChatMessage;

export interface RemoteTrack {
  /**
   * Owner of the track. In a room with a mixer, all audio comes as one track of the participant `mix`, in its own
   * stream; with `rooms.mixer_video` on the server, all cameras come as one video track in the same stream.
   */
  readonly participant: string;
  readonly track: MediaStreamTrack;
  readonly stream: MediaStream;
  /** Whether the track is a shared screen. Its participant shares one as long as `screen` is in the state. */
  readonly screen?: true;
}

/** @deprecated Use `RemoteTrack`. The next version removes this name. */
export type Seen = RemoteTrack;

export interface RoomEvents {
  /** A participant is present. Reported also for participants who joined before you. */
  participant: Participant;
  left: Participant;
  track: RemoteTrack;
  data: Data;
  /** Messages of a sender were lost: no participant has them any more. */
  gap: { readonly from: string; readonly count: number };
  chat: ChatMessage;
  state: RoomState;
  /** The size and frame rate of the own video have changed, by `chooseVideo` or by statistics. */
  video: VideoState;
  /** The state of the link to another participant has changed. */
  link: { readonly to: string; readonly state: RTCPeerConnectionState };
  /**
   * The active speaker among the other participants; undefined after two seconds of silence. Not available in a room
   * with a mixer.
   */
  speaker: string | undefined;
  /**
   * You have joined again, under another id, after the server had forgotten you or the whole room, for example after a
   * restart. The other participants join again, too.
   */
  rejoined: { readonly id: string; readonly was: string; readonly cause: MillraceError };
  /** You have left, or the server has ended your membership. */
  end: MillraceError | undefined;
}

/** Statistics of one stream since the last reading, from `getStats`. */
export interface StreamQuality {
  /** Owner of the stream; `mix` is the mixed audio of all other participants. */
  readonly from: string;
  readonly direction: 'in' | 'out';
  readonly kind: 'audio' | 'video';
  /** Simulcast layer of the video. */
  readonly layer?: string;
  readonly rate_kbps: number;
  /** Round-trip time. Absent while the browser does not report it. */
  readonly rtt_ms?: number;
  /** One-way delay of a received stream, only if the clocks of both ends agree. */
  readonly owd_ms?: number;
  /**
   * Share of packets lost on the network path, 0 to 1. For a sent stream, as reported by the peer; absent before a
   * report.
   */
  readonly loss?: number;
  /** Share of packets lost and not repaired, 0 to 1. Unnecessary retransmissions hide a part of the loss. */
  readonly residual_loss?: number;
  readonly fps?: number;
  readonly width?: number;
  readonly height?: number;
  readonly freezes?: number;
  readonly frozen_ms?: number;
  /** Share of the sent packets that are retransmissions, 0 to 1. */
  readonly retransmitted?: number;
  /** Bit rate that the browser has assigned to the encoder. Absent in Firefox. */
  readonly target_kbps?: number;
  /** Why the video is sent at a lower resolution or frame rate than possible. Absent in Firefox. */
  readonly limited_by?: 'none' | 'cpu' | 'bandwidth' | 'other';
  readonly codec: string;
}

/** Statistics of one link since the last reading, from `getStats`. */
export interface LinkQuality {
  readonly to: string;
  /** Bit rate of received, and of sent, video and audio. */
  readonly rate_kbps: number;
  readonly sent_kbps: number;
  /** Bit rate of received, and of sent, data. */
  readonly data_kbps: number;
  readonly data_sent_kbps: number;
  /** Bandwidth estimate of the browser for this link. Absent where it reports none. */
  readonly uplink_kbps?: number;
  /** Round-trip time by ICE. Absent while the browser does not report it. */
  readonly rtt_ms?: number;
  readonly loss: number;
  readonly residual_loss: number;
  readonly fps: number;
  /** Frames decoded so far. */
  readonly frames: number;
  readonly frozen_ms: number;
  /** Type of the network path: `host`, `srflx`, `prflx` or `relay`. */
  readonly kind: string;
  /** Time from the creation of the link to the first video or audio of the peer. */
  readonly setup_ms?: number;
  readonly streams: readonly StreamQuality[];
}

export interface Quality {
  /** Bandwidth estimate of the browser. Absent where it reports none: in Firefox, and in Safari from 16.2 on. */
  readonly uplink_kbps?: number;
  /** Shortest round-trip time of all links. Absent while it is unknown. */
  readonly rtt_ms?: number;
  /** CPU time of encoding and decoding video, in cores. Browsers do not report other CPU use. */
  readonly codec_cpu: number;
  /** Links created so far, and links of these that were not connected within 15 s. */
  readonly calls: number;
  readonly calls_failed: number;
  readonly links: readonly LinkQuality[];
}

export interface Room {
  /** Your id. It changes with `rejoined`. */
  readonly id: string;
  readonly state: RoomState;
  /** Whether you are the participant that this page was before a reload (`resume`). */
  readonly resumed: boolean;
  /**
   * Whether you may mute and remove others, and lock the room: with a token with `publish` on `rooms/{room}/moderate`,
   * or as host where no token is required.
   */
  readonly moderates: boolean;
  /** Adds a listener. Returns a function that removes it. */
  on<E extends keyof RoomEvents>(event: E, fn: (value: RoomEvents[E]) => void): () => void;
  /**
   * Sends JSON to all other participants, by the links of the topology. Participants without a link receive it by the
   * channel `rooms/{room}/data`.
   */
  send(data: unknown): void;
  /** Publishes to the room's chat, which any client can read on any transport. */
  say(text: string): Promise<void>;
  /** Replaces the video and audio that others receive, on the same links. */
  replaceStream(stream: MediaStream | undefined): Promise<void>;
  /** Mutes or unmutes your microphone. While a host has muted you, the setting takes effect afterwards. */
  setMuted(muted: boolean): void;
  /**
   * Sends a screen (`getDisplayMedia`) beside your video; undefined ends that. In a tree, only the root sends one.
   */
  shareScreen(screen: MediaStream | undefined): Promise<void>;
  /** Changes the size and frame rate of your video. */
  chooseVideo(choice: VideoChoice): void;
  /** Raises or lowers your hand. */
  raiseHand(up: boolean): void;
  /** Removes a participant from the room. Requires `moderates`; errors as `mute`. */
  remove(id: string): Promise<void>;
  /** Locks the room, so that it refuses further participants, or unlocks it. Requires `moderates`; errors as `mute`. */
  lock(locked: boolean): Promise<void>;
  /**
   * Mutes the audio or video of a participant for all (true), or ends that (false). Omitted media stay as they are. The
   * state contains the result. Requires `moderates`. Throws a MillraceError otherwise, with `reason` `forbidden`, or
   * `not_found` if no participant has this id.
   */
  mute(id: string, media: { readonly audio?: boolean; readonly video?: boolean }): Promise<void>;
  quality(): Promise<Quality>;
  leave(): Promise<void>;
}
