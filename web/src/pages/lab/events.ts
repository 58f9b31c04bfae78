/**
 * Events that `millrace lab run --live --to URL`, or the server for its own run, publishes to `lab/live`:
 * `crates/lab/src/report/live.rs`.
 */

import type { Load } from '../report/analysis';

export const CHANNEL = 'lab/live';

export interface Second {
  readonly is: 'second';
  readonly at_s: number;
  readonly published: number;
  readonly delivered: number;
  readonly p50_us: number | null;
  readonly p99_us: number | null;
  readonly server_cpu_cores: number;
  readonly generator_cpu_cores: number;
  readonly server_memory_bytes: number;
}

export interface Ended {
  readonly is: 'ended';
  readonly target: string;
  readonly transport: string;
  readonly load: Load;
  readonly repeat: number;
  readonly delivered: number | null;
  readonly lost: number | null;
  readonly p50_us: number | null;
  readonly p99_us: number | null;
  readonly is_valid: boolean;
  readonly missed: readonly string[];
}

type Event =
  | { readonly is: 'announced'; readonly command: string; readonly scenario?: string; readonly form?: string; readonly id?: string }
  | { readonly is: 'said'; readonly text: string }
  | { readonly is: 'planned'; readonly runs: number; readonly done: number; readonly estimate_s: number }
  | { readonly is: 'begun'; readonly index: number; readonly of: number; readonly label: string; readonly left_s: number }
  | { readonly is: 'finished' }
  | Second
  | Ended;

/** Progress of a sweep. */
export interface Progress {
  readonly stage: 'none' | 'preparing' | 'running' | 'finished';
  /** The command line. */
  readonly command: string;
  readonly scenario: string;
  readonly form: string;
  /** Id of the report, if the server has started the run. */
  readonly id: string | undefined;
  readonly runs: number;
  readonly index: number;
  readonly label: string;
  readonly left_s: number | undefined;
  /** The last seconds of all runs, in order. */
  readonly seconds: readonly RunSecond[];
  /** Newest first. */
  readonly ended: readonly Ended[];
  readonly messages: readonly string[];
}

/** A second of a run, on the common time axis of all runs. */
export interface RunSecond extends Second {
  readonly run: number;
  readonly label: string;
  readonly since_s: number;
}

export const NO_PROGRESS: Progress = { stage: 'none', command: '', scenario: '', form: '', id: undefined, runs: 0, index: 0, label: '', left_s: undefined, seconds: [], ended: [], messages: [] };

/** Maximum number of seconds kept. Older ones are in the report. */
const SECONDS_MAX = 120;
const MESSAGES_MAX = 20;

const isEvent = (data: unknown): data is Event => typeof data === 'object' && data !== null && 'is' in data && typeof data.is === 'string';

/**
 * Returns the deliveries of each second for a line: `null` in a second that publishing fills only partly, at the start
 * or end of a test. This is the case if a neighboring second of the same run is missing or has no publications. The
 * newest second has no neighbor yet.
 */
export function rates(seconds: readonly RunSecond[]): readonly (number | null)[] {
  const publishes = (at: number, run: number): boolean => seconds[at]?.run === run && seconds[at].published > 0;
  return seconds.map(({ run, delivered }, i) => ([i - 1, i, i + 1].every((at) => publishes(at, run)) ? delivered : null));
}

export function applyEvent(progress: Progress, data: unknown): Progress {
  if (!isEvent(data)) return progress;
  switch (data.is) {
    case 'announced':
      return { ...NO_PROGRESS, stage: 'preparing', command: data.command, scenario: data.scenario ?? '', form: data.form ?? '', id: data.id };
    case 'said':
      return { ...progress, messages: [...progress.messages, data.text].slice(-MESSAGES_MAX) };
    case 'planned':
      return { ...progress, stage: 'running', runs: data.runs, index: data.done, left_s: data.estimate_s };
    case 'begun':
      return { ...progress, stage: 'running', runs: data.of, index: data.index, label: data.label, left_s: data.left_s };
    case 'second':
      return { ...progress, seconds: [...progress.seconds, { ...data, run: progress.index, label: progress.label, since_s: (progress.seconds.at(-1)?.since_s ?? -1) + 1 }].slice(-SECONDS_MAX) };
    case 'ended':
      return { ...progress, ended: [data, ...progress.ended], index: progress.index + 1 };
    case 'finished':
      return { ...progress, stage: 'finished', label: '', left_s: 0 };
    default:
      return progress;
  }
}
