/** One connection in the answer of `GET /v1/admin/connections`. */
export interface ConnectionRow {
  readonly id: string;
  readonly node?: string;
  readonly transport: string;
  readonly subject?: string;
  readonly address?: string;
  /** Client address that a proxy reports. */
  readonly for?: string;
  readonly expires_s?: number;
  readonly subscriptions: readonly string[];
  readonly subscriptions_total: number;
  readonly opened_ms?: number;
  /** Messages that the connection has not been sent yet. */
  readonly behind?: number;
  readonly behind_bytes?: number;
  readonly blocked_ms?: number;
  readonly bytes_out?: number;
  readonly policy?: string;
}

/** `order` completes "100 of 10,000 connections, ..". */
export const SORTS = [
  { name: 'behind', label: 'Behind', order: 'those that are furthest behind first' },
  { name: 'bytes', label: 'Bytes sent', order: 'those that were sent most first' },
  { name: 'opened', label: 'Newest', order: 'the newest first' },
] as const;

export type Sort = (typeof SORTS)[number]['name'];

const VALUES: Readonly<Record<Sort, (row: ConnectionRow) => number>> = {
  behind: (row) => row.behind ?? 0,
  bytes: (row) => row.bytes_out ?? 0,
  opened: (row) => row.opened_ms ?? 0,
};

/** Compares ids as the server does: the numbers in `NODE-SHARD-SLOT-GENERATION` as numbers. */
export function byId(a: string, b: string): number {
  const [one, other] = [a.split('-'), b.split('-')];
  for (let i = 1; i < one.length; i++) if (one[0] === other[0] && one[i] !== other[i]) return Number(one[i]) - Number(other[i]);
  return one[0]!.localeCompare(other[0]!);
}

/** Splits an id into the name of its node and its number on this node. */
export function partsOf(id: string): readonly [node: string, number: string] {
  const end = id.indexOf('-') + 1;
  return [id.slice(0, end), id.slice(end)];
}

/** Sorts rows as the server does, because a keyed state has no order. */
export const sorted = (rows: readonly ConnectionRow[], by: Sort): ConnectionRow[] => rows.toSorted((a, b) => VALUES[by](b) - VALUES[by](a) || byId(a.id, b.id));
