/**
 * Recorded runs: the statistics of automatic calls, kept by the server under the name of the run. The channel
 * `room-runs/{run}` is a keyed state with one key per upload; `room-runs` has one key per run.
 */
import type { Client } from '@millrace/client';
import type { Row, RunRow } from './run';

const CHANNEL = 'room-runs';
/** Interval of uploads, ms. */
const UPLOAD_EVERY = 5_000;
/** Maximum number of rows of one upload. An upload is smaller than the largest publication. */
const ROWS_MAX = 1_000;
const PAGE = 1_000;

interface Upload {
  readonly room: string;
  readonly participant: string;
  readonly name: string;
  readonly rows: readonly Row[];
}

export interface RunSummary {
  readonly run: string;
  readonly room: string;
  readonly began: string;
}

/** Uploads the rows of this page while the call goes on, so that a closed tab loses only the last seconds. */
export class RunUpload {
  uploaded = 0;
  readonly #client: Client;
  readonly #run: string;
  readonly #about: Omit<Upload, 'rows'>;
  readonly #began = new Date().toISOString();
  #waiting: Row[] = [];
  #at = performance.now();
  #number = 0;

  constructor(client: Client, run: string, about: Omit<Upload, 'rows'>) {
    this.#client = client;
    this.#run = run;
    this.#about = about;
  }

  async begin(): Promise<void> {
    await this.#client.publish(CHANNEL, { room: this.#about.room, began: this.#began }, { key: this.#run });
  }

  /** Adds rows, and uploads them when it is time. Throws the error of the upload; its rows are kept. */
  async add(rows: readonly Row[]): Promise<void> {
    this.#waiting.push(...rows);
    if (performance.now() - this.#at >= UPLOAD_EVERY) await this.flush();
  }

  async flush(): Promise<void> {
    this.#at = performance.now();
    while (this.#waiting.length) {
      const rows = this.#waiting.slice(0, ROWS_MAX);
      const key = `${this.#about.participant}/${this.#began}/${String(this.#number).padStart(6, '0')}`;
      await this.#client.publish(`${CHANNEL}/${this.#run}`, { ...this.#about, rows } satisfies Upload, { key });
      this.#waiting.splice(0, rows.length);
      this.#number++;
      this.uploaded += rows.length;
    }
  }
}

/** Returns the newest publication of each key. Throws an error with the reason of the server. */
async function stateOf<T>(channel: string, token: string | undefined): Promise<{ key: string; data: T }[]> {
  const all = new Map<string, T>();
  for (let after: string | undefined = ''; after !== undefined; ) {
    const path: string = `/v1/channels/${channel}?state&limit=${PAGE}${after ? `&after=${encodeURIComponent(after)}` : ''}`;
    const response = await fetch(path, { cache: 'no-store', ...(token && { headers: { Authorization: `Bearer ${token}` } }) });
    if (!response.ok) throw new Error(((await response.json().catch(() => ({}))) as { detail?: string }).detail ?? `the server returned status ${response.status}`);
    const page = (await response.json()) as { next?: string; restart?: true; messages: { key: string; data: T; deleted?: true }[] };
    if (page.restart) all.clear();
    for (const { key, data, deleted } of page.messages) if (deleted) all.delete(key);
      else all.set(key, data);
    after = page.next;
  }
  return [...all].map(([key, data]) => ({ key, data }));
}

/** Lists the recorded runs, the newest first. */
export async function listRuns(token: string | undefined): Promise<RunSummary[]> {
  const runs = await stateOf<{ room: string; began: string }>(CHANNEL, token);
  return runs.map(({ key: run, data: { room, began } }) => ({ run, room, began })).sort((a, b) => b.began.localeCompare(a.began));
}

/** Reads a recorded run: the rows of all participants in the order of time. */
export async function readRun(run: string, token: string | undefined): Promise<RunRow[]> {
  const uploads = await stateOf<Upload>(`${CHANNEL}/${run}`, token);
  const rows = uploads.flatMap(({ data: { room, participant, name, rows } }) => rows.map((row) => ({ run, room, participant, participant_name: name, ...row })));
  return rows.sort((a, b) => a.at.localeCompare(b.at) || a.participant.localeCompare(b.participant));
}
