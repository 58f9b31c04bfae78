/** Converts the chat to the rows that the page displays: messages and notes in order, then the queue. */
import type { Chat } from './chat';
import type { Message, Note, Reaction } from './conversation';
import type { Waiting } from './outbox';

export interface MessageView extends Message {
  readonly mine: boolean;
  /** True if the author is not proven where users have tokens. */
  readonly unverified: boolean;
  readonly state: Waiting['state'] | undefined;
  readonly reason: string | undefined;
  /** Identifies the entry that waits; empty for a message of the server. */
  readonly entry: string;
  readonly reactions: readonly Reaction[];
}

export type RowView = MessageView | Note;

/** Returns the newest `count` rows, followed by the messages that wait. */
export function rowsOf(chat: Chat, count: number): RowView[] {
  const waiting = chat.waiting;
  const { conversation, me } = chat;
  const rows = conversation.rows.slice(-count).map((row): RowView => {
    if (row.kind === 'note') return row;
    // The last edit that waits is shown in place of the text.
    const edit = waiting.findLast(({ key, content }) => key === row.id && content.sent !== undefined);
    const shown = edit ? { ...row, text: edit.content.text ?? '', deleted: edit.content.deleted ?? false, edited: true } : row;
    return { ...shown, mine: chat.isMine(row), unverified: me.verified && !row.verified, state: stateOf(edit), reason: edit?.reason, entry: edit?.idempotencyKey ?? '', reactions: conversation.reactions(row.id, me.id) };
  });
  const pending = waiting.filter(({ content }) => content.sent === undefined);
  return [...rows, ...pending.map((entry): RowView => pendingView(entry, waiting, chat))];
}

function pendingView({ key, content, at, state, reason, idempotencyKey }: Waiting, waiting: readonly Waiting[], { me }: Chat): MessageView {
  const later = waiting.findLast((entry) => entry.key === key)!;
  const base = { kind: 'message', id: key, position: '', author: me.id, verified: me.verified, mine: true, unverified: false, reactions: [] } as const;
  return { ...base, name: content.name, text: later.content.text ?? '', at, edited: later.content.sent !== undefined, deleted: later.content.deleted ?? false, state: state === 'sent' ? undefined : state, reason, entry: idempotencyKey };
}

const stateOf = (entry: Waiting | undefined): Waiting['state'] | undefined => (entry?.state === 'sent' ? undefined : entry?.state);

/** Returns a hue, always the same for a user. */
export function colorOf(author: string): number {
  let hash = 0;
  for (const char of author) hash = (hash * 31 + char.codePointAt(0)!) % 360;
  return hash;
}

const segments = new Intl.Segmenter('en');

/** Returns the first character of the first two words. */
export const initialsOf = (name: string): string =>
  name.split(/\s+/).slice(0, 2).map((word) => [...segments.segment(word)][0]?.segment.toUpperCase() ?? '').join('');

const time = new Intl.DateTimeFormat('en', { hour: '2-digit', minute: '2-digit', hourCycle: 'h23' });
const date = new Intl.DateTimeFormat('en', { weekday: 'short', day: 'numeric', month: 'short' });
/** Returns the day if it is not today. */
export const dayOf = (ms: number): string => date.format(ms);
export const timeOf = (ms: number): string => (dayOf(ms) === dayOf(Date.now()) ? time.format(ms) : `${dayOf(ms)}, ${time.format(ms)}`);

/** Returns `Ann is typing`, `Ann and Bob are typing` or `3 people are typing`; an empty text for none. */
export function typingText(names: readonly string[]): string {
  if (names.length === 0) return '';
  if (names.length === 1) return `${names[0]} is typing…`;
  return names.length === 2 ? `${names[0]} and ${names[1]} are typing…` : `${names.length} people are typing…`;
}
