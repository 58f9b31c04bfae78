/** Requests to the lab of the server (docs/reference/admin.md, "Lab"). */
import { request } from '../../lib/request';

export type Form = 'quick' | 'full' | 'thesis';
export type Outcome = 'running' | 'passed' | 'missed' | 'invalid' | 'stopped' | 'failed' | 'interrupted';

/** A run, as the server notes it. */
export interface Run {
  readonly id: string;
  readonly scenario: string;
  readonly form: Form;
  readonly set: Readonly<Record<string, string>>;
  readonly version: string;
  readonly started_ms: number;
  readonly ended_ms: number | null;
  readonly outcome: Outcome;
  readonly detail: string | null;
}

export interface Report extends Run {
  readonly bytes: number;
  readonly has_recording: boolean;
}

export interface Status {
  readonly run: (Run & { readonly stopping: boolean }) | null;
  /** Newest first. */
  readonly reports: readonly Report[];
  readonly reports_max: number;
  readonly bytes_max: number;
  readonly run_max_s: number;
}

export interface Scenario {
  readonly name: string;
  readonly title: string;
  readonly summary: string;
  readonly source: string;
  readonly needs: readonly { readonly need: string; readonly missing: string | null }[];
  readonly forms: readonly { readonly form: Form; readonly estimate_s: number; readonly runs: number; readonly targets: readonly string[] }[];
  readonly parameters: readonly string[];
}

export interface Target {
  readonly name: string;
  readonly transports: readonly string[];
  readonly version: string | null;
  readonly missing: string | null;
}

export interface Catalogue {
  readonly scenarios: readonly Scenario[];
  readonly targets: readonly Target[];
}

export interface Start {
  readonly scenario: string;
  readonly form: Form;
  readonly set: Readonly<Record<string, string>>;
}

const FOLDER = '/v1/admin/lab';

export class Api {
  constructor(readonly token: string | undefined) {}

  status = (): Promise<Status> => request(FOLDER, this.token);
  catalogue = (): Promise<Catalogue> => request(`${FOLDER}/scenarios`, this.token);
  start = (start: Start): Promise<{ readonly id: string }> => this.#post('start', start);
  stop = (): Promise<unknown> => this.#post('stop', {});
  delete = (id: string): Promise<unknown> => this.#post('delete', { id });
  events = async (id: string): Promise<readonly unknown[]> => (await request<{ events: unknown[] }>(`${FOLDER}/events?id=${encodeURIComponent(id)}`, this.token)).events;
  report = (id: string): Promise<object> => request(`${FOLDER}/report?id=${encodeURIComponent(id)}`, this.token);
  page = async (id: string): Promise<string> => (await request<{ html: string }>(`${FOLDER}/report?id=${encodeURIComponent(id)}&form=html`, this.token)).html;
  compare = (a: string, b: string): Promise<object> => request(`${FOLDER}/compare?a=${encodeURIComponent(a)}&b=${encodeURIComponent(b)}`, this.token);

  #post<T>(name: string, body: object): Promise<T> {
    return request(`${FOLDER}/${name}`, this.token, { method: 'POST', body: JSON.stringify(body) });
  }
}
