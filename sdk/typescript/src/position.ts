// Positions (`epoch:offset`), channel names and patterns. Source: docs/reference/protocol.md, "Words".
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
  if (!at) return true;
  const { epoch, offset } = parsePosition(next);
  const last = parsePosition(at);
  return epoch !== last.epoch || offset > last.offset;
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
