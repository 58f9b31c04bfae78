/**
 * Members of a channel, and who is typing. Each page announces itself in a keyed state, with a time to live: so the
 * list has names without tokens, too, and works over every transport. A page that closes deletes its entry; the server
 * deletes the entry of a page that has disappeared.
 */
import type { Client, Subscription } from '@millrace/client';
import { state, type KeyedState } from '@millrace/client/state';
import { keyOf, type Me } from './me';
import { randomId } from './outbox';
import { authorOf, nameOf } from './post';

/** A browser lets the timers of a hidden page run once per minute. */
const ALIVE_S = 90;
const ANNOUNCE_MS = 30_000;
const ANNOUNCE_TIMEOUT_MS = 10_000;
const TYPING_S = 5;
const TYPING_EVERY_MS = 3_000;
const SHOWN_MAX = 200;
/** A page that is reloaded is absent for a moment. */
const LEAVE_MS = 3_000;

export interface Member {
  readonly id: string;
  readonly name: string;
  readonly verified: boolean;
  readonly isMe: boolean;
}

export const membersOf = (channel: string): string => `chat-lists/members/${channel}`;
export const typingOf = (channel: string): string => `chat/${channel}/typing`;

export class Members {
  /** Key of this page. A user may have several pages. */
  readonly #key: string;
  readonly #state: KeyedState<{ name?: unknown }>;
  readonly #typing: Subscription;
  readonly #typists = new Map<string, { name: string; until: number }>();
  readonly #over = new AbortController();
  #announcing: ReturnType<typeof setInterval> | undefined;
  #typedAt = 0;
  #known = new Map<string, string>();
  /** Members that are absent, until this is reported. */
  readonly #leaving = new Map<string, ReturnType<typeof setTimeout>>();
  #isComplete = false;

  constructor(
    private readonly client: Client,
    private readonly channel: string,
    private me: Me,
    private readonly token: string | undefined,
    private readonly changed: () => void,
    /** Called when a member has joined or left. */
    private readonly note: (text: string) => void,
  ) {
    this.#key = keyOf(me, randomId());
    this.#state = state(client, membersOf(channel));
    this.#state.on(() => this.#compare());
    void this.#state.ready.then(
      () => {
        this.#isComplete = true;
        this.#known = this.#names();
        this.changed();
      },
      () => {},
    );
    this.#typing = client.subscribe(typingOf(channel));
    this.#typing.on(({ key, data, replayed }) => {
      const { author, verified } = authorOf(key);
      if (replayed || !author || author === this.me.id) return;
      const name = verified ? author : nameOf((data as { name?: unknown } | null)?.name);
      if (!name || this.#typists.size >= SHOWN_MAX) return;
      this.#typists.set(author, { name, until: Date.now() + TYPING_S * 1000 });
      this.changed();
    });
    this.announce(me);
    this.#announcing = setInterval(() => this.announce(this.me), ANNOUNCE_MS);
  }

  get all(): Member[] {
    const found = new Map<string, Member>();
    for (const { key, value } of this.#state) {
      const { author, verified } = authorOf(key);
      const name = verified ? author : nameOf(value?.name);
      if (author && name && found.size < SHOWN_MAX) found.set(author, { id: author, name, verified, isMe: author === this.me.id });
    }
    return [...found.values()].sort((a, b) => +b.isMe - +a.isMe || a.name.localeCompare(b.name));
  }

  typists(now: number): string[] {
    for (const [author, { until }] of this.#typists) if (until <= now) this.#typists.delete(author);
    return [...this.#typists.values()].map(({ name }) => name);
  }

  /** Called when a message of this author has arrived. */
  stopTyping(author: string): void {
    this.#typists.delete(author);
  }

  /** Publishes that this user is typing, at most every three seconds. The message expires after five. */
  type(): void {
    const now = Date.now();
    if (this.client.state.name !== 'open' || !this.me.name || now - this.#typedAt < TYPING_EVERY_MS) return;
    this.#typedAt = now;
    const options = { key: this.#key, ttl: TYPING_S, signal: AbortSignal.timeout(TYPING_S * 1000) };
    this.client.publish(typingOf(this.channel), { name: this.me.name }, options).catch(() => {});
  }

  /** Called when the user has sent a message. The next keystroke is published at once. */
  typed(): void {
    this.#typedAt = 0;
  }

  announce(me: Me): void {
    this.me = me;
    if (!me.name || this.client.state.name === 'closed') return;
    const signal = AbortSignal.any([this.#over.signal, AbortSignal.timeout(ANNOUNCE_TIMEOUT_MS)]);
    // A user who may not publish, or a full list, is not a member. Messages show the reason.
    this.#state.set(this.#key, { name: me.name }, { ttl: ALIVE_S, signal }).catch(() => {});
  }

  close(): void {
    this.#over.abort();
    clearInterval(this.#announcing);
    this.#leaving.forEach((timer) => clearTimeout(timer));
    void this.#state.close();
    void this.#typing.close();
    this.leave();
  }

  /** Deletes the entry of this page. The request also outlives the page. */
  leave(): void {
    const headers: HeadersInit = this.token ? { authorization: `Bearer ${this.token}` } : {};
    const path = `/v1/channels/${membersOf(this.channel)}?key=${encodeURIComponent(this.#key)}`;
    if (this.me.name) fetch(path, { method: 'DELETE', keepalive: true, headers }).catch(() => {});
  }

  #names(): Map<string, string> {
    return new Map(this.all.map(({ id, name }) => [id, name]));
  }

  /** Reports the difference to the last list. */
  #compare(): void {
    if (!this.#isComplete) return;
    const before = this.#known;
    this.#known = this.#names();
    for (const [id, name] of this.#known) {
      if (before.has(id) || id === this.me.id) continue;
      if (this.#leaving.has(id)) clearTimeout(this.#leaving.get(id));
      else this.note(`${name} joined`);
      this.#leaving.delete(id);
    }
    for (const [id, name] of before) {
      if (this.#known.has(id) || id === this.me.id) continue;
      const report = (): void => (this.#leaving.delete(id), this.note(`${name} left`));
      this.#leaving.set(id, setTimeout(report, LEAVE_MS));
    }
    this.changed();
  }
}
