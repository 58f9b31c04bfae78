/**
 * Questions to a car: requests that wait on the server until the car answers. The state `requests/{car}` has all that
 * wait or were answered within a day. Source: docs/how-to/ask-a-device.md.
 */
import type { Client } from '@millrace/client';
import { state } from '@millrace/client/state';
import { request } from '../../../lib/request';
import type { CarId } from '../telemetry';

export type Progress = 'queued' | 'sent' | 'answered' | 'expired';

export interface CarRequest {
  readonly id: string;
  readonly state: Progress;
  readonly request: unknown;
  /** Milliseconds since 1970, by the server's clock. */
  readonly asked_ms: number;
  readonly expires_ms: number;
  readonly answer?: unknown;
}

/** The prepared questions, as cars get them. */
export const QUESTIONS = { fuel: { ask: 'fuel' }, codes: { ask: 'trouble-codes' }, position: { ask: 'position' }, clear: { do: 'clear-trouble-codes' } } as const;
export type Question = keyof typeof QUESTIONS;

const isObject = (value: unknown): value is Record<string, unknown> => typeof value === 'object' && value !== null;

const isRequest = (value: unknown): value is CarRequest =>
  isObject(value) && typeof value.id === 'string' && typeof value.state === 'string' && Number.isFinite(value.asked_ms) && Number.isFinite(value.expires_ms);

/** Returns the question of a request; undefined for a request of another application. */
export function questionOf({ request }: CarRequest): Question | undefined {
  if (!isObject(request)) return undefined;
  return (Object.keys(QUESTIONS) as Question[]).find((name) => Object.entries(QUESTIONS[name]).every(([key, value]) => request[key] === value));
}

/** A request about a file: `send` asks the car for a file, `read` asks the car to take one. */
export interface FileRequest {
  readonly kind: 'send' | 'read';
  readonly name: string;
  /** Present once the car has sent or taken the file. */
  readonly file?: { readonly name: string; readonly bytes: number; readonly sha256: string; readonly channel: string };
  readonly error?: string;
}

/** Returns the request about a file; undefined for another request. */
export function fileRequestOf({ request, answer }: CarRequest): FileRequest | undefined {
  if (!isObject(request)) return undefined;
  const kind = typeof request.send === 'string' ? 'send' : typeof request.read === 'string' ? 'read' : undefined;
  if (!kind) return undefined;
  const name = String(kind === 'send' ? request.send : (request.name ?? request.read));
  const { name: of, bytes, sha256, channel, error } = isObject(answer) ? answer : {};
  const file = typeof bytes === 'number' && typeof sha256 === 'string' && typeof channel === 'string' ? { name: typeof of === 'string' ? of : name, bytes, sha256, channel } : undefined;
  return { kind, name, ...(file && { file }), ...(typeof error === 'string' && { error }) };
}

/** The requests of a car, live. */
export class Requests {
  /** Difference of the server's clock to that of this page, as far as live changes allow, ms. */
  skew = 0;
  readonly #all = new Map<string, CarRequest>();
  readonly #close: () => void;

  /** Calls `changed` after each change, and `ended` if the state cannot be read. */
  constructor(client: Client<any>, car: CarId, changed: () => void, ended: (reason: string) => void) {
    const kept = state<unknown>(client, `requests/${car}`);
    kept.on(({ key, entry }) => {
      if (entry && isRequest(entry.value)) {
        if (!entry.replayed) this.skew = entry.publishedAt - entry.receivedAt;
        this.#all.set(key, entry.value);
      } else this.#expire(key);
      changed();
    }, (cause) => cause && ended(cause.message));
    this.#close = () => void kept.close();
  }

  /** Returns the requests, newest first, as they are at a time of this page. */
  list(now: number): CarRequest[] {
    const time = now + this.skew;
    const at = (each: CarRequest): CarRequest => (each.state !== 'answered' && each.expires_ms <= time ? { ...each, state: 'expired' } : each);
    return [...this.#all.values()].map(at).sort((a, b) => b.asked_ms - a.asked_ms);
  }

  close(): void {
    this.#close();
  }

  /** The server deletes a request that has expired; the page keeps it in its list. */
  #expire(key: string): void {
    const known = this.#all.get(key);
    if (!known) return;
    if (known.state === 'answered') this.#all.delete(key);
    else this.#all.set(key, { ...known, state: 'expired' });
  }
}

/** Stores a request. `ttl`: time for which it may wait, such as `1h`. Throws `Refused`. */
export const ask = (car: CarId, body: unknown, ttl: string, token: string | undefined): Promise<CarRequest> =>
  request<CarRequest>(`/v1/requests/${encodeURIComponent(car)}?ttl=${ttl}`, token, { method: 'POST', body: JSON.stringify(body) });
