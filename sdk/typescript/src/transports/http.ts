// HTTP requests of the client: address, cache busting, token, problem details.
import { MillraceError, problem, toError, unreachable } from '../errors.js';
import { offsetOf } from '../position.js';
import { onAbort } from '../listen.js';
import { tokenOf, type LinkHost, type Page } from '../link.js';
import { send, type SentHeaders } from '../request.js';
import type { TokenReason } from '../types.js';

export interface RequestOptions {
  readonly accept?: string;
  readonly headers?: SentHeaders;
  readonly body?: string | Uint8Array<ArrayBuffer> | undefined;
  /** Default: `POST` with a body, `GET` without one. */
  readonly method?: string | undefined;
  readonly signal?: AbortSignal | undefined;
  /** Time limit for the headers to arrive. Default 10 s. */
  readonly timeoutMs?: number;
}

export type Query = readonly (readonly [name: string, value: string | number | undefined])[];

/**
 * Sends the requests of one link. A new link asks for a new token, because the old one may have expired while this
 * machine was suspended.
 */
export class Http {
  readonly #host: LinkHost;
  #token: Promise<string | undefined> | undefined;
  #accepted = false;

  constructor(host: LinkHost) {
    this.#host = host;
  }

  /** Returns a response with a success status. Throws a MillraceError otherwise. */
  async request(path: string, query: Query, ask: RequestOptions = {}): Promise<Response> {
    const controller = new AbortController();
    const { signal, body } = ask;
    const off = onAbort(signal, () => controller.abort());
    let late = false;
    const timer = setTimeout(() => {
      late = true;
      controller.abort();
    }, ask.timeoutMs ?? 10_000);
    try {
      let renewed = false;
      for (let reason: TokenReason | undefined; ; ) {
        if (reason || !this.#token) this.#token = tokenOf(this.#host, reason ?? 'connect', controller.signal);
        const asked = this.#token;
        const token = await asked.catch((thrown) => {
          // The next request must not reuse the failed promise.
          if (this.#token === asked) this.#token = undefined;
          throw thrown;
        });
        const response = await this.#send(path, query, ask, token, controller.signal);
        if (response.status === 401 && !renewed && typeof this.#host.token === 'function') {
          renewed = true;
          // Another request may have renewed the token meanwhile.
          reason = this.#token === asked ? (this.#accepted ? 'expired' : 'rejected') : undefined;
          await response.body?.cancel();
          continue;
        }
        if (!response.ok) throw await problem(response);
        this.#accepted = true;
        this.#host.counts.bytesOut += body?.length ?? 0;
        return response;
      }
    } catch (thrown) {
      if (late) throw new MillraceError('timeout', `no response from ${this.#host.base}${path}`);
      if (signal?.aborted) throw toError('aborted', 'aborted');
      throw toError(thrown);
    } finally {
      clearTimeout(timer);
      // The body of a stream is still being read, so the signal stays connected to the request.
      if (!ask.accept) off();
    }
  }

  #send(path: string, query: Query, ask: RequestOptions, token: string | undefined, signal: AbortSignal): Promise<Response> {
    const url = new URL(this.#host.base + path);
    for (const [name, value] of [...query, ['_', Math.random()]] as Query) if (value !== undefined) url.searchParams.append(name, value as string);
    const headers = { Accept: ask.accept ?? 'application/json', ...ask.headers };
    const { body = null, method = body === null ? 'GET' : 'POST' } = ask;
    return send(this.#host.fetch, url, token, { signal, headers, cache: 'no-store', method, body });
  }

  /** Returns the JSON of a response; undefined for 204. */
  async json<T>(path: string, query: Query, ask?: RequestOptions): Promise<{ body: T | undefined; response: Response }> {
    const response = await this.request(path, query, ask);
    try {
      const text = await response.text();
      this.#host.counts.bytesIn += text.length;
      return { body: text ? (JSON.parse(text) as T) : undefined, response };
    } catch (thrown) {
      if (ask?.signal?.aborted) throw toError('aborted', 'aborted');
      throw thrown instanceof SyntaxError ? new MillraceError('protocol', `the response of ${path} is not JSON`) : unreachable(thrown, this.#host.base);
    }
  }

  /** Returns publications of one channel after `since`, up to `until` if it is given. */
  async page(channel: string, since: string, limit: number, signal?: AbortSignal, until?: string): Promise<Page> {
    const { body, response } = await this.json<Page>(`/v1/channels/${channel}`, [['since', since], ['until', until], ['limit', limit]], { signal });
    const position = body?.position ?? response.headers.get('Millrace-Position') ?? '';
    offsetOf(position);
    return { ...body, position, messages: body?.messages ?? [] };
  }
}

/** Parses `cars/1@5f:58,cars/2@5f:57`: the SSE id and the `Millrace-Position` of a reader of several channels. */
export function parsePositions(list: string): [channel: string, position: string][] {
  return list
    .split(',')
    .filter(Boolean)
    .map((item) => item.split('@') as [string, string]);
}

/**
 * Returns the server's clock from the `Date` header, to the second, or this machine's clock if the header is missing.
 */
export function serverTime(response: Response): number {
  return Date.parse(response.headers.get('Date')!) || Date.now();
}
