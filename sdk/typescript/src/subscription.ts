// A consumer of a channel or pattern. It buffers events, delivers them to an iterator or to listeners, and records
// gaps.
import { MillraceError, toError } from './errors.js';
import { call, onAbort } from './listen.js';
import { offsetOf } from './position.js';
import type { Event, Gap, SubscribeOptions, Subscription } from './types.js';

/** A publication as every transport reports it. */
export interface Message {
  readonly channel: string;
  readonly position: string;
  readonly time: number;
  readonly key?: string;
  /** Absent in deletions and marks. */
  readonly data?: unknown;
  readonly encoding?: 'base64';
  readonly deleted?: true;
  readonly complete?: true;
}

/** A publication, or a gap in place of missing publications. */
export type Item = Message | (Gap & { readonly channel: string });

export function toEvent({ time, data, encoding, ...message }: Message, replayed: boolean): Event {
  return {
    ...message,
    data: encoding ? Uint8Array.from(atob(data as string), (c) => c.charCodeAt(0)) : data,
    offset: offsetOf(message.position),
    publishedAt: time,
    receivedAt: Date.now(),
    replayed,
  };
}

type Start = Awaited<Subscription['ready']>;

/** The subscription as the hub sees it. */
export interface Consumer<T> {
  readonly subscription: Subscription<T>;
  readonly options: SubscribeOptions<T>;
  /**
   * Position after which the consumer receives from the wire; '' means everything. While undefined, the consumer reads
   * history at its own pace.
   */
  live?: string;
  /**
   * Settles `ready`. Only the first call counts. A pattern has no position, so `position` is then the server's time.
   */
  start(position: string, recovered?: boolean, offset?: bigint): void;
  take(item: Item, replayed: boolean): void;
  /** Ends the subscription. With a cause, the iterator first returns the buffered events and then throws the cause. */
  end(cause?: MillraceError): void;
  /** Settles with true when half the buffer is free, or with false when the subscription has ended. */
  hasRoom(): Promise<boolean>;
}

export function consumer<T>(channel: string, options: SubscribeOptions<T>, onEnd: () => void): Consumer<T> {
  const { buffer, from, schema, signal, onGap } = options;
  const max = buffer?.overflow === 'latest-only' ? 1 : (buffer?.max ?? 1024);
  const listeners = new Set<{ fn: (event: Event<T>) => void; end: ((cause?: MillraceError) => void) | undefined }>();
  let queue: Event<T>[] = [];
  let latest: Event<T> | undefined;
  let iterators = 0;
  let over = false;
  let cause: MillraceError | undefined;
  /** Resolvers waiting for an event, for free buffer space, or for the end. */
  const waiting: (() => void)[] = [];
  let off: (() => void) | undefined;
  let resolveReady!: (start: Start) => void;
  let rejectReady!: (cause: MillraceError) => void;
  const ready = new Promise<Start>((resolve, reject) => {
    resolveReady = resolve;
    rejectReady = reject;
  });
  // If the application ignores `ready`, the iterator, `on` and the client's state still report the error.
  ready.catch(() => {});

  const change = (): Promise<void> => new Promise((resolve) => waiting.push(resolve));
  const wakeWaiting = (): void => waiting.splice(0).forEach((resolve) => resolve());
  const notify = (event: Event<T>): void => listeners.forEach(({ fn }) => call(fn, event));
  /** Closes the subscription if no listener and no iterator is left. */
  const closeIfUnused = (): void => void (listeners.size || iterators || end());

  const close = async (): Promise<void> => end();

  function end(why?: MillraceError): void {
    if (over) return;
    over = true;
    cause = why;
    if (!why) queue = [];
    rejectReady(why ?? toError('closed', 'aborted'));
    off?.();
    wakeWaiting();
    listeners.forEach(({ end }) => end && call(end, why));
    listeners.clear();
    onEnd();
  }

  function take(item: Item, replayed: boolean): void {
    if (over) return;
    if ('to' in item) {
      const { from: after, to } = item;
      subscription.gaps++;
      subscription.lastGap = { from: after, to };
      if (onGap === 'error' || from === 'state') end(new MillraceError('gap', `${item.channel}: lost ${after} to ${to}`));
      return;
    }
    const event = toEvent(item, replayed) as Event<T>;
    if (schema && 'data' in item) {
      try {
        const { issues, value } = schema['~standard'].validate(event.data) as { value: T; issues?: readonly { message: string }[] };
        if (issues) throw issues[0]?.message;
        (event as { data: T }).data = value;
      } catch (thrown) {
        return end(new MillraceError('rejected', `${item.position}: ${thrown}`, { reason: 'schema' }));
      }
    }
    latest = event;
    notify(event);
    if (listeners.size && !iterators) return;
    if (queue.length >= max) {
      if (buffer?.overflow === 'error') return end(new MillraceError('slow-consumer', `${max} unread events`));
      queue.shift();
      subscription.dropped++;
    }
    queue.push(event);
    wakeWaiting();
  }

  const subscription = {
    channel,
    ready,
    dropped: 0,
    gaps: 0,
    lastGap: undefined as Gap | undefined,
    get lag() {
      return queue.length;
    },
    latest: () => latest,
    on(fn: (event: Event<T>) => void, end?: (cause?: MillraceError) => void) {
      const listener = { fn, end };
      if (over) end?.(cause);
      else listeners.add(listener);
      if (!iterators) queue.splice(0).forEach(notify);
      return () => void (listeners.delete(listener) && closeIfUnused());
    },
    [Symbol.asyncIterator](): AsyncIterator<Event<T>> {
      let done = false;
      iterators++;
      return {
        async next() {
          while (!done && !over && !queue.length) await change();
          const value = done ? undefined : queue.shift();
          if (!value && !done && cause) throw cause;
          wakeWaiting();
          return { done: !value, value } as IteratorResult<Event<T>>;
        },
        async return() {
          if (!done) iterators--;
          done = true;
          wakeWaiting();
          closeIfUnused();
          return { done, value: undefined };
        },
      };
    },
    close,
    [Symbol.asyncDispose]: close,
  };
  off = onAbort(signal, close);
  return {
    subscription,
    options,
    start: (position, recovered = true, offset = offsetOf(position)) => resolveReady({ offset, position, recovered }),
    take,
    end,
    async hasRoom() {
      while (!over && queue.length > max / 2) await change();
      return !over;
    },
  };
}
