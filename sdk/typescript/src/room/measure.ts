// The figures of all links of a room since the last reading. Source: docs/reference/rooms.md, "Measuring".
import type { Link } from './link.js';
import type { Meter } from './quality.js';
import type { Quality } from './types.js';

/** `age`: links that were connected later than this time ago are omitted, ms. */
export async function measure(links: Iterable<Link>, meters: ReadonlyMap<Link, Meter>, counts: Pick<Quality, 'calls' | 'calls_failed'>, age = 0): Promise<Quality> {
  const open = [...links].filter(({ isConnected, connectedAt }) => isConnected && performance.now() - connectedAt >= age);
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
