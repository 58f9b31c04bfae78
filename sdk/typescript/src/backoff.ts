// Computes the pause before a retry. Every retry loop of the client uses this function.
import type { MillraceError } from './errors.js';
import { TIMER_MAX } from './listen.js';
import type { ConnectOptions } from './types.js';

/**
 * Returns the milliseconds before the next attempt, after `attempt` retries. A `retryAfter` from the server takes
 * precedence. All clients get the same `retryAfter`, so up to a fifth is added at random.
 */
export function pauseOf({ retryAfter = 0 }: MillraceError, attempt: number, { min = 500, max = 20_000, factor = 2, jitter = 'full' }: ConnectOptions['retry'] = {}, random = Math.random()): number {
  return Math.min(TIMER_MAX, retryAfter > 0 ? retryAfter * (1 + random / 5) : (jitter === 'full' ? random : 1) * Math.min(max, min * factor ** attempt));
}
