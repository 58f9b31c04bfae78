/**
 * Messages that the server has not stored yet. They are kept in the browser, so they survive a reload, and are sent one
 * after the other. The idempotency key prevents a second publication for 5 minutes; after that, the key of the message
 * prevents that readers see it twice.
 *
 * Each page sends its own entries. A page that opens takes over the entries of pages that have ended: a page holds a
 * lock (Web Locks) while it is open. Where the browser has no locks (pages without TLS on other machines), the page
 * takes over all entries; both pages may then send an entry, which is still published once.
 */
import type { Client, MillraceError } from '@millrace/client';
import type { Content } from './post';

const PREFIX = 'millrace-chat-outbox';
/** Maximum number of messages that wait. */
export const WAITING_MAX = 100;
const RETRY_MS = 2_000;

export interface Entry {
  readonly channel: string;
  readonly key: string;
  readonly content: Content;
  /** Time of writing, ms since 1970. Entries are sent in this order. */
  readonly at: number;
  readonly idempotencyKey: string;
}

export interface Waiting extends Entry {
  /** `sent`: the server has stored the entry, but this page has not received it yet. */
  readonly state: 'waiting' | 'sent' | 'refused';
  /** The server's reason; only if it has refused the entry. */
  readonly reason?: string;
  /** Position of the publication; only if the server has stored it. */
  readonly position?: string;
}

export const randomId = (): string => Array.from(crypto.getRandomValues(new Uint8Array(8)), (byte) => byte.toString(36).padStart(2, '0')).join('');

function isEntry(value: unknown): value is Entry {
  const { channel, key, content, at, idempotencyKey } = (value ?? {}) as Record<string, unknown>;
  return [channel, key, idempotencyKey].every((text) => typeof text === 'string') && typeof at === 'number' && typeof content === 'object' && content !== null;
}

export class Outbox {
  readonly #page = randomId();
  readonly #entries: (Waiting & { readonly item: string })[] = [];
  readonly #user: string;
  #sending = false;
  #lastAt = 0;

  /**
   * `user` separates the entries of several users of this browser. `changed` is called after each change. `isReceived`
   * returns whether this page has received the publication at this position.
   */
  constructor(
    private readonly client: Pick<Client, 'publish' | 'state'>,
    user: string,
    private readonly changed: () => void,
    private readonly isReceived: (channel: string, position: string) => boolean,
    private readonly storage: Pick<Storage, 'length' | 'key' | 'getItem' | 'setItem' | 'removeItem'> = localStorage,
    private readonly locks: LockManager | undefined = globalThis.navigator?.locks,
  ) {
    // The names of the stored entries are separated by spaces.
    this.#user = encodeURIComponent(user);
  }

  get waiting(): readonly Waiting[] {
    return this.#entries;
  }

  get isFull(): boolean {
    return this.#entries.length >= WAITING_MAX;
  }

  /** Takes over the entries of pages that have ended, and sends them. */
  async open(): Promise<void> {
    const name = (page: string): string => `${PREFIX} ${this.#user} ${page}`;
    // The lock is held until the page ends.
    void this.locks?.request(name(this.#page), () => new Promise(() => {})).catch(() => {});
    for (const page of new Set(this.#items().map((item) => this.#pageOf(item)))) {
      if (page === this.#page) continue;
      if (!this.locks) this.#takeOver(page);
      else await this.locks.request(name(page), { ifAvailable: true }, (lock) => lock && this.#takeOver(page)).catch(() => {});
    }
  }

  /** Adds an entry, unless too many wait. */
  add(channel: string, key: string, content: Content): void {
    if (this.isFull) return;
    const at = (this.#lastAt = Math.max(Date.now(), this.#lastAt + 1));
    this.#keep({ channel, key, content, at, idempotencyKey: randomId() });
    this.#change();
  }

  /** Forgets the stored entries that this page has received. */
  settle(): void {
    for (const { item, channel, position } of [...this.#entries]) if (position && this.isReceived(channel, position)) this.#drop(item);
  }

  /** Forgets an entry that the user has discarded. */
  discard(idempotencyKey: string): void {
    for (const { item } of this.#entries.filter((entry) => entry.idempotencyKey === idempotencyKey)) this.#drop(item);
    this.changed();
  }

  /** Sends a refused entry again. */
  repeat(idempotencyKey: string): void {
    const index = this.#entries.findIndex((entry) => entry.idempotencyKey === idempotencyKey);
    if (index < 0) return;
    this.#entries[index] = { ...this.#entries[index]!, state: 'waiting' };
    this.#change();
  }

  #change(): void {
    this.changed();
    void this.#send();
  }

  async #send(): Promise<void> {
    if (this.#sending) return;
    this.#sending = true;
    try {
      for (;;) {
        const entry = this.#entries.find(({ state }) => state === 'waiting');
        if (!entry || this.#isClosed()) return;
        const { channel, key, content, idempotencyKey, item } = entry;
        try {
          const { position } = await this.client.publish(channel, content, { key, idempotencyKey });
          this.storage.removeItem(item);
          this.#replace(item, { state: 'sent', position });
          this.settle();
        } catch (thrown) {
          const { retryable, message } = thrown as MillraceError;
          if (this.#isClosed()) return;
          if (retryable) await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
          else this.#replace(item, { state: 'refused', reason: message });
        }
        this.changed();
      }
    } finally {
      this.#sending = false;
    }
  }

  /** A closed client sends nothing. The entries stay in the browser. */
  #isClosed(): boolean {
    return this.client.state.name === 'closed';
  }

  #replace(item: string, change: Partial<Waiting>): void {
    const index = this.#entries.findIndex((entry) => entry.item === item);
    if (index >= 0) this.#entries[index] = { ...this.#entries[index]!, ...change };
  }

  #keep(entry: Entry): void {
    const item = `${PREFIX} ${this.#user} ${this.#page} ${entry.idempotencyKey}`;
    try {
      this.storage.setItem(item, JSON.stringify(entry));
    } catch {
      // The storage is full or not available. The entry is kept in this page only.
    }
    this.#entries.push({ ...entry, item, state: 'waiting' });
    this.#entries.sort((a, b) => a.at - b.at);
  }

  #takeOver(page: string): void {
    for (const item of this.#items().filter((item) => this.#pageOf(item) === page)) {
      let entry: unknown;
      try {
        entry = JSON.parse(this.storage.getItem(item) ?? 'null');
      } catch {
        entry = null;
      }
      if (isEntry(entry) && this.#entries.length < WAITING_MAX) this.#keep(entry);
      this.storage.removeItem(item);
    }
    this.#change();
  }

  #drop(item: string): void {
    this.storage.removeItem(item);
    const index = this.#entries.findIndex((entry) => entry.item === item);
    if (index >= 0) this.#entries.splice(index, 1);
  }

  #pageOf(item: string): string {
    return item.split(' ').at(-2)!;
  }

  /** Returns the names of the stored entries of this user. */
  #items(): string[] {
    const names = Array.from({ length: this.storage.length }, (_, index) => this.storage.key(index) ?? '');
    return names.filter((name) => name.startsWith(`${PREFIX} ${this.#user} `));
  }
}
