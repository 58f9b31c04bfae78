// One consumer: a bounded buffer with an iterator, or listeners. Where its events come from is the hub's matter.
import { MillraceError, aborted } from './errors.js';
import { listen } from './listen.js';
import { isNews, parsePosition, type Position } from './position.js';
import type { Event, Gap, SubscribeOptions, Subscription } from './types.js';

/** A publication as every transport reports it. */
export interface Message {
  readonly channel: string;
  readonly position: string;
  readonly time: number;
  readonly key?: string;
  readonly data: unknown;
  readonly encoding?: 'base64';
}

export function toEvent({ channel, time, key, data, encoding }: Message, { offset, text }: Position, replayed: boolean): Event {
  return {
    data: encoding ? Uint8Array.from(atob(data as string), (c) => c.charCodeAt(0)) : data,
    offset,
    position: text,
    channel,
    publishedAt: time,
    receivedAt: Date.now(),
    replayed,
    ...(key !== undefined && { key }),
  };
}

type Start = Awaited<Subscription['ready']>;

export class Consumer<T> implements Subscription<T> {
  readonly ready: Promise<Start>;
  dropped = 0;
  gaps = 0;
  lastGap: Gap | undefined;
  over = false;
  /** Reads from the wire. Until then it reads history, at its own pace, to where the wire is. */
  live = true;
  /** Undefined on a pattern: there the wire knows what is news. */
  #at: Position | undefined;
  #queue: Event<T>[] = [];
  #latest: Event<T> | undefined;
  #listeners = new Set<{ fn: (event: Event<T>) => void; end: ((cause?: MillraceError) => void) | undefined }>();
  #iterators = 0;
  #cause: MillraceError | undefined;
  /** Whoever waits for an event, for room, or for the end. */
  #waiting: (() => void)[] = [];
  #started!: (start: Start) => void;
  #unstarted!: (cause: MillraceError) => void;
  #off: () => void;
  readonly #max: number;

  constructor(
    readonly channel: string,
    readonly options: SubscribeOptions<T>,
    readonly onEnd: (consumer: Consumer<T>) => void,
  ) {
    const { buffer, signal } = options;
    this.#max = buffer?.overflow === 'latest-only' ? 1 : (buffer?.max ?? 1024);
    this.ready = new Promise((resolve, reject) => {
      this.#started = resolve;
      this.#unstarted = reject;
    });
    // Whoever does not look at `ready` hears of it from the iterator, `on` or the client's state.
    this.ready.catch(() => {});
    this.#off = listen(signal, 'abort', () => this.end());
  }

  get lag(): number {
    return this.#queue.length;
  }

  latest(): Event<T> | undefined {
    return this.#latest;
  }

  on(fn: (event: Event<T>) => void, end?: (cause?: MillraceError) => void): () => void {
    const listener = { fn, end };
    if (this.over) end?.(this.#cause);
    else this.#listeners.add(listener);
    if (!this.#iterators) this.#queue.splice(0).forEach((event) => this.#tell(event));
    return () => void (this.#listeners.delete(listener) && this.#left());
  }

  [Symbol.asyncIterator](): AsyncIterator<Event<T>> {
    this.#iterators++;
    let left = false;
    const next = async (): Promise<IteratorResult<Event<T>>> => {
      for (;;) {
        const value = left ? undefined : this.#queue.shift();
        if (value) {
          this.#stir();
          return { done: false, value };
        }
        if (this.over && this.#cause && !left) throw this.#cause;
        if (this.over || left) return { done: true, value: undefined };
        await this.#change();
      }
    };
    return {
      next,
      return: async () => {
        if (!left) this.#iterators--;
        left = true;
        this.#stir();
        this.#left();
        return { done: true, value: undefined };
      },
    };
  }

  async close(): Promise<void> {
    this.end();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  start(at: Position, recovered: boolean): void {
    this.#at ??= at;
    this.#started({ offset: at.offset, position: at.text, recovered });
  }

  /** On a pattern, which has no position: only the server's time, in ms. */
  startPattern(time: string, recovered: boolean): void {
    this.#started({ offset: 0n, position: time, recovered });
  }

  /** Ends it. With a cause, what is buffered can still be read; then the iterator throws it. */
  end(cause?: MillraceError): void {
    if (this.over) return;
    this.over = true;
    this.#cause = cause;
    if (!cause) this.#queue = [];
    this.#unstarted(cause ?? aborted());
    this.#off();
    this.#stir();
    for (const { end } of this.#listeners) end?.(cause);
    this.#listeners.clear();
    this.onEnd(this);
  }

  /** Takes the publication unless it was seen already. */
  accept(message: Message, at: Position, replayed: boolean): void {
    if (this.over || (this.#at && !isNews(at, this.#at))) return;
    if (this.#at) this.#at = at;
    const event = toEvent(message, at, replayed) as Event<T>;
    const { schema, buffer } = this.options;
    if (schema) {
      const { issues, value } = schema['~standard'].validate(event.data) as { value?: T; issues?: readonly { message: string }[] };
      if (issues) return this.end(new MillraceError('rejected', `${at.text}: ${issues[0]?.message}`, { reason: 'schema' }));
      (event as { data: unknown }).data = value;
    }
    this.#latest = event;
    this.#tell(event);
    if (this.#listeners.size && !this.#iterators) return;
    if (this.#queue.length >= this.#max) {
      if (buffer?.overflow === 'error') return this.end(new MillraceError('slow-consumer', `${this.#max} events wait to be read`));
      this.#queue.shift();
      this.dropped++;
    }
    this.#queue.push(event);
    this.#stir();
  }

  miss(channel: string, { from, to }: Gap): void {
    this.gaps++;
    this.lastGap = { from, to };
    if (this.#at) this.#at = parsePosition(to);
    if (this.options.onGap === 'error') this.end(new MillraceError('gap', `${channel}: ${from} to ${to} is no longer in history`));
  }

  /** Settles when half the buffer is free, or it is over. */
  async room(): Promise<void> {
    while (!this.over && this.#queue.length > this.#max / 2) await this.#change();
  }

  #tell(event: Event<T>): void {
    for (const { fn } of this.#listeners) {
      try {
        fn(event);
      } catch (thrown) {
        // A listener's defect is its own: it surfaces as uncaught and stops nobody else.
        queueMicrotask(() => {
          throw thrown;
        });
      }
    }
  }

  /** The last listener or iterator gone closes it. */
  #left(): void {
    if (!this.#listeners.size && !this.#iterators) this.end();
  }

  #change(): Promise<void> {
    return new Promise((resolve) => this.#waiting.push(resolve));
  }

  #stir(): void {
    for (const resolve of this.#waiting.splice(0)) resolve();
  }
}
