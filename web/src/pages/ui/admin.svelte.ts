// Operator requests, and answers that are followed live over one WebSocket (docs/reference/admin.md, "Following").
import { client, type State } from '@millrace/client/core';
import { state as keyedState } from '@millrace/client/state';
import { websocket } from '@millrace/client/websocket';
import { reasonOf } from '../../lib/format';
import { takeToken } from '../../lib/token';

const token = takeToken();

/** The connection of all pages. While the page is hidden it is closed, so that the server computes nothing for it. */
export const mr = client(location.origin, [websocket], { ...(token && { token }), hidden: 'pause' });

let connection = $state.raw<State>(mr.state);
let refusal = $state('');
let paused = $state(false);
mr.onState((next) => {
  connection = next;
  if (next.name === 'closed' && next.cause?.code === 'auth') refusal = next.cause.message;
  // Browsers hide why a WebSocket was refused. The answer to a request shows whether the token has expired.
  if (next.name === 'connecting' && next.retryAt && token) get('nodes').catch(() => {});
});

/** Ends all pages: the server would refuse every further request, too. */
function refuse(message: string): void {
  refusal = message;
  void mr.close();
}

export const session = {
  get connection() {
    return connection;
  },
  /** Message of the server that refused this page, or an empty string. */
  get refusal() {
    return refusal;
  },
  /** True while the operator has stopped all updates of the page. */
  get paused() {
    return paused;
  },
  togglePause() {
    paused = !paused;
  },
};

/** A refused or failed request. */
export class Failure extends Error {
  constructor(
    message: string,
    readonly status: number,
    readonly code: string,
  ) {
    super(message);
  }
}

/** Sends a request to the server's API. `path` begins with `/v1/`. */
export async function api<T>(path: string, init: RequestInit = {}): Promise<T> {
  const headers = new Headers(init.headers);
  if (token) headers.set('authorization', `Bearer ${token}`);
  const response = await fetch(path, { cache: 'no-store', ...init, headers });
  const text = await response.text();
  const body = (/json/.test(response.headers.get('content-type') ?? '') && text ? JSON.parse(text) : undefined) as unknown;
  const isAdmin = path.startsWith('/v1/admin/');
  // Connects only when it is certain that the server accepts this page.
  if (response.ok && isAdmin) mr.ready().catch(() => {});
  if (response.ok) return body as T;
  const { detail, title, code } = (body ?? {}) as { detail?: string; title?: string; code?: string };
  const message = detail ?? title ?? `The server returned status ${response.status}`;
  if ((response.status === 401 || response.status === 403) && isAdmin) refuse(message);
  throw new Failure(message, response.status, code ?? '');
}

export const get = <T>(request: string, signal?: AbortSignal): Promise<T> => api<T>(`/v1/admin/${request}`, signal ? { signal } : {});

export const post = <T>(request: string, body: unknown): Promise<T> =>
  api<T>(`/v1/admin/${request}`, { method: 'POST', body: JSON.stringify(body), headers: { 'content-type': 'application/json' } });

/** Key of the part of an answer that is no row. */
const REST = '_';
const RETRY_MS = [500, 1_000, 2_000, 5_000];
/** The page shows new rows at most this often. */
const SHOW_MS = 250;

export interface Change<Row> {
  readonly key: string;
  readonly row: Row | undefined;
  /** Time of the change by the server's clock, ms. */
  readonly timeMs: number;
}

/** The rows of an operator request, kept up to date. */
export class Followed<Row extends object, Rest extends object = Record<string, unknown>> {
  rows = $state.raw<readonly Row[]>([]);
  rest = $state.raw<Partial<Rest>>({});
  /** `loading`: no answer yet, so the rows are those of the previous request. `failed`: `problem` says why. */
  status = $state<'loading' | 'live' | 'failed'>('loading');
  problem = $state('');
  /** Called for every changed row, also while updates are paused. */
  onRow?: (change: Change<Row>) => void;

  /** Follows a request, for example `connections?transport=sse`. Returns a function that ends it. */
  follow(request: string): () => void {
    const stop = new AbortController();
    this.status = 'loading';
    void this.#run(request, stop.signal);
    return () => stop.abort();
  }

  async #run(request: string, signal: AbortSignal): Promise<void> {
    for (let failures = 0; !signal.aborted; ) {
      try {
        const { channel } = await post<{ channel: string }>('follow', { request });
        if (signal.aborted) return;
        await this.#read(channel, signal, () => (failures = 0));
      } catch (thrown) {
        if (signal.aborted) return;
        [this.status, this.problem] = ['failed', reasonOf(thrown)];
        // The same request would be refused again.
        if (thrown instanceof Failure && [400, 401, 403, 404].includes(thrown.status)) return;
      }
      await pause(RETRY_MS[Math.min(failures++, RETRY_MS.length - 1)]!, signal);
    }
  }

  /** Reads the channel of a follow until the server ends it. */
  #read(channel: string, signal: AbortSignal, onComplete: () => void): Promise<void> {
    return new Promise((resolve) => {
      const rows = keyedState<Row | Rest>(mr, channel);
      let timer: ReturnType<typeof setTimeout> | undefined;
      const show = (): void => {
        timer = undefined;
        if (!rows.complete || signal.aborted) return;
        if (paused || document.hidden) return later();
        const found: Row[] = [];
        for (const { key, value } of rows) if (key !== REST) found.push(value as Row);
        this.rows = found;
        const { error, ...rest } = (rows.get(REST) ?? {}) as Rest & { error?: { detail?: string; title?: string } };
        this.rest = rest as unknown as Rest;
        // The server repeats the request, so the next answer may be good.
        [this.status, this.problem] = error ? ['failed', error.detail ?? error.title ?? 'the request failed'] : ['live', ''];
      };
      const later = (): void => void (timer ??= setTimeout(show, SHOW_MS));
      const end = (): void => {
        clearTimeout(timer);
        resolve();
      };
      rows.on(({ key, entry }) => {
        if (key !== REST) this.onRow?.({ key, row: entry?.value as Row | undefined, timeMs: entry?.publishedAt ?? Date.now() });
        if (rows.complete) later();
      }, end);
      rows.ready.then(() => {
        onComplete();
        clearTimeout(timer);
        show();
      }, () => {});
      signal.addEventListener('abort', () => {
        end();
        void rows.close();
      });
    });
  }
}

const pause = (ms: number, signal: AbortSignal): Promise<void> =>
  new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener('abort', () => {
      clearTimeout(timer);
      resolve();
    });
  });
