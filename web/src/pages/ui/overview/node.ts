/** One node in the answer of `GET /v1/admin/overview`. A figure that a node does not know is absent or null. */
export interface NodeRow {
  readonly node: string;
  readonly is_self?: boolean;
  readonly version?: string;
  readonly uptime_s?: number;
  readonly draining?: boolean;
  readonly connections: Readonly<Record<string, number>>;
  readonly messages_in_per_s?: number | null;
  readonly messages_out_per_s?: number | null;
  readonly bytes_in_per_s?: number | null;
  readonly bytes_out_per_s?: number | null;
  readonly delivery_p50_ms?: number | null;
  readonly delivery_p99_ms?: number | null;
  readonly delivery_by_transport?: Readonly<Record<string, { readonly p50_ms?: number | null; readonly p99_ms?: number | null; readonly per_s?: number | null }>>;
  readonly refused_per_s?: number | null;
  readonly gaps_per_s?: number | null;
  readonly congested?: boolean;
  readonly cpu_cores?: number | null;
  readonly memory?: Readonly<Record<string, number | null>>;
  readonly shards?: readonly { readonly shard: number; readonly cpu?: number | null; readonly loop_lag_ms?: number | null; readonly connections?: number; readonly deliveries_per_s?: number | null }[];
  readonly channels_open?: number;
}

/** Returns the sample of a row, with the names of the columns of `GET /v1/admin/samples`. */
export function sampleOf(row: NodeRow): Record<string, number | null | undefined> {
  const sample: Record<string, number | null | undefined> = {
    messages_in: row.messages_in_per_s,
    messages_out: row.messages_out_per_s,
    delivery_p50_ms: row.delivery_p50_ms,
    delivery_p99_ms: row.delivery_p99_ms,
    gaps: row.gaps_per_s,
    refused: row.refused_per_s,
    bytes_in: row.bytes_in_per_s,
    bytes_out: row.bytes_out_per_s,
    cpu: row.cpu_cores,
  };
  for (const [name, value] of Object.entries(row.connections)) sample[`connections.${name}`] = value;
  for (const [name, value] of Object.entries(row.memory ?? {})) sample[`memory.${name.replace(/_bytes$/, '')}`] = value;
  for (const { shard, cpu, loop_lag_ms } of row.shards ?? []) {
    sample[`cpu.${shard}`] = cpu;
    sample[`loop_lag_ms.${shard}`] = loop_lag_ms;
  }
  return sample;
}

export const sum = (values: Iterable<number | null | undefined>): number | undefined => {
  let found: number | undefined;
  for (const value of values) if (value !== undefined && value !== null) found = (found ?? 0) + value;
  return found;
};
