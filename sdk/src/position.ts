// Positions (`epoch:offset`), lists of them, channel names and patterns. Source: docs/protocol.md, "Words".
import { MillraceError } from './errors.js';

export interface Position {
  readonly epoch: string;
  readonly offset: bigint;
}

export function parsePosition(text: string): Position {
  const colon = text.lastIndexOf(':');
  const offset = text.slice(colon + 1);
  if (colon < 1 || !/^\d+$/.test(offset)) throw new MillraceError('protocol', `not a position: ${text}`);
  return { epoch: text.slice(0, colon), offset: BigInt(offset) };
}

/** Whether a reader that stands at `at` has not had `next` yet. Another epoch is always news: the log was lost. */
export function isNews(next: Position, at: Position | undefined): boolean {
  return !at || at.epoch !== next.epoch || next.offset > at.offset;
}

/** `cars/1@5f:58,cars/2@5f:57`: the SSE id and the `Millrace-Position` of a reader of several channels. */
export function parsePositions(list: string): [channel: string, position: string][] {
  return list
    .split(',')
    .filter((item) => item.includes('@'))
    .map((item) => {
      const at = item.indexOf('@');
      return [item.slice(0, at), item.slice(at + 1)];
    });
}

export const isPattern = (channel: string): boolean => /[+#]/.test(channel);

/** Throws if `channel` is neither a channel name nor, where `patterns` may be, a pattern. No URL can name the levels `.` and `..`. */
export function checkChannel(channel: string, patterns: boolean): void {
  const levels = channel.split('/');
  const good = levels.every(
    (level, i) =>
      (/^[\w.:-]+$/.test(level) && !/^\.\.?$/.test(level)) || (patterns && (level === '+' || (level === '#' && i === levels.length - 1))),
  );
  if (!good || channel.length > 255) throw new MillraceError('rejected', `not a channel name: ${channel}`, { reason: 'bad_channel' });
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
