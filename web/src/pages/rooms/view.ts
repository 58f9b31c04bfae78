/**
 * The server's view of a room: `GET /v1/rooms/{room}` and the channel `rooms/{room}/reports`
 * (docs/reference/protocol.md, "Rooms").
 */
import type { Quality, RoomState } from '@millrace/client/room';

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
export interface Told {
  readonly participant: string;
  readonly report: Report;
  readonly switch: SwitchView | null;
}

export const isTold = (data: unknown): data is Told =>
  typeof data === 'object' && data !== null && 'participant' in data && typeof data.participant === 'string' && 'report' in data && typeof data.report === 'object' && data.report !== null;

/** The server refuses this page without a token, or with this token. */
export class NotLetIn extends Error {}

/** Returns the state of a room; `undefined` if the room is empty, so that the next participant creates it. */
export async function look(room: string, token: string | undefined, signal?: AbortSignal): Promise<RoomView | undefined> {
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
  if (code === 'unauthorized' || code === 'forbidden') throw new NotLetIn(detail);
  throw new Error(detail ?? `the server answers ${response.status}`);
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

/** Returns a random room name that can be read aloud. */
export const freshName = (): string => `mill-${Array.from(crypto.getRandomValues(new Uint8Array(3)), (byte) => byte.toString(16).padStart(2, '0')).join('')}`;

export const TOPOLOGIES = [
  { name: 'auto', label: 'Automatic', says: 'Straight between two, by the server from the third on.' },
  { name: 'mesh', label: 'Mesh', says: 'Everybody straight with everybody. Good for a few.' },
  { name: 'switch', label: 'Switch', says: 'One connection each, to the server, which passes all on.' },
  { name: 'mixer', label: 'Mixer', says: 'One connection each; the server mixes all sound into one.' },
  { name: 'star', label: 'Star', says: 'Through one participant, who came first.' },
  { name: 'relay', label: 'Relay', says: 'As a mesh, but through a relay only.' },
  { name: 'p2p', label: 'Two only', says: 'Straight, and nobody else may come.' },
  { name: 'tree', label: 'Tree', says: 'One for many: what the first sends goes from one to the next.' },
] as const;

export const topologyLabel = (name: string): string => TOPOLOGIES.find((one) => one.name === name)?.label ?? name;
