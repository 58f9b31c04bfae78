/** Figures of the traffic of a server, from its `/metrics`. */

export interface Sample {
  /** Time of the sample, ms. */
  readonly at: number;
  readonly readers: number;
  readonly channels: number;
  readonly published: number;
}

/** Returns the sum of a metric over its labels. Source: the text format of Prometheus, version 0.0.4. */
function sum(text: string, name: string): number {
  const lines = text.split('\n').filter((line) => line.startsWith(`${name} `) || line.startsWith(`${name}{`));
  return lines.reduce((total, line) => total + Number(line.slice(line.lastIndexOf(' ') + 1)), 0);
}

export function sampleOf(text: string, at: number): Sample {
  return { at, readers: sum(text, 'millrace_connections'), channels: sum(text, 'millrace_channels_open'), published: sum(text, 'millrace_publications_total') };
}

/** Returns the messages per second between two samples. */
export const rateOf = (before: Sample | undefined, now: Sample | undefined): number | undefined =>
  before && now && now.at > before.at ? Math.max(0, ((now.published - before.published) * 1000) / (now.at - before.at)) : undefined;
