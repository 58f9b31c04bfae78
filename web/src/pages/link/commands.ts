/** Commands that change the settings of the link. `crates/lab/src/path/knobs.rs` reads them. */
import { MillraceError, type Client } from '@millrace/client';
import { reasonOf } from '../../lib/format';
import type { LinkState } from './state';

export const CHANNEL = 'lab/link/commands';

/** Time within which the link answers. */
const ANSWER_MS = 5_000;
/** Time for which history keeps a command, s. */
const KEPT_S = 60;

export interface Change {
  /** `KEY=VALUE`, as in `millrace lab link run --set`, or `path=PROFILE`. */
  readonly set?: readonly string[];
  readonly outage?: boolean;
}

export class Commands {
  private readonly waiting = new Map<string, (error: string | null) => void>();

  constructor(private readonly client: Pick<Client, 'publish'>) {}

  /** Takes the answer in a state. */
  handle({ answer }: LinkState): void {
    if (answer) this.waiting.get(answer.id)?.(answer.error);
  }

  /** Changes the settings of a link, and waits for the answer. Returns the reason why nothing has changed, or null. */
  async send(run: string, change: Change): Promise<string | null> {
    const id = crypto.getRandomValues(new Uint32Array(2)).join('-');
    const signal = AbortSignal.timeout(ANSWER_MS);
    const answer = new Promise<string | null>((resolve) => {
      this.waiting.set(id, resolve);
      signal.addEventListener('abort', () => resolve(`The link has not answered within ${ANSWER_MS / 1000} s. It may have ended: check its terminal`));
    });
    try {
      await this.client.publish(CHANNEL, { run, id, ...change }, { signal, ttl: KEPT_S });
      return await answer;
    } catch (thrown) {
      if (signal.aborted) return await answer;
      const isAuth = thrown instanceof MillraceError && thrown.code === 'auth';
      return isAuth ? `${reasonOf(thrown)}. The token of this page needs the permission publish for ${CHANNEL}` : reasonOf(thrown);
    } finally {
      this.waiting.delete(id);
    }
  }
}
