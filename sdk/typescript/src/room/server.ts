// Requests of a participant to the server. Source: docs/reference/protocol.md, "Rooms".
import { pauseOf } from '../backoff.js';
import { problem, toError } from '../errors.js';
import { tokenOf } from '../link.js';
import { sleep } from '../listen.js';
import { baseOf, send } from '../request.js';
import type { Seat } from './seat.js';
import type { JoinOptions, RoomState, Topology } from './types.js';

export interface Joined {
  readonly participant: string;
  readonly secret: string;
  /** Ticket that resumes the seat once, after a reload of the page. */
  readonly ticket: string;
  /** Whether the ticket of the request was valid, so that the participant is the same as before. */
  readonly resumed?: true;
  /** Position in the chat at which the room was opened. */
  readonly chat_since: string;
  readonly state: RoomState;
  readonly positions: Readonly<Record<string, string>>;
  readonly ice_servers: RTCIceServer[];
  /** Whether the participant may mute others: by the scope of its token, or while it is the host. */
  readonly moderates?: 'always' | 'as_host';
}

/**
 * A signal to a participant or to `switch`. `link` distinguishes the links that two participants have had one after the
 * other.
 */
export interface Signal {
  readonly description?: RTCSessionDescriptionInit;
  readonly candidate?: RTCIceCandidateInit | null;
  readonly bye?: string;
  readonly link?: string;
  /** Owners of the streams on this link: participant ids by stream id. */
  readonly streams?: Readonly<Record<string, string>>;
}

/** Maximum number of attempts of an idempotent request. */
const ATTEMPTS_MAX = 6;

export class Server {
  readonly #base: string;
  readonly #options: JoinOptions;
  readonly #participants: string;
  /** Path of the participants; after joining, path of this participant. */
  #path: string;
  #secret = '';
  /** Distinguishes the signals of this page from those of the page before a reload, which had the same participant. */
  readonly #page = crypto.getRandomValues(new Uint32Array(2)).join('-');
  #number = 0;
  /** Settles when the previous signal has arrived, so that signals keep their order. */
  #before: Promise<void> = Promise.resolve();

  constructor(url: string | URL, room: string, options: JoinOptions) {
    this.#base = baseOf(url);
    this.#options = options;
    this.#path = this.#participants = `/v1/rooms/${room}/participants`;
  }

  /**
   * Joins the room, with `seat` as the participant that this page was before a reload. Called once. If the response has
   * no ICE servers, a relay is requested.
   */
  async join(topology: Topology | undefined, seat?: Seat): Promise<Joined> {
    const { name, role } = this.#options;
    const resume = seat && { participant: seat.participant, ticket: seat.ticket };
    const joined = (await (await this.#ask('POST', this.#path, { name, topology, role, resume })).json()) as Joined;
    this.#path += `/${joined.participant}`;
    this.#secret = joined.secret;
    if (!joined.ice_servers.length && typeof RTCPeerConnection !== 'undefined') joined.ice_servers.push(...(await this.#relay()));
    return joined;
  }

  /**
   * Returns a relay for participants without a direct path. Returns none if the server has none, or denies it to this
   * client.
   */
  async #relay(): Promise<RTCIceServer[]> {
    try {
      return ((await (await this.#ask('POST', '/v1/turn')).json()) as { ice_servers: RTCIceServer[] }).ice_servers;
    } catch (thrown) {
      const { retryable } = toError(thrown);
      if (retryable) throw thrown;
      return [];
    }
  }

  /** Sends a signal. Signals arrive once and in order. Gives up when the receiver has left. */
  signal(to: string, signal: Signal): void {
    const key = `${this.#page}/${++this.#number}`;
    this.#before = this.#before.then(() => this.#sendWithRetries(`${this.#path}/signals`, { to, ...signal }, key)).catch(() => {});
  }

  /** Sends a report. Throws a MillraceError with `reason` `not_found` if the server no longer knows the participant. */
  async report(report: object): Promise<void> {
    await this.#ask('POST', `${this.#path}/reports`, report);
  }

  /** Mutes a participant. Requires a token with this permission, or to be the host. */
  async mute(id: string, media: object): Promise<void> {
    await this.#ask('POST', `${this.#participants}/${encodeURIComponent(id)}/mute`, media);
  }

  /** Removes a participant. Requires the same permission as `mute`. */
  async remove(id: string): Promise<void> {
    await this.#ask('DELETE', `${this.#participants}/${encodeURIComponent(id)}`);
  }

  /** Locks or unlocks the room. Requires the same permission as `mute`. */
  async lock(locked: boolean): Promise<void> {
    await this.#ask('POST', this.#participants.replace(/participants$/, 'lock'), { locked });
  }

  /** Asks the server to hold the seat while the page reloads. */
  async away(): Promise<void> {
    await this.#ask('POST', `${this.#path}/away`, undefined, undefined, true);
  }

  async leave(): Promise<void> {
    await this.#ask('DELETE', this.#path, undefined, undefined, true);
  }

  async #sendWithRetries(path: string, body: object, key: string): Promise<void> {
    for (let attempt = 1; ; attempt++) {
      try {
        await this.#ask('POST', path, body, key);
        return;
      } catch (thrown) {
        const error = toError(thrown);
        if (!error.retryable || attempt >= ATTEMPTS_MAX) throw error;
        await sleep(pauseOf(error, attempt, { min: 250 }));
      }
    }
  }

  async #ask(method: string, path: string, body?: object, key?: string, keepalive = false): Promise<Response> {
    const signal = AbortSignal.timeout(10_000);
    const token = await tokenOf(this.#options, 'connect', signal);
    const headers = { 'Millrace-Participant': this.#secret || undefined, 'Idempotency-Key': key };
    const response = await send(this.#options.fetch, this.#base + path, token, { method, headers, signal, keepalive, cache: 'no-store', ...(body && { body: JSON.stringify(body) }) });
    if (response.ok) return response;
    throw await problem(response);
  }
}
