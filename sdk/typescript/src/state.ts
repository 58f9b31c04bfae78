// A keyed state as a live map: the newest value of each key, kept up to date over any transport.
//
//   import { millrace } from '@millrace/client';
//   import { state } from '@millrace/client/state';
//   const cars = state<{ speed: number }>(millrace('https://example.com'), 'fleet');
//   await cars.ready;
//   cars.on(({ key, entry }) => show(key, entry?.value));
//   await cars.set('car-1', { speed: 50 }, { ifMatch: cars.entry('car-1')?.position ?? '0' });
//
// Source: docs/reference/protocol.md, "State"; docs/how-to/keep-a-state.md.
import { payloadOf, randomKey } from './client.js';
import { MillraceError, toError } from './errors.js';
import type { Ask, Deletion, Draft } from './link.js';
import { call, signalOf } from './listen.js';
import { offsetOf } from './position.js';
import type { Client, Event, Published, SubscribeOptions, Subscription } from './types.js';

export { MillraceError, type ErrorCode } from './errors.js';

/** The newest value of a key. */
export interface StateEntry<T = unknown> {
  readonly key: string;
  readonly value: T;
  /** Pass this position as `ifMatch`, so that the change is refused if the entry has changed meanwhile. */
  readonly position: string;
  /** Milliseconds since 1970 by the server's clock, and by this machine's. */
  readonly publishedAt: number;
  readonly receivedAt: number;
  /** True if the entry was published before the current connection was opened. */
  readonly replayed: boolean;
}

/** A change of one key. */
export interface StateChange<T = unknown> {
  readonly key: string;
  /** The new entry; undefined if the key was deleted. */
  readonly entry: StateEntry<T> | undefined;
}

export interface ChangeOptions {
  /**
   * Position of the entry that the change replaces, or `0` if the key must not exist. If the entry has changed
   * meanwhile, the change rejects with a `PreconditionFailed`.
   */
  readonly ifMatch?: string;
  readonly signal?: AbortSignal | undefined;
  /** Deadline, ms; then the call rejects as if it was aborted, and the server may have made the change. */
  readonly timeoutMs?: number;
  /** Calls with the same key within 5 minutes change the state only once. Default: a random key per call. */
  readonly idempotencyKey?: string;
}

export interface SetOptions extends ChangeOptions {
  /** Seconds after which the server deletes the key, unless a newer value has replaced this one. */
  readonly ttl?: number;
}

/** A change with `ifMatch` was refused, because the entry has changed. Read the entry and decide again. */
export class PreconditionFailed extends MillraceError {
  declare readonly reason: 'precondition_failed';
  /** Current position of the entry, for the next `ifMatch`; `0` if the key does not exist. */
  readonly position: string;

  constructor({ message, code, retryable, reason, transport }: MillraceError) {
    super(code, message, { retryable, reason, transport });
    this.name = 'PreconditionFailed';
    this.position = /\S*$/.exec(message)![0];
  }
}

/**
 * A live keyed state, which is read until `close`. After lost changes, the whole state is read again, and only the
 * differences are reported. Meanwhile the known entries stay, and `complete` is false.
 */
export interface KeyedState<T = unknown> extends Iterable<StateEntry<T>>, AsyncDisposable {
  readonly channel: string;
  /** Settles when the state is complete for the first time. Rejects if the state cannot be read. */
  readonly ready: Promise<void>;
  /** False while the state is being read. */
  readonly complete: boolean;
  readonly size: number;
  get(key: string): T | undefined;
  entry(key: string): StateEntry<T> | undefined;
  /** Iterates over the entries; the keys are in the order in which this client has first received them. */
  entries(): IterableIterator<StateEntry<T>>;
  /** Calls `fn` after every change, and `end` once at the end. Returns a function that removes the listener. */
  on(fn: (change: StateChange<T>) => void, end?: (cause?: MillraceError) => void): () => void;
  /** Settles when the server has stored the value. The map contains the value when it is delivered. */
  set(key: string, value: T, options?: SetOptions): Promise<Published>;
  /** Settles when the server has stored the deletion. A key that does not exist can be deleted, too. */
  delete(key: string, options?: ChangeOptions): Promise<Published>;
  close(): Promise<void>;
}

