/**
 * The server's view of a room: `GET /v1/rooms/{room}` and the channel `rooms/{room}/reports`
 * (docs/reference/protocol.md, "Rooms").
 */
import type { Quality, RoomState } from '@millrace/client/room';
import { UNKNOWN } from '../../lib/format';

/** The SFU's report about one participant. */
export interface SwitchView {
  readonly name: string;
  readonly is_connected: boolean;
  readonly estimate_kbps: number | null;
  readonly sends: readonly { readonly kind: 'audio' | 'video'; readonly layers_kbps: readonly number[] }[];
  readonly receives: readonly {
    readonly from: string;
    readonly kind: 'audio' | 'video';
    readonly layer: number | null;
    readonly layer_switches: number;
    /** Last change of the layer, with its reason. */
    readonly last_switch?: { readonly from: number; readonly to: number; readonly why: 'gone' | 'narrower' | 'wider' | 'floor'; readonly ago_ms: number } | null;
    readonly is_waiting: boolean;
    readonly packets: number;
    readonly bytes: number;
  }[];
}

export type Report = Partial<Quality> & { readonly muted?: boolean };

export interface RoomView extends RoomState {
  readonly reports: Readonly<Record<string, Report>>;
  readonly switch: readonly SwitchView[];
}

/** One publication on the channel of reports. */
export interface ReportPublication {
  readonly participant: string;
  readonly report: Report;
  readonly switch: SwitchView | null;
}

export const isReportPublication = (data: unknown): data is ReportPublication =>
  typeof data === 'object' && data !== null && 'participant' in data && typeof data.participant === 'string' && 'report' in data && typeof data.report === 'object' && data.report !== null;

/** The server refuses this page without a token, or with this token. */
export class AccessDenied extends Error {}

/** Returns the state of a room; `undefined` if the room is empty, so that the next participant creates it. */
export async function fetchRoom(room: string, token: string | undefined, signal?: AbortSignal): Promise<RoomView | undefined> {
  const response = await fetch(`/v1/rooms/${encodeURIComponent(room)}`, {
    cache: 'no-store',
    ...(token && { headers: { Authorization: `Bearer ${token}` } }),
    ...(signal && { signal }),
  });
  if (response.ok) {
    const view = (await response.json()) as Partial<RoomView>;
    return view.topology && (view as RoomView);
  }
  const { code, detail } = (await response.json().catch(() => ({}))) as { code?: string; detail?: string };
  if (code === 'unauthorized' || code === 'forbidden') throw new AccessDenied(detail);
  throw new Error(detail ?? `the server returned status ${response.status}`);
}

/** An open room, as `GET /v1/rooms` lists it. */
export interface RoomSummary {
  readonly room: string;
  readonly topology: string;
  readonly participants: number;
}

/** Lists the rooms that this page may see and that have participants. */
export async function fetchRooms(token: string | undefined): Promise<readonly RoomSummary[]> {
  const response = await fetch('/v1/rooms', { cache: 'no-store', ...(token && { headers: { Authorization: `Bearer ${token}` } }) });
  if (!response.ok) throw new Error(`the server returned status ${response.status}`);
  return ((await response.json()) as { rooms: RoomSummary[] }).rooms.filter(({ participants }) => participants > 0);
}

/** One level of a channel name (docs/reference/protocol.md, "Words"). */
export const ROOM_NAME = '[A-Za-z0-9_.:\\-]{1,64}';
export const isRoomName = (name: string): boolean => new RegExp(`^${ROOM_NAME}$`).test(name);

/** Returns the room name in the path `/rooms/{room}`; empty if there is none. */
export function roomOf(path: string): string {
  const name = /^\/rooms\/([^/]+)$/.exec(path)?.[1] ?? '';
  try {
    return decodeURIComponent(name);
  } catch {
    return name;
  }
}

const NAME_KEY = 'millrace-name';
/** Returns the name under which the user joined last; empty at first. */
export const nameOfUser = (): string => localStorage.getItem(NAME_KEY) ?? '';
export const keepNameOfUser = (name: string): void => localStorage.setItem(NAME_KEY, name);

/** Returns a random room name that can be read aloud. */
export const randomName = (): string => `mill-${Array.from(crypto.getRandomValues(new Uint8Array(3)), (byte) => byte.toString(16).padStart(2, '0')).join('')}`;

export const TOPOLOGIES = [
  { name: 'auto', label: 'Automatic', description: 'Peer-to-peer for two; through the server from three on.' },
  { name: 'mesh', label: 'Mesh', description: 'A direct connection between every two participants. Best for small groups.' },
  { name: 'switch', label: 'Switch', description: 'One connection per participant, to the server, which forwards video and audio.' },
  { name: 'mixer', label: 'Mixer', description: 'One connection per participant, to the server, which mixes all audio into one stream, and forwards video or composes one video of all.' },
  { name: 'star', label: 'Star', description: 'All connections go through the first participant.' },
  { name: 'relay', label: 'Relay', description: 'Like a mesh, but all traffic goes through a TURN relay.' },
  { name: 'p2p', label: 'Peer-to-peer', description: 'A direct connection between exactly two participants.' },
  { name: 'tree', label: 'Tree', description: 'For broadcasts: the first participant sends, and the others forward to each other.' },
] as const;

export const topologyLabel = (name: string): string => TOPOLOGIES.find((one) => one.name === name)?.label ?? name;

/** Labels of the types of an ICE candidate pair. */
const PATHS: Readonly<Record<string, string>> = { host: 'direct', srflx: 'direct, through a NAT', prflx: 'direct, through a NAT', relay: 'through a relay' };

export const pathLabel = (kind: string): string => PATHS[kind] ?? (kind || UNKNOWN);
