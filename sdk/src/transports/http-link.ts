// What the four HTTP transports share: one request for all channels, opened anew when the set of channels changes.
import { MillraceError, aborted, toError } from '../errors.js';
import type { Query } from '../http.js';
import type { Link, LinkHost, Wanted } from '../link.js';
import { isPattern } from '../position.js';
import type { TransportName } from '../types.js';

/** Channels in one request, a limit of the server. */
const CHANNELS = 100;

/** Reads one request's worth of channels until it is aborted or cut; returns to be called again at once. */
export type Read = (link: HttpLink, query: Query, signal: AbortSignal) => Promise<void>;

export class HttpLink implements Link {
  opened = false;
  #over = false;
  #reading = '';
  #round = new AbortController();
  /** When the request under way was sent. */
  #asked = 0;

  constructor(
    readonly name: TransportName,
    readonly host: LinkHost,
    readonly read: Read,
  ) {
    this.#run().catch((thrown) => {
      if (this.#over) return;
      this.close();
      host.closed(toError(thrown, name));
    });
  }

  changed(): void {
    // Subscriptions made in one turn make one request.
    queueMicrotask(() => {
      if (this.#key() !== this.#reading) this.#round.abort();
    });
  }

  ping(): void {
    this.#round.abort();
  }

  close(): void {
    this.#over = true;
    this.#round.abort();
  }

  /** An answer has begun: where each channel starts. Throws if a channel that was asked for from now on has a position by now. */
  begin(positions: Iterable<readonly [channel: string, position: string]>, query: Query, time: number): void {
    const { host } = this;
    const asked = new Set(query.map(([, value]) => value));
    if (host.wanted().some(({ channel, since }) => since && asked.has(channel))) throw aborted();
    this.open(Date.now() - this.#asked);
    for (const [channel, position] of positions) {
      host.started(channel, position, asked.has(channel) || asked.has(`${channel}@${position}`), time);
    }
  }

  open(rtt: number): void {
    if (!this.opened) this.host.opened(rtt);
    else this.host.rtt(rtt);
    this.opened = true;
  }

  #key(): string {
    return this.host.wanted().map(({ channel, policy }) => `${policy} ${channel}`).join();
  }

  async #run(): Promise<void> {
    // Lets the owner know of this link before it reports anything.
    await null;
    while (!this.#over) {
      const { host } = this;
      this.#round = new AbortController();
      const { signal } = this.#round;
      this.#reading = this.#key();
      const groups = this.#groups(host.wanted());
      try {
        if (groups.length) {
          this.#asked = Date.now();
          await Promise.race(groups.map((query) => this.#keepReading(query, signal)));
        } else {
          // Nothing to read: publishing needs no connection that stands.
          this.open(0);
          host.alive(Infinity);
          if (!signal.aborted) await new Promise((resolve) => signal.addEventListener('abort', resolve));
        }
      } catch (thrown) {
        if (!signal.aborted && !(thrown instanceof MillraceError && thrown.code === 'aborted')) throw thrown;
      } finally {
        this.#round.abort();
      }
    }
  }

  async #keepReading(query: Query, signal: AbortSignal): Promise<void> {
    while (!signal.aborted) await this.read(this, query, signal);
  }

  #groups(wanted: readonly Wanted[]): Query[] {
    const groups: [string, string][][] = [];
    for (const policy of ['every', 'latest'] as const) {
      const channels: [string, string][] = [];
      for (const { channel, since, ...want } of wanted) {
        if (isPattern(channel)) {
          this.host.refused(channel, new MillraceError('rejected', `${channel}: wildcards need the websocket transport, this is ${this.name}`, { transport: this.name }));
        } else if (want.policy === policy) channels.push(['channel', since ? `${channel}@${since}` : channel]);
      }
      for (let i = 0; i < channels.length; i += CHANNELS) {
        groups.push([['since', 'now'], ['policy', policy], ...channels.slice(i, i + CHANNELS)]);
      }
    }
    return groups;
  }
}
