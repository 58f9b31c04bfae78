/** The previous run of a scenario, to draw behind the current one. */
interface Point {
  readonly x: number;
  readonly y: number | null;
}
import type { Report, Run } from './api';
import { NO_PROGRESS, applyEvent, rates, type Ended, type RunSecond } from './events';

export interface Ghost {
  readonly of: Run;
  /** Seconds of each measurement, by its label. */
  readonly seconds: ReadonlyMap<string, readonly GhostSecond[]>;
  /** Results, by {@link resultKey}. */
  readonly ended: ReadonlyMap<string, Ended>;
}

export interface GhostSecond extends RunSecond {
  readonly rate: number | null;
}

/** A name for a measurement that is the same in all runs of a scenario. */
export const resultKey = ({ target, transport, load, repeat }: Ended): string => [target, transport, load.counts, load.value, repeat].join(' ');

/** Returns the run to draw behind `run`: the newest earlier one of its scenario, form and, if possible, settings. */
export function previousOf(run: { readonly id: string | undefined; readonly scenario: string; readonly form: string; readonly set?: Run['set'] | undefined }, reports: readonly Report[]): Report | undefined {
  const known = reports.findIndex((report) => report.id === run.id);
  const earlier = reports.slice(known + 1).filter((report) => report.id !== run.id && report.scenario === run.scenario && report.form === run.form && report.has_recording);
  const settings = (set: Run['set'] | undefined) => JSON.stringify(Object.entries(set ?? {}).sort());
  return earlier.find((report) => run.set !== undefined && settings(report.set) === settings(run.set)) ?? earlier[0];
}

/** Reads the events of a run. */
export function ghostOf(of: Run, events: readonly unknown[]): Ghost {
  const seconds = new Map<string, RunSecond[]>();
  const ended = new Map<string, Ended>();
  let progress = NO_PROGRESS;
  for (const event of events) {
    const before = progress;
    progress = applyEvent(progress, event);
    const second = progress.seconds.at(-1);
    if (second !== undefined && progress.seconds !== before.seconds) seconds.set(second.label, [...(seconds.get(second.label) ?? []), second]);
    const result = progress.ended[0];
    if (result !== undefined && progress.ended !== before.ended) ended.set(resultKey(result), result);
  }
  const rated = [...seconds].map(([label, all]) => {
    const rate = rates(all);
    return [label, all.map((second, i): GhostSecond => ({ ...second, rate: rate[i] ?? null }))] as const;
  });
  return { of, seconds: new Map(rated), ended };
}

/**
 * Returns the points of the previous run, on the time axis of the current one: each measurement begins where the same
 * one begins now. Behind the newest measurement, the points continue to its end.
 */
export function ghostPoints(ghost: Ghost, current: readonly RunSecond[], value: (second: GhostSecond) => number | null): Point[] {
  const points: Point[] = [];
  for (let begin = 0; begin < current.length; ) {
    const first = current[begin]!;
    let end = begin;
    while (end + 1 < current.length && current[end + 1]!.run === first.run) end++;
    const isNewest = end === current.length - 1;
    const offset = first.since_s - first.at_s;
    const last = current[end]!.since_s;
    if (points.length > 0) points.push({ x: first.since_s - 0.5, y: null });
    for (const second of ghost.seconds.get(first.label) ?? []) {
      const x = offset + second.at_s;
      if (x >= first.since_s && (isNewest || x <= last)) points.push({ x, y: value(second) });
    }
    begin = end + 1;
  }
  return points;
}
