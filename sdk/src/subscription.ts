// One consumer: a bounded buffer with an iterator, or listeners. Where its events come from is the hub's matter.
import { MillraceError, aborted } from './errors.js';
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

export function toEvent(message: Message, at: Position, replayed: boolean): Event {
  const { channel, position, time, key, data, encoding } = message;
  return {
    data: encoding === 'base64' ? Uint8Array.from(atob(data as string), (c) => c.charCodeAt(0)) : data,
    offset: at.offset,
    position,
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
  /** Reads from the wire. Until then it reads history, at its own pace, to where the wire is. */
  live = false;
  /** The last position of every channel heard; more than one on a pattern. */
  readonly #heard = new Map<string, Position>();
  #queue: Event<T>[] = [];
  #latest: Event<T> | undefined;
  #listeners = new Map<object, { fn: (event: Event<T>) => void; end: ((cause?: MillraceError) => void) | undefined }>();
  #iterators = 0;
  #over = false;
  #cause: MillraceError | undefined;
  #readers: (() => void)[] = [];
  #room: (() => void)[] = [];
  #onOver: (() => void)[] = [];
  #started!: (start: Start) => void;
  #unstarted!: (cause: MillraceError) => void;
  readonly #max: number;

  constructor(
    readonly channel: string,
    readonly options: SubscribeOptions<T>,
    readonly onClose: (consumer: Consumer<T>) => void,
  ) {
    this.#max = Math.max(1, options.buffer?.overflow === 'latest-only' ? 1 : (options.buffer?.max ?? 1024));
    this.ready = new Promise((resolve, reject) => {
      this.#started = resolve;
      this.#unstarted = reject;
    });
    // Whoever does not look at `ready` hears of it from the iterator, `on` or the client's state.
    this.ready.catch(() => {});
    const { signal } = options;
    if (signal) {
      const abort = (): void => this.end();
      signal.addEventListener('abort', abort, { once: true });
      this.#onOver.push(() => signal.removeEventListener('abort', abort));
    }
  }

  /** `fn` is called when this is over, at once if it is. */
  onOver(fn: () => void): void {
    if (this.#over) fn();
    else this.#onOver.push(fn);
  }

  get lag(): number {
    return this.#queue.length;
  }

  latest(): Event<T> | undefined {
    return this.#latest;
  }

  get over(): boolean {
    return this.#over;
  }

  on(fn: (event: Event<T>) => void, end?: (cause?: MillraceError) => void): () => void {
    if (this.#over) {
      end?.(this.#cause);
      return () => {};
    }
    const id = {};
    this.#listeners.set(id, { fn, end });
    if (!this.#iterators) this.#tell(this.#queue.splice(0));
    return () => {
      if (this.#listeners.delete(id) && !this.#listeners.size && !this.#iterators) this.end();
    };
  }

  [Symbol.asyncIterator](): AsyncIterator<Event<T>> {
    this.#iterators++;
    let left = false;
    return {
      next: async () => {
        while (!left) {
          const event = this.#queue.shift();
          if (event) {
            this.#hasRoom();
            return { done: false, value: event };
          }
          if (this.#over) {
            if (this.#cause) throw this.#cause;
            break;
          }
          await new Promise<void>((resolve) => this.#readers.push(resolve));
        }
        return { done: true, value: undefined };
      },
      return: async () => {
        left = true;
        this.#wake();
        if (!--this.#iterators && !this.#listeners.size) this.end();
        return { done: true, value: undefined };
      },
    };
  }

  close(): Promise<void> {
    this.end();
    return Promise.resolve();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  /** `position` is a time on a pattern, which has no single position. */
  start(position: string, recovered: boolean): void {
    const at = position.includes(':') ? parsePosition(position) : undefined;
    if (at && !this.#heard.size) this.#heard.set(this.channel, at);
    this.#started({ offset: at?.offset ?? 0n, position, recovered });
  }

  /** Ends it. With a cause, what is buffered can still be read; then the iterator throws it. */
  end(cause?: MillraceError): void {
    if (this.#over) return;
    this.#over = true;
    this.#cause = cause;
    if (!cause) this.#queue = [];
    this.#unstarted(cause ?? aborted());
    for (const fn of this.#onOver.splice(0)) fn();
    this.#wake();
    this.#hasRoom();
    for (const { end } of this.#listeners.values()) end?.(cause);
    this.#listeners.clear();
    this.onClose(this);
  }

  /** Takes the publication unless it was seen already. */
  accept(message: Message, at: Position, replayed: boolean): void {
    if (this.#over || !isNews(at, this.#heard.get(message.channel))) return;
    this.#heard.set(message.channel, at);
    const event = toEvent(message, at, replayed) as Event<T>;
    const { schema } = this.options;
    if (schema) {
      const result = schema['~standard'].validate(event.data) as { value?: T; issues?: readonly { message: string }[] };
      if (result.issues || !('value' in result)) {
        const detail = result.issues?.[0]?.message ?? 'the schema must be synchronous';
        return this.end(new MillraceError('rejected', `${message.channel} ${message.position}: ${detail}`, { reason: 'schema' }));
      }
      (event as { data: unknown }).data = result.value;
    }
    this.#latest = event;
    this.#tell([event]);
    if (this.#listeners.size && !this.#iterators) return;
    if (this.#queue.length >= this.#max) {
      if (this.options.buffer?.overflow === 'error') {
        return this.end(new MillraceError('slow-consumer', `${this.channel}: more than ${this.#max} events wait to be read`));
      }
      this.#queue.shift();
      this.dropped++;
    }
    this.#queue.push(event);
    this.#wake();
  }

  /** Whether the gap concerned this consumer. */
  miss(channel: string, gap: Gap): boolean {
    const to = parsePosition(gap.to);
    if (this.#over || !isNews(to, this.#heard.get(channel))) return false;
    this.#heard.set(channel, to);
    this.gaps++;
    this.lastGap = { from: gap.from, to: gap.to };
    if (this.options.onGap === 'error') {
      this.end(new MillraceError('gap', `${channel}: ${gap.from} to ${gap.to} is no longer in history`));
    }
    return true;
  }

  /** Settles when half the buffer is free. */
  async room(): Promise<void> {
    while (!this.#over && this.#queue.length > this.#max / 2) {
      await new Promise<void>((resolve) => this.#room.push(resolve));
    }
  }

  #tell(events: Event<T>[]): void {
    for (const event of events) {
      for (const { fn } of [...this.#listeners.values()]) {
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
  }

  #wake(): void {
    for (const resolve of this.#readers.splice(0)) resolve();
  }

  #hasRoom(): void {
    for (const resolve of this.#room.splice(0)) resolve();
  }
}
