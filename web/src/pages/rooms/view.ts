/** What the server knows of a room: `GET /v1/rooms/{room}` and the channel `rooms/{room}/reports` (docs/protocol.md, "Rooms"). */
import type { Quality, RoomState } from '@millrace/client/room';

/** What the switching unit sees of one participant. */
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
    /** The last time that another layer was chosen, and why. */
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

/** One publication of the record. */
export interface Told {
  readonly participant: string;
  readonly report: Report;
  readonly switch: SwitchView | null;
}

export const isTold = (data: unknown): data is Told =>
  typeof data === 'object' && data !== null && 'participant' in data && typeof data.participant === 'string' && 'report' in data && typeof data.report === 'object' && data.report !== null;

/** The server does not let this page in without a token, or without a better one. */
export class NotLetIn extends Error {}

/** `undefined`: nobody is there, so whoever comes makes the room. */
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

/** One level of a channel's name (docs/protocol.md, "Words"). */
export const ROOM_NAME = '[A-Za-z0-9_.:\\-]{1,64}';
export const isRoomName = (name: string): boolean => new RegExp(`^${ROOM_NAME}$`).test(name);

/** Of a page at `/rooms/{room}`; empty: none yet. */
export function roomOf(path: string): string {
  const name = /^\/rooms\/([^/]+)$/.exec(path)?.[1] ?? '';
  try {
    return decodeURIComponent(name);
  } catch {
    return name;
  }
}

/** A name nobody else has thought of, readable aloud. */
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