/**
 * With the policy `latest`, a reader that is behind skips values that a newer one of the same key has replaced. Over a
 * data channel, changes can then be lost until the next change of the key.
 */
export type StateOptions<T> = Pick<SubscribeOptions<T>, 'signal' | 'schema' | 'policy'>;

/** Reads the keyed state `channel`. A client needs the permission to subscribe; to change the state, to publish. */
export function state<T = unknown>(mr: Pick<Client<any>, 'subscribe'>, channel: string, options: StateOptions<T> = {}): KeyedState<T> {
  const { ask } = mr as unknown as { ask: Ask };
  const entries = new Map<string, StateEntry<T>>();
  const listeners = new Set<{ fn: (change: StateChange<T>) => void; end: ((cause?: MillraceError) => void) | undefined }>();
  let subscription: Subscription<T>;
  /** Known keys that have had no event since the subscription began. When the state is complete, they do not exist. */
  let stale: Set<string>;
  let complete = false;
  let over = false;
  let ended: MillraceError | undefined;
  let resolve!: () => void;
  let reject!: (cause: MillraceError) => void;
  const ready = new Promise<void>((...settle) => ([resolve, reject] = settle));
  // An application that ignores `ready` learns of the end by `on`.
  ready.catch(() => {});

  function follow(): void {
    stale = new Set(entries.keys());
    complete = false;
    subscription = mr.subscribe(channel, { ...options, from: 'state' });
    subscription.on(take, (cause) => (cause?.code === 'gap' ? follow() : end(cause)));
  }

  function take({ key = '', data, position, publishedAt, receivedAt, replayed, deleted, complete: isComplete }: Event<T>): void {
    if (isComplete) {
      complete = true;
      stale.forEach(remove);
      resolve();
    } else if (deleted) remove(key);
    else set({ key, value: data, position, publishedAt, receivedAt, replayed });
  }

  function set(entry: StateEntry<T>): void {
    const { key } = entry;
    stale.delete(key);
    // After a gap, an entry that has not changed is no news.
    const isNew = entries.get(key)?.position !== entry.position;
    entries.set(key, entry);
    if (isNew) report({ key, entry });
  }

  function remove(key: string): void {
    stale.delete(key);
    if (entries.delete(key)) report({ key, entry: undefined });
  }

  function report(change: StateChange<T>): void {
    listeners.forEach(({ fn }) => call(fn, change));
  }

  function end(cause?: MillraceError): void {
    over = true;
    ended = cause;
    reject(cause ?? toError('closed', 'aborted'));
    listeners.forEach(({ end }) => end && call(end, cause));
    listeners.clear();
  }

  async function change(body: Partial<Draft & Deletion>, { ifMatch, signal, timeoutMs, idempotencyKey = randomKey() }: ChangeOptions): Promise<Published> {
    try {
      const { position } = await ask('publish', { channel, ...body, idempotency_key: idempotencyKey, if_match: ifMatch } as Draft, signalOf(signal, timeoutMs));
      return { position, offset: offsetOf(position) };
    } catch (thrown) {
      const error = toError(thrown);
      throw error.reason === 'precondition_failed' ? new PreconditionFailed(error) : error;
    }
  }

  follow();
  const close = (): Promise<void> => subscription.close();
  return {
    channel,
    ready,
    get complete() {
      return complete;
    },
    get size() {
      return entries.size;
    },
    get: (key) => entries.get(key)?.value,
    entry: (key) => entries.get(key),
    entries: () => entries.values(),
    [Symbol.iterator]: () => entries.values(),
    on(fn, end) {
      const listener = { fn, end };
      if (over) end?.(ended);
      else listeners.add(listener);
      return () => void listeners.delete(listener);
    },
    set: async (key, value, { ttl, ...options } = {}) => change({ key, ttl, ...payloadOf(value) }, options),
    delete: (key, options = {}) => change({ key, delete: true }, options),
    close,
    [Symbol.asyncDispose]: close,
  };
}
