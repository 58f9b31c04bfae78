/** Texts of the pages, and the parsing of their addresses. Uses no DOM. */
import type { Config } from './forwarder';
import type { View } from './gateway-host';

export const MODES = [
  { name: 'forward', label: 'Forward', description: 'Sends each message unchanged to the receiver that its sender has chosen.', gathers: false, splits: false },
  { name: 'multiplex', label: 'Multiplex', description: 'Gathers the messages for one receiver into bundles.', gathers: true, splits: false },
  { name: 'demultiplex', label: 'Demultiplex', description: 'Splits the bundles of devices that have no receiver. Each part goes to the receiver that it names.', gathers: false, splits: true },
  { name: 'both', label: 'Both', description: 'Gathers the messages for one receiver into bundles, and splits the bundles of devices that have no receiver.', gathers: true, splits: true },
] as const;
export type Mode = (typeof MODES)[number]['name'];

export const WINDOW_MS = { min: 10, max: 5_000, usual: 250 };

export const modeOf = (name: string | null): (typeof MODES)[number] => MODES.find((mode) => mode.name === name) ?? MODES[0];
export const windowOf = (text: string | null): number => Math.min(Math.max(Math.round(Number(text ?? WINDOW_MS.usual)) || WINDOW_MS.usual, WINDOW_MS.min), WINDOW_MS.max);

/** Returns the settings in an address: `?mode=both&window=100`. */
export function configOf(query: URLSearchParams): Partial<Config> {
  const { gathers, splits } = modeOf(query.get('mode'));
  return { gathers, splits, windowMs: windowOf(query.get('window')) };
}

/** Returns the name in the path `/gateway/{name}`; empty if there is none. */
export function nameOf(path: string): string {
  const name = /^\/gateway\/([^/]+)$/.exec(path)?.[1] ?? '';
  try {
    return decodeURIComponent(name);
  } catch {
    return name;
  }
}

/** A peer as drawn and listed, with messages per second. */
export interface Row {
  readonly id: number;
  readonly name: string;
  readonly to: string | undefined;
  readonly isOpen: boolean;
  readonly inHz: number;
  readonly outHz: number;
  readonly waitingBytes: number;
}

/** Computes the rates between two states. */
export function rowsOf(before: View | undefined, now: View): readonly Row[] {
  const past = new Map(before?.peers.map((peer) => [peer.id, peer]));
  const seconds = before ? (now.atMs - before.atMs) / 1000 : 0;
  const rate = (from: number, to: number): number => (seconds > 0 ? (to - from) / seconds : 0);
  return now.peers.map(({ id, name, to, isOpen, received, sent, waitingBytes }) => {
    const was = past.get(id) ?? { received: 0, sent: 0 };
    return { id, name, to, isOpen, inHz: rate(was.received, received), outHz: rate(was.sent, sent), waitingBytes };
  });
}

export interface Place {
  readonly x: number;
  readonly y: number;
}

/** Places senders on the left and the other peers on the right. The gateway is in the middle. */
export function placesOf(rows: readonly Row[], width: number, height: number, margin: number): ReadonlyMap<number, Place> {
  const places = new Map<number, Place>();
  const [rx, ry] = [width / 2 - margin * 1.6, height / 2 - margin];
  for (const isLeft of [true, false]) {
    const side = rows.filter(({ to }) => (to !== undefined) === isLeft);
    side.forEach(({ id }, i) => {
      // Both sides run from top to bottom, without the poles.
      const angle = -Math.PI * 0.42 + (Math.PI * 0.84 * (i + 0.5)) / side.length;
      places.set(id, { x: width / 2 + (isLeft ? -1 : 1) * rx * Math.cos(angle), y: height / 2 + ry * Math.sin(angle) });
    });
  }
  return places;
}

/** Returns a straight arrow between two circles, beside the line that joins their centers. */
export function arrowOf(from: Place, to: Place, fromRadius: number, toRadius: number, aside = 4): { readonly line: string; readonly head: string } {
  const length = Math.hypot(to.x - from.x, to.y - from.y) || 1;
  const [dx, dy] = [(to.x - from.x) / length, (to.y - from.y) / length];
  const at = (along: number, across: number): string => `${(from.x + dx * along - dy * across).toFixed(1)} ${(from.y + dy * along + dx * across).toFixed(1)}`;
  const end = length - toRadius - 2;
  return { line: `M${at(fromRadius + 2, aside)}L${at(end - 6, aside)}`, head: `M${at(end, aside)}L${at(end - 8, aside + 4)}L${at(end - 8, aside - 4)}z` };
}
