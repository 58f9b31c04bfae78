/**
 * Publications of a channel of the chat: messages, edits, deletions and reactions. Everyone who may publish can publish
 * anything, so this module checks all input.
 *
 * The key of a publication is `AUTHOR/ID` for an author with a token, otherwise `AUTHOR.ID`. The newest publication of
 * a key is current. The server refuses a key `AUTHOR/ID` from any other subject (docs/how-to/build-a-chat.md).
 */
import type { Event } from '@millrace/client';

/** Maximum size of a text in UTF-8. */
export const TEXT_BYTES_MAX = 4096;
export const NAME_CHARS_MAX = 40;
const EMOJI_MAX = 6;
export const EMOJI = ['👍', '❤️', '😂', '🎉', '😮', '👀'] as const;
const UNNAMED = 'unnamed';

/** Content of a publication. */
export interface Content {
  readonly name: string;
  readonly text?: string;
  /** Time of the first version, ms since 1970; in edits and deletions. */
  readonly sent?: number;
  readonly deleted?: true;
  /** Key of the message that `emoji` reacts to. */
  readonly react?: string;
  readonly emoji?: readonly string[];
}

export interface Author {
  /** Subject of the author's token, or the id of the author's browser. Empty for a publication without a key. */
  readonly author: string;
  /** True if the server has checked the author: the key belongs to the subject of the token. */
  readonly verified: boolean;
}

export interface Post extends Author {
  readonly kind: 'message' | 'edit' | 'deletion' | 'reaction';
  /** Key of the message; its position if it has no key. A reaction has the key of its message. */
  readonly id: string;
  readonly position: string;
  readonly name: string;
  readonly text: string;
  /** Time at which the message was sent, ms since 1970. */
  readonly at: number;
  readonly emoji: readonly string[];
}

const encoder = new TextEncoder();
export const bytesOf = (text: string): number => encoder.encode(text).length;

/** Cuts a text after `max` characters, and never inside a surrogate pair. */
const cut = (text: string, max: number): string => (text.length <= max ? text : [...text.slice(0, max)].slice(0, -1).join('') + '…');

/** Returns a name without line breaks and control characters, or `undefined` if nothing remains. */
export function nameOf(value: unknown): string | undefined {
  if (typeof value !== 'string') return undefined;
  const name = value.replace(/[\p{Cc}\p{Zl}\p{Zp}]+/gu, ' ').trim();
  return name ? cut(name, NAME_CHARS_MAX) : undefined;
}

export function authorOf(key: string | undefined): Author {
  const at = key?.search(/[/.][^/.]*$/) ?? -1;
  if (at < 1) return { author: '', verified: false };
  return { author: key!.slice(0, at), verified: key![at] === '/' };
}

/** Returns the post in an event, or `undefined` if the event is none. */
export function postOf({ key, data, position, publishedAt }: Pick<Event, 'key' | 'data' | 'position' | 'publishedAt'>): Post | undefined {
  const content = (typeof data === 'string' ? { text: data } : data) as Partial<Record<keyof Content, unknown>> | null;
  if (typeof content !== 'object' || content === null || ArrayBuffer.isView(content)) return undefined;
  const { text, sent, deleted, react, emoji } = content;
  const who = authorOf(key);
  const base = { ...who, position, name: who.verified ? cut(who.author, NAME_CHARS_MAX) : (nameOf(content.name) ?? UNNAMED), text: '', at: publishedAt, emoji: [] };
  if (typeof react === 'string' && Array.isArray(emoji)) {
    if (!who.author) return undefined;
    const known = EMOJI.filter((one) => emoji.includes(one)).slice(0, EMOJI_MAX);
    return { ...base, kind: 'reaction', id: react, emoji: known };
  }
  const id = key ?? position;
  const isLater = key !== undefined && typeof sent === 'number' && Number.isSafeInteger(sent) && sent > 0;
  const at = isLater ? sent : publishedAt;
  if (deleted === true) return isLater ? { ...base, kind: 'deletion', id, at } : undefined;
  if (typeof text !== 'string' || !text.trim()) return undefined;
  return { ...base, kind: isLater ? 'edit' : 'message', id, at, text: cut(text, TEXT_BYTES_MAX) };
}

/** Returns the name of a channel, for example `tea-break` for `Tea break`; `undefined` if the text is no name. */
export function channelOf(text: string): string | undefined {
  const name = text.trim().replace(/^#/, '').toLowerCase().replace(/\s+/g, '-');
  return /^[a-z0-9][a-z0-9_-]{0,31}$/.test(name) ? name : undefined;
}
