/**
 * The messages of one channel, as far as they are loaded. The newest publication of a key is current: an edit replaces
 * the text, a deletion removes it, and a repeated publication is no second message.
 */
import type { Event } from '@millrace/client';
import { postOf, type Author, type Post } from './post';

export interface Reaction {
  readonly emoji: string;
  readonly names: readonly string[];
  /** True if the user of this page is among them. */
  readonly mine: boolean;
}

export interface Message extends Author {
  readonly kind: 'message';
  readonly id: string;
  readonly position: string;
  readonly name: string;
  readonly text: string;
  readonly at: number;
  readonly edited: boolean;
  readonly deleted: boolean;
}

/** A line of the page itself, for example that a member has joined. */
export interface Note {
  readonly kind: 'note';
  readonly id: string;
  readonly text: string;
}

export type Row = Message | Note;

const messageOf = ({ id, position, author, verified, name, text, at }: Post): Message => ({ kind: 'message', id, position, author, verified, name, text, at, edited: false, deleted: false });

function changed(message: Message, { kind, text, name }: Post): Message {
  if (kind === 'deletion') return { ...message, text: '', deleted: true };
  return { ...message, name, text, edited: kind === 'edit', deleted: false };
}

export class Conversation {
  #rows: Row[] = [];
  readonly #messages = new Map<string, number>();
  /** Newest edits and deletions of messages that are not loaded. */
  readonly #ahead = new Map<string, Post>();
  /** Newest reactions by message and author. */
  readonly #reactions = new Map<string, Map<string, Post>>();
  #notes = 0;
  /** Number of rows that were put before the first one. The index of a row is relative to it. */
  #shift = 0;

  get rows(): readonly Row[] {
    return this.#rows;
  }

  message(id: string): Message | undefined {
    const index = this.#messages.get(id);
    return index === undefined ? undefined : (this.#rows[index + this.#shift] as Message);
  }

  reactions(id: string, me: string): Reaction[] {
    const emoji = new Map<string, { names: string[]; mine: boolean }>();
    for (const post of this.#reactions.get(id)?.values() ?? []) {
      for (const one of post.emoji) {
        const found = emoji.get(one) ?? { names: [], mine: false };
        found.names.push(post.name);
        found.mine ||= post.author === me;
        emoji.set(one, found);
      }
    }
    return [...emoji].map(([emoji, { names, mine }]) => ({ emoji, names, mine }));
  }

  /** Accepts a new publication, and returns what it was. */
  receive(event: Event): Post | undefined {
    const post = postOf(event);
    if (!post) return undefined;
    if (post.kind === 'reaction') this.#react(post);
    else {
      const known = this.message(post.id);
      if (known) this.#rows[this.#messages.get(post.id)! + this.#shift] = changed(known, post);
      else if (post.kind === 'message') this.#append(messageOf(post));
      else this.#ahead.set(post.id, post);
    }
    return post;
  }

  /** Accepts a page of publications that are older than all others, oldest first. */
  receiveOlder(events: readonly Event[]): void {
    const block: Message[] = [];
    // From the newest to the oldest, so the first publication of a key that is seen is the current one.
    for (const event of events.toReversed()) {
      const post = postOf(event);
      if (!post) continue;
      if (post.kind === 'reaction') {
        if (!this.#reactions.get(post.id)?.has(post.author)) this.#react(post);
      } else if (this.#messages.has(post.id) || block.some(({ id }) => id === post.id)) continue;
      else if (post.kind === 'message') {
        const later = this.#ahead.get(post.id);
        this.#ahead.delete(post.id);
        block.unshift(later ? changed(messageOf(post), later) : messageOf(post));
      } else if (!this.#ahead.has(post.id)) this.#ahead.set(post.id, post);
    }
    this.#prepend(block);
  }

  /** Accepts that no older publications exist. Shows edits of messages whose first version has expired. */
  receiveStart(): void {
    const orphans = [...this.#ahead.values()].filter(({ kind }) => kind === 'edit').sort((a, b) => a.at - b.at);
    this.#ahead.clear();
    this.#prepend(orphans.map((post) => ({ ...messageOf(post), edited: true })));
  }

  note(text: string): void {
    this.#rows = [...this.#rows, { kind: 'note', id: `note ${++this.#notes}`, text }];
  }

  #react(post: Post): void {
    const reactions = this.#reactions.get(post.id) ?? new Map<string, Post>();
    this.#reactions.set(post.id, reactions.set(post.author, post));
  }

  #append(message: Message): void {
    this.#messages.set(message.id, this.#rows.length - this.#shift);
    this.#rows.push(message);
  }

  #prepend(block: readonly Message[]): void {
    this.#shift += block.length;
    block.forEach(({ id }, index) => this.#messages.set(id, index - this.#shift));
    this.#rows = [...block, ...this.#rows];
  }
}
