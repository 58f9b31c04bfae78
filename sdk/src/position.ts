// Positions (`epoch:offset`), channel names and patterns. Source: docs/protocol.md, "Words".
import { MillraceError } from './errors.js';

export interface Position {
  readonly text: string;
  readonly epoch: string;
  readonly offset: bigint;
}

export function parsePosition(text: string): Position {
  const [, epoch, offset] = /^(.+):(\d+)$/.exec(text) ?? [];
  if (!offset) throw new MillraceError('protocol', `not a position: ${text}`);
  return { text, epoch: epoch!, offset: BigInt(offset) };
}

/** The position `n` after (before, if negative) `at`; an epoch begins at 0. */
export function shift({ epoch, offset }: Position, n: bigint): string {
  return `${epoch}:${offset + n > 0n ? offset + n : 0n}`;
}

/** Whether a reader that stands at `at` has not had `next` yet. Another epoch is always news: the log was lost. */
export function isNews(next: Position, at: Position | undefined): boolean {
  return at?.epoch !== next.epoch || next.offset > at.offset;
}

export const isPattern = (channel: string): boolean => /[+#]/.test(channel);

/**
 * Throws if `channel` is neither a channel name nor, where `patterns` may be, a pattern. No URL can name the levels `.` and
 * `..`, so they are refused on every transport.
 */
export function checkChannel(channel: string, patterns?: boolean): void {
  // A `#` only as the last level. What is left of a pattern without its wildcards is a name.
  const name = patterns ? channel.replace(/(^|\/)#$/, '$1+').replace(/(?<=^|\/)\+(?=\/|$)/g, '_') : channel;
  if (!/^[\w.:-]+(\/[\w.:-]+)*$/.test(name) || /(^|\/)\.\.?(\/|$)/.test(name) || channel.length > 255) {
    throw new MillraceError('rejected', `not a channel name: ${channel}`, { reason: 'bad_channel' });
  }
}

/** MQTT matching: `+` is one level, `#` the rest, the parent included. */
export function matches(pattern: string, channel: string): boolean {
  const want = pattern.split('/');
  const have = channel.split('/');
  for (let i = 0; i < want.length; i++) {
    if (want[i] === '#') return i <= have.length;
    if (want[i] !== '+' && want[i] !== have[i]) return false;
  }
  return want.length === have.length;
}
