// Positions (`epoch:offset`), channel names and patterns. Source: docs/reference/protocol.md, "Words".
import { MillraceError } from './errors.js';

export interface Position {
  readonly epoch: string;
  readonly offset: bigint;
}

/** Returns the offset of a position. Throws `protocol` if `text` is no position. */
export function offsetOf(text: string): bigint {
  const offset = /.:(\d+)$/.exec(text)?.[1];
  if (!offset) throw new MillraceError('protocol', `not a position: ${text}`);
  return BigInt(offset);
}

export const parsePosition = (text: string): Position => ({ offset: offsetOf(text), epoch: text.replace(/:\d+$/, '') });

/** Returns the position with `offset` in the epoch of `position`. */
export const withOffset = (position: string, offset: bigint): string => position.replace(/\d+$/, String(offset));

/** Returns the position before `position`. An epoch begins at 0. */
export function before(position: string): string {
  const offset = offsetOf(position);
  return withOffset(position, offset && offset - 1n);
}

/**
 * Returns whether `next` is new to a reader at `at`. A position of another epoch is always new, because the old log was
 * lost.
 */
export function isNewer(next: string, at: string | undefined): boolean {
  return !at || offsetOf(next) > offsetOf(at) || withOffset(next, 0n) !== withOffset(at, 0n);
}

/**
 * Throws if `channel` is not a channel name. A URL cannot contain the levels `.` and `..`, so every transport refuses
 * them.
 */
export function checkChannel(channel: string): void {
  if (!/^((?!\.\.?(\/|$))[\w.:-]+(\/(?!$)|$))+$/.test(channel) || channel.length > 255) {
    throw new MillraceError('rejected', `not a channel name: ${channel}`, { reason: 'bad_channel' });
  }
}
