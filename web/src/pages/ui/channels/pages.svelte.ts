// A long list that is read page by page, again every two seconds, for state keys and members.
import { reasonOf } from '../../../lib/format';
import { session } from '../admin.svelte';

const EVERY_MS = 2_000;

export interface ListPage<Row> {
  readonly rows: readonly Row[];
  readonly next?: string | undefined;
}

export class Pages<Row> {
  rows = $state.raw<readonly Row[]>([]);
  status = $state<'loading' | 'live' | 'failed'>('loading');
  problem = $state('');
  next = $state<string | undefined>();
  after = $state<string | undefined>();

  /** Reads the page after `after` until the returned function is called. */
  follow(read: (after: string | undefined, signal: AbortSignal) => Promise<ListPage<Row>>): () => void {
    const stop = new AbortController();
    const { after } = this;
    const again = async (): Promise<void> => {
      try {
        if (!document.hidden && !session.paused) {
          const page = await read(after, stop.signal);
          [this.rows, this.next, this.status, this.problem] = [page.rows, page.next, 'live', ''];
        }
      } catch (thrown) {
        if (stop.signal.aborted) return;
        [this.status, this.problem] = ['failed', reasonOf(thrown)];
      }
      timer = setTimeout(() => void again(), EVERY_MS);
      if (stop.signal.aborted) clearTimeout(timer);
    };
    let timer: ReturnType<typeof setTimeout> | undefined;
    stop.signal.addEventListener('abort', () => clearTimeout(timer));
    void again();
    return () => stop.abort();
  }
}

export const encoded = (channel: string): string => channel.split('/').map(encodeURIComponent).join('/');
