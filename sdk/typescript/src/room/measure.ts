// The figures of all links of a room since the last reading. Source: docs/reference/rooms.md, "Measuring".
import type { Link } from './link.js';
import type { Meter } from './quality.js';
import type { Quality } from './types.js';

export async function measure(links: Iterable<Link>, meters: ReadonlyMap<Link, Meter>, counts: Pick<Quality, 'calls' | 'calls_failed'>): Promise<Quality> {
  const open = [...links].filter((link) => link.isConnected);
  const read = await Promise.all(open.map((link) => meters.get(link)!.read(link)));
  const figures = read.map(({ link }) => link);
  const uplinks = read.flatMap(({ uplink_kbps = [] }) => uplink_kbps);
  const rtts = figures.flatMap(({ rtt_ms = [] }) => rtt_ms);
  return {
    ...(uplinks.length && { uplink_kbps: Math.max(...uplinks) }),
    ...(rtts.length && { rtt_ms: Math.min(...rtts) }),
    codec_cpu: read.reduce((sum, { codec_cpu }) => sum + codec_cpu, 0),
    ...counts,
    links: figures,
  };
}
