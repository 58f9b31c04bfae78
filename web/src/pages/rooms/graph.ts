/** A room's topology as nodes and directed edges with their traffic, and their layout. Uses no DOM. */
import { isByServer, neighbours, type RoomState } from '@millrace/client/room';
import type { Report, SwitchView } from './view';

/** Pseudo-participant that stands for the SFU, as in the state. */
export const SWITCH = 'switch';

export interface Edge {
  readonly from: string;
  readonly to: string;
  /** `undefined` if no report contains the rate. */
  readonly kbps: number | undefined;
  readonly rtt_ms: number | undefined;
  readonly loss: number | undefined;
  readonly path: string;
}

/**
 * Returns all links in both directions. The traffic of an edge is the rate reported by its receiver, which may be the
 * server, or else by its sender.
 */
export function edgesOf(state: RoomState, reports: ReadonlyMap<string, Report>, views: ReadonlyMap<string, SwitchView>): readonly Edge[] {
  const edges: Edge[] = [];
  const receivedBySfu = (from: string) => views.get(from)?.sends.flatMap(({ layers_kbps }) => layers_kbps).reduce((sum, kbps) => sum + kbps, 0);
  const linkOf = (of: string, to: string) => reports.get(of)?.links?.find((link) => link.to === to);
  const edge = (from: string, to: string): Edge => {
    const [got, gave] = [linkOf(to, from), linkOf(from, to)];
    const seen = to === SWITCH ? receivedBySfu(from) : undefined;
    const kbps = seen ?? (got ? got.rate_kbps + (got.data_kbps ?? 0) : gave ? gave.sent_kbps + (gave.data_sent_kbps ?? 0) : undefined);
    return { from, to, kbps, rtt_ms: got?.rtt_ms ?? gave?.rtt_ms, loss: got?.loss, path: got?.kind || gave?.kind || '' };
  };
  for (const { id } of state.participants) {
    for (const to of neighbours(state, id)) {
      edges.push(edge(id, to));
      // Other participants add the reverse edge themselves.
      if (to === SWITCH) edges.push(edge(SWITCH, id));
    }
  }
  return edges;
}

export interface Place {
  readonly id: string;
  readonly x: number;
  readonly y: number;
}

/** Returns the layout: a central node with a ring, levels for a tree, or a ring with `me` at the bottom. */
export function placesOf(state: RoomState, me: string, width: number, height: number, margin: number): readonly Place[] {
  const ids = state.participants.map(({ id }) => id);
  const [cx, cy] = [width / 2, height / 2];
  if (state.topology === 'tree') return levels(state, width, height, margin);
  const centre = isByServer(state.topology) ? SWITCH : state.topology === 'star' ? state.hub : undefined;
  const around = ids.filter((id) => id !== centre);
  const first = Math.max(around.indexOf(me), 0);
  const ring = [...around.slice(first), ...around.slice(0, first)];
  // Two nodes are side by side. With a central node, no node is directly above or below the center, where the edge is
  // short. Otherwise the first node is at the bottom.
  const beside = Math.PI * (ring.length % 4 ? 1 : 1 + 1 / ring.length);
  const start = ring.length < 3 || centre !== undefined ? beside : Math.PI / 2;
  const [rx, ry] = [width / 2 - margin * 1.35, height / 2 - margin];
  const places = ring.map((id, i): Place => {
    const angle = start + (2 * Math.PI * i) / ring.length;
    return { id, x: cx + rx * Math.cos(angle), y: cy + ry * Math.sin(angle) };
  });
  if (centre === undefined) return places.length === 1 ? [{ id: places[0]!.id, x: cx, y: cy }] : places;
  return [{ id: centre, x: cx, y: cy }, ...places];
}

function levels({ participants, parents = {} }: RoomState, width: number, height: number, margin: number): Place[] {
  const depth = (id: string, seen = 0): number => (parents[id] === undefined || seen > participants.length ? 0 : 1 + depth(parents[id], seen + 1));
  const rows: string[][] = [];
  for (const { id } of participants) (rows[depth(id)] ??= []).push(id);
  const deep = rows.filter(Boolean);
  return deep.flatMap((row, y) =>
    row.map((id, x) => ({
      id,
      x: margin + ((width - 2 * margin) * (x + 0.5)) / row.length,
      y: deep.length === 1 ? height / 2 : margin + ((height - 2 * margin) * y) / (deep.length - 1),
    })),
  );
}

export interface Arc {
  readonly path: string;
  /** Position of the figure. */
  readonly x: number;
  readonly y: number;
  /** Arrowhead. */
  readonly head: string;
}

/** Returns an arrow with a slight bow to the left, so that the two directions between two nodes do not overlap. */
export function arcOf(from: Place, to: Place, radius: number, bow = 16): Arc {
  const [dx, dy] = [to.x - from.x, to.y - from.y];
  const length = Math.hypot(dx, dy) || 1;
  const [ux, uy] = [dx / length, dy / length];
  const [nx, ny] = [uy, -ux];
  const at = (along: number, beside: number) => ({ x: from.x + ux * along + nx * beside, y: from.y + uy * along + ny * beside });
  const [start, bend, end] = [at(radius + 2, 5), at(length / 2, bow), at(length - radius - 7, 5)];
  const point = (t: number) => ({
    x: (1 - t) ** 2 * start.x + 2 * t * (1 - t) * bend.x + t ** 2 * end.x,
    y: (1 - t) ** 2 * start.y + 2 * t * (1 - t) * bend.y + t ** 2 * end.y,
  });
  const n = (value: number) => value.toFixed(1);
  const before = point(0.93);
  const angle = Math.atan2(end.y - before.y, end.x - before.x);
  const corner = (turn: number, size: number) => `${n(end.x + size * Math.cos(angle + turn))} ${n(end.y + size * Math.sin(angle + turn))}`;
  // Closer to the sender, because the figures of crossing edges would overlap in the middle.
  const label = point(0.4);
  return {
    path: `M${n(start.x)} ${n(start.y)}Q${n(bend.x)} ${n(bend.y)} ${n(end.x)} ${n(end.y)}`,
    x: label.x + nx * 9,
    y: label.y + ny * 9,
    head: `M${corner(0, 6)}L${corner(2.5, 6)}L${corner(-2.5, 6)}z`,
  };
}
