/** Figures of a call over time, as the charts show them. */
import type { Quality } from '@millrace/client/room';
import type { Samples } from '../ui/chart/samples';
import type { RunRow } from './run';

/** Returns the groups of rows with the same key, in the order of their first rows. */
export function groupsOf<Row>(rows: readonly Row[], keyOf: (row: Row) => string): Map<string, Row[]> {
  const groups = new Map<string, Row[]>();
  for (const row of rows) {
    const group = groups.get(keyOf(row));
    if (group) group.push(row);
    else groups.set(keyOf(row), [row]);
  }
  return groups;
}

/** Adds a measurement. Unknown figures stay unknown. */
export function pushQuality(samples: Samples, at: number, { links, rtt_ms }: Quality): void {
  const streams = links.flatMap((link) => link.streams);
  const losses = streams.flatMap(({ loss = [] }) => loss);
  samples.push(at, {
    received: links.reduce((sum, { rate_kbps }) => sum + rate_kbps, 0),
    sent: links.reduce((sum, { sent_kbps }) => sum + sent_kbps, 0),
    rtt: rtt_ms,
    loss: losses.length ? Math.max(...losses) * 100 : undefined,
  });
}

/** Adds the rows of one participant of a recorded run. */
export function pushRows(samples: Samples, rows: readonly RunRow[]): void {
  for (const [at, of] of groupsOf(rows, ({ at }) => at)) {
    const sum = (direction: string): number => of.filter((row) => row.direction === direction).reduce((sum, { rate_kbps }) => sum + rate_kbps, 0);
    const known = (figures: readonly (number | undefined)[]): number[] => figures.filter((figure) => figure !== undefined);
    const [rtts, losses] = [known(of.map(({ rtt_ms }) => rtt_ms)), known(of.map(({ loss }) => loss))];
    samples.push(Date.parse(at), { received: sum('in'), sent: sum('out'), rtt: rtts.length ? Math.min(...rtts) : undefined, loss: losses.length ? Math.max(...losses) * 100 : undefined });
  }
}
