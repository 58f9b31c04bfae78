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

export const offsetOf = (position: string): bigint => parsePosition(position).offset;

/** `offset` in the epoch of `position`. */
export const withOffset = (position: string, offset: bigint): string => position.replace(/\d+$/, String(offset));

/** The position before `position`; an epoch begins at 0. */
export function before(position: string): string {
  const offset = offsetOf(position);
  return withOffset(position, offset && offset - 1n);
}

/** Whether a reader that stands at `at` has not had `next` yet. Another epoch is always news: the log was lost. */
export function isNews(next: string, at: string | undefined): boolean {
  if (!at) return true;
  const { epoch, offset } = parsePosition(next);
  const last = parsePosition(at);
  return epoch !== last.epoch || offset > last.offset;
}

/** Throws if `channel` is no channel name. No URL can name the levels `.` and `..`, so they are refused on every transport. */
export function checkChannel(channel: string): void {
  if (!/^((?!\.\.?(\/|$))[\w.:-]+(\/(?!$)|$))+$/.test(channel) || channel.length > 255) {
    throw new MillraceError('rejected', `not a channel name: ${channel}`, { reason: 'bad_channel' });
  }
}
