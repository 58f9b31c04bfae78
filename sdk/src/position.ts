// Positions (`epoch:offset`), channel names and patterns. Source: docs/protocol.md, "Words".
import { MillraceError } from './errors.js';

export interface Position {
  readonly epoch: string;
  readonly offset: bigint;
}

export function parsePosition(text: string): Position {
  const [, epoch, offset] = /^(.+):(\d+)$/.exec(text) ?? [];
  if (!offset) throw new MillraceError('protocol', `not a position: ${text}`);
  return { epoch: epoch!, offset: BigInt(offset) };
}

/** `offset` in the epoch of `position`. */
export const withOffset = (position: string, offset: bigint): string => position.replace(/\d+$/, String(offset));

/** The position before `position`; an epoch begins at 0. */
export function before(position: string): string {
  const { offset } = parsePosition(position);
  return withOffset(position, offset && offset - 1n);
}

/** Whether a reader that stands at `at` has not had `next` yet. Another epoch is always news: the log was lost. */
export function isNews(next: string, at: string | undefined): boolean {
  if (!at) return true;
  const { epoch, offset } = parsePosition(next);
  const last = parsePosition(at);
  return epoch !== last.epoch || offset > last.offset;
}

const isPattern = (channel: string): boolean => /[+#]/.test(channel);

/**
 * Throws if `channel` is neither a channel name nor, where `patterns` may be, a pattern. No URL can name the levels `.` and
 * `..`, so they are refused on every transport.
 */
export function checkChannel(channel: string, patterns?: boolean): void {
  // A `#` only as the last level, where it is as good as a `+`.
  const levels = /^((?!\.\.?(\/|$))([\w.:-]+|\+)(\/(?!$)|$))+$/.test(channel.replace(/(^|\/)#$/, '$1+'));
  if (!levels || channel.length > 255 || (!patterns && isPattern(channel))) {
    throw new MillraceError('rejected', `not a channel name: ${channel}`, { reason: 'bad_channel' });
  }
}

/** What tests whether a channel matches `pattern`; undefined for a plain name. `+` is one level, `#` the rest, the parent included. */
export function matcher(pattern: string): RegExp | undefined {
  if (!isPattern(pattern)) return undefined;
  return RegExp(`^${pattern.replace(/\./g, '\\.').replace(/\+/g, '[^/]+').replace(/(^|\/)#/, '($1.+)?')}$`);
}
