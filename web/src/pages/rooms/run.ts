/** Measurements of a call as seen by this page. They are kept while the page is open, and saved as CSV or JSON. */
import type { Quality } from '@millrace/client/room';
import { field, type File } from '../../lib/file';
import type { SwitchView } from './view';

/**
 * Maximum number of rows. With two streams in each direction and a sample every two seconds, this is more than two
 * hours. Older rows are dropped.
 */
const ROWS_MAX = 16_384;

/** One stream in one period, or a link without streams. The names are those of Lozano's thesis, with units last. */
export interface Row {
  readonly at: string;
  readonly link: string;
  readonly path: string;
  readonly from?: string;
  readonly from_name?: string;
  readonly direction?: 'in' | 'out';
  readonly kind?: 'audio' | 'video';
  readonly layer?: string;
  readonly rate_kbps: number;
  readonly rtt_ms?: number;
  readonly owd_ms?: number;
  readonly loss?: number;
  readonly residual_loss?: number;
  readonly setup_ms?: number;
  readonly fps?: number;
  readonly width?: number;
  readonly height?: number;
  readonly freezes?: number;
  readonly frozen_ms?: number;
  readonly limited_by?: string;
  readonly codec?: string;
  readonly uplink_kbps?: number;
  readonly codec_cpu: number;
  readonly calls: number;
  readonly calls_failed: number;
  /** Estimate of the SFU for this stream. */
  readonly switch_estimate_kbps?: number;
  readonly switch_layer?: number;
  readonly switch_layer_switches?: number;
}

/** Columns of a CSV file of one participant. */
const COLUMNS = [
  'at', 'link', 'path', 'from', 'from_name', 'direction', 'kind', 'layer', 'rate_kbps', 'rtt_ms', 'owd_ms', 'loss', 'residual_loss', 'setup_ms', 'fps', 'width', 'height',
  'freezes', 'frozen_ms', 'limited_by', 'codec', 'uplink_kbps', 'codec_cpu', 'calls', 'calls_failed', 'switch_estimate_kbps', 'switch_layer', 'switch_layer_switches',
] as const satisfies readonly (keyof Row)[];

export class Run {
  readonly began = new Date();
  readonly rows: Row[] = [];
  samples = 0;
  dropped = 0;

  constructor(
    readonly room: string,
    readonly participant: string,
  ) {}

  /** Adds a measurement, and returns its rows. */
  add(quality: Quality, view: SwitchView | undefined, nameOf: (id: string) => string): readonly Row[] {
    const added: Row[] = [];
    this.samples++;
    const at = new Date().toISOString();
    const { uplink_kbps, codec_cpu, calls, calls_failed } = quality;
    for (const { to: link, kind: path, setup_ms, rate_kbps, rtt_ms, loss, residual_loss, streams } of quality.links) {
      const all = { at, link, path, ...(uplink_kbps !== undefined && { uplink_kbps }), codec_cpu, calls, calls_failed, ...(setup_ms !== undefined && { setup_ms }) };
      if (!streams.length) added.push({ ...all, rate_kbps, ...(rtt_ms !== undefined && { rtt_ms }), loss, residual_loss });
      for (const stream of streams) {
        const forwarded = link === 'switch' && stream.direction === 'in' ? view?.receives.find(({ from, kind }) => from === stream.from && kind === stream.kind) : undefined;
        added.push({
          ...all,
          ...stream,
          from_name: nameOf(stream.from),
          ...(forwarded && { switch_layer_switches: forwarded.layer_switches, ...(forwarded.layer !== null && { switch_layer: forwarded.layer }) }),
          ...(link === 'switch' && view?.estimate_kbps != null && { switch_estimate_kbps: view.estimate_kbps }),
        });
      }
    }
    this.rows.push(...added);
    const over = this.rows.length - ROWS_MAX;
    if (over > 0) {
      this.rows.splice(0, over);
      this.dropped += over;
    }
    return added;
  }

  csv(): File {
    return { name: this.#name('csv'), type: 'text/csv', text: csvOf(COLUMNS, this.rows) };
  }

  json(): File {
    const { room, participant, dropped, rows } = this;
    const run = { room, participant, began: this.began.toISOString(), saved: new Date().toISOString(), rows_dropped: dropped, rows };
    return { name: this.#name('json'), type: 'application/json', text: JSON.stringify(run, undefined, 1) };
  }

  #name(kind: string): string {
    return `room-${this.room.replaceAll(/[^\w.-]/g, '_')}-${this.began.toISOString().slice(0, 16).replace(':', '')}Z.${kind}`;
  }
}

/** Columns of a CSV file of a recorded run: all participants. */
const RUN_COLUMNS = ['run', 'room', 'participant', 'participant_name', ...COLUMNS] as const;

/** A row of a recorded run. */
export interface RunRow extends Row {
  readonly run: string;
  readonly room: string;
  readonly participant: string;
  readonly participant_name: string;
}

export const runCsv = (run: string, rows: readonly RunRow[]): File => ({ name: `${run}.csv`, type: 'text/csv', text: csvOf(RUN_COLUMNS, rows) });
export const runJson = (run: string, rows: readonly RunRow[]): File => ({ name: `${run}.json`, type: 'application/json', text: JSON.stringify({ run, rows }, undefined, 1) });

const csvOf = <Column extends string>(columns: readonly Column[], rows: readonly Partial<Record<Column, string | number>>[]): string =>
  [columns.join(','), ...rows.map((row) => columns.map((column) => field(withoutFormula(row[column]))).join(','))].map((line) => `${line}\r\n`).join('');

/** Prevents formulas in spreadsheets: participants choose their own names. */
const withoutFormula = (value: string | number | undefined): string | number | undefined => (typeof value === 'string' && /^[=+\-@\t]/.test(value) ? `'${value}` : value);
