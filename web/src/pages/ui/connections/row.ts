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

export const SORTS = [
  { name: 'behind', label: 'Behind' },
  { name: 'bytes', label: 'Bytes sent' },
  { name: 'opened', label: 'Newest' },
] as const;

export type Sort = (typeof SORTS)[number]['name'];

const VALUES: Readonly<Record<Sort, (row: ConnectionRow) => number>> = {
  behind: (row) => row.behind ?? 0,
  bytes: (row) => row.bytes_out ?? 0,
  opened: (row) => row.opened_ms ?? 0,
};

/** Sorts rows as the server does, because a keyed state has no order. */
export const sorted = (rows: readonly ConnectionRow[], by: Sort): ConnectionRow[] => rows.toSorted((a, b) => VALUES[by](b) - VALUES[by](a) || a.id.localeCompare(b.id));
