// Every HTTP request of the client: address, cache-busting, token, problem details.
import { MillraceError, aborted, refused, toError, type Refusal } from './errors.js';
import { parsePosition } from './position.js';
import type { Message } from './subscription.js';
import type { ConnectOptions, Gap, TokenReason } from './types.js';

export interface Ask {
  readonly accept?: string;
  readonly headers?: Record<string, string>;
  readonly body?: string | Uint8Array<ArrayBuffer>;
  readonly signal?: AbortSignal | undefined;
  /** For the headers to arrive. Default 10 s. */
  readonly timeoutMs?: number;
}

export type Query = readonly (readonly [name: string, value: string | number | undefined])[];

export interface Page {
  readonly position: string;
  readonly messages: readonly Message[];
  readonly gap?: Gap;
}

export class Http {
  readonly base: string;
  readonly #options: ConnectOptions;
  readonly #count: (bytesIn: number, bytesOut: number) => void;
  #token: Promise<string> | undefined;
  #accepted = false;
  #busting = 0;

  constructor(url: string | URL, options: ConnectOptions, count: (bytesIn: number, bytesOut: number) => void) {
    const page = (globalThis as { location?: { href: string } }).location?.href;
    this.base = new URL(url, page).href.replace(/[?#].*$/, '').replace(/\/+$/, '');
    this.#options = options;
    this.#count = count;
  }

  /** A new connection asks for a new token: the old one may have expired while this machine slept. */
  renew(): void {
    this.#token = undefined;
    this.#accepted = false;
  }

  async token(signal: AbortSignal, reason?: TokenReason): Promise<string | undefined> {
    const { token } = this.#options;
    if (token === undefined) return undefined;
    if (reason) this.#token = undefined;
    this.#token ??= Promise.resolve(typeof token === 'string' ? token : token({ reason: reason ?? 'connect', signal }));
    const mine = this.#token;
    // A failed answer must not be what the next request gets.
    mine.catch(() => {
      if (this.#token === mine) this.#token = undefined;
    });
    return mine;
  }

  /** A response with a good status; anything else is thrown as MillraceError. */
  async request(path: string, query: Query, ask: Ask = {}): Promise<Response> {
    const controller = new AbortController();
    const abort = (): void => controller.abort();
    const { signal, body } = ask;
    if (signal?.aborted) throw aborted();
    signal?.addEventListener('abort', abort);
    let late = false;
    const timer = setTimeout(() => {
      late = true;
      abort();
    }, ask.timeoutMs ?? 10_000);
    try {
      for (let reason: TokenReason | undefined; ; ) {
        const token = await this.token(controller.signal, reason);
        const response = await this.#send(path, query, ask, token, controller.signal);
        if (response.status === 401 && !reason && typeof this.#options.token === 'function') {
          reason = this.#accepted ? 'expired' : 'rejected';
          await response.body?.cancel();
          continue;
        }
        if (!response.ok) throw await problem(response);
        this.#accepted = true;
        if (body) this.#count(0, body.length);
        return response;
      }
    } catch (thrown) {
      if (late) throw new MillraceError('timeout', `no answer from ${path}`);
      if (signal?.aborted) throw aborted();
      throw toError(thrown);
    } finally {
      clearTimeout(timer);
      // The body of a stream goes on being read: the signal must stay tied to it.
      if (!ask.accept || ask.accept === 'application/json') signal?.removeEventListener('abort', abort);
    }
  }

  #send(path: string, query: Query, ask: Ask, token: string | undefined, signal: AbortSignal): Promise<Response> {
    const url = new URL(this.base + path);
    for (const [name, value] of query) if (value !== undefined) url.searchParams.append(name, String(value));
    url.searchParams.append('_', `${Date.now().toString(36)}${(this.#busting++).toString(36)}`);
    const headers = { Accept: ask.accept ?? 'application/json', ...ask.headers, ...(token !== undefined && { Authorization: `Bearer ${token}` }) };
    const send = this.#options.fetch ?? fetch;
    return send(url, { signal, headers, cache: 'no-store', ...(ask.body !== undefined && { method: 'POST', body: ask.body }) });
  }

  /** A JSON answer; undefined for 204. */
  async json<T>(path: string, query: Query, ask?: Ask): Promise<{ body: T | undefined; response: Response }> {
    const response = await this.request(path, query, ask);
    try {
      const text = await response.text();
      this.#count(text.length, 0);
      return { body: text ? (JSON.parse(text) as T) : undefined, response };
    } catch (thrown) {
      if (ask?.signal?.aborted) throw aborted();
      throw thrown instanceof SyntaxError ? new MillraceError('protocol', `${path} did not answer in JSON`) : toError(thrown);
    }
  }

  /** Publications of one channel after `since`. */
  async page(channel: string, query: Query, signal?: AbortSignal): Promise<Page> {
    const { body, response } = await this.json<Page>(`/v1/channels/${channel}`, query, { signal });
    const position = body?.position ?? response.headers.get('Millrace-Position') ?? '';
    parsePosition(position);
    return { ...body, position, messages: (body?.messages ?? []).map((message) => ({ ...message, channel })) };
  }
}

async function problem(response: Response): Promise<MillraceError> {
  const text = await response.text().catch(() => '');
  let refusal: Refusal = {};
  try {
    refusal = JSON.parse(text) as Refusal;
  } catch {
    // Not ours: a proxy between here and the server answered.
  }
  const seconds = Number(response.headers.get('Retry-After') ?? NaN);
  return refused(refusal, response.status, Number.isNaN(seconds) ? undefined : seconds * 1000);
}

/** The server's clock by an answer's header, to the second; this machine's if it is not told. */
export function serverTime(response: Response): number {
  return Date.parse(response.headers.get('Date') ?? '') || Date.now();
}
