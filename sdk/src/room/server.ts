// What a participant asks the server for. Source: docs/protocol.md, "Rooms".
import { pauseOf } from '../backoff.js';
import { problem, toError } from '../errors.js';
import { tokenOf } from '../link.js';
import { sleep } from '../listen.js';
import { baseOf, send } from '../request.js';
import type { JoinOptions, RoomState, Topology } from './types.js';

export interface Joined {
  readonly participant: string;
  readonly secret: string;
  readonly state: RoomState;
  readonly positions: Readonly<Record<string, string>>;
  readonly ice_servers: RTCIceServer[];
}

/** To one participant, or to `switch`; `link` tells the links apart that two have had one after the other. */
export interface Signal {
  readonly description?: RTCSessionDescriptionInit;
  readonly candidate?: RTCIceCandidateInit | null;
  readonly bye?: string;
  readonly link?: string;
  /** Whose the streams are that come by this link: their ids by those of participants. */
  readonly streams?: Readonly<Record<string, string>>;
}

/** How often something that may be done twice is tried. */
const TRIES = 6;

export class Server {
  readonly #base: string;
  readonly #options: JoinOptions;
  readonly #participants: string;
  /** That, and from joining on one's own. */
  #path: string;
  #secret = '';
  #number = 0;
  /** Signals keep their order: each is sent when the one before has arrived. */
  #before: Promise<void> = Promise.resolve();

  constructor(url: string | URL, room: string, options: JoinOptions) {
    this.#base = baseOf(url);
    this.#options = options;
    this.#path = this.#participants = `/v1/rooms/${room}/participants`;
  }

  /** Once; with a relay, where there is one. */
  async join(topology: Topology | undefined): Promise<Joined> {
    const { name, role } = this.#options;
    const joined = (await (await this.#ask('POST', this.#path, { name, topology, role })).json()) as Joined;
    this.#path += `/${joined.participant}`;
    this.#secret = joined.secret;
    if (!joined.ice_servers.length && typeof RTCPeerConnection !== 'undefined') joined.ice_servers.push(...(await this.#relay()));
    return joined;
  }

  /** A relay for when there is no other way; none where the server has none, or gives it to others only. */
  async #relay(): Promise<RTCIceServer[]> {
    try {
      return ((await (await this.#ask('POST', '/v1/turn')).json()) as { ice_servers: RTCIceServer[] }).ice_servers;
    } catch (thrown) {
      const { retryable } = toError(thrown);
      if (retryable) throw thrown;
      return [];
    }
  }

  /** Arrives once, and after those before; gives up when the other has gone. */
  signal(to: string, signal: Signal): void {
    const key = `${++this.#number}`;
    this.#before = this.#before.then(() => this.#insist(`${this.#path}/signals`, { to, ...signal }, key)).catch(() => {});
  }

  /** Throws a MillraceError with `reason` `not_found` when the server no longer knows the participant. */
  async report(report: object): Promise<void> {
    await this.#ask('POST', `${this.#path}/reports`, report);
  }

  /** Of anybody; it takes a right, and no secret. */
  async mute(id: string, what: object): Promise<void> {
    await this.#ask('POST', `${this.#participants}/${encodeURIComponent(id)}/mute`, what);
  }

  async leave(): Promise<void> {
    await this.#ask('DELETE', this.#path, undefined, undefined, true);
  }

  async #insist(path: string, body: object, key: string): Promise<void> {
    for (let tried = 1; ; tried++) {
      try {
        await this.#ask('POST', path, body, key);
        return;
      } catch (thrown) {
        const error = toError(thrown);
        if (!error.retryable || tried >= TRIES) throw error;
        await sleep(pauseOf(error, tried, { min: 250 }));
      }
    }
  }

  async #ask(method: string, path: string, body?: object, key?: string, keepalive = false): Promise<Response> {
    const signal = AbortSignal.timeout(10_000);
    const token = await tokenOf(this.#options, 'connect', signal);
    const headers = {
      ...(token !== undefined && { Authorization: `Bearer ${token}` }),
      ...(this.#secret && { 'Millrace-Participant': this.#secret }),
      ...(key && { 'Idempotency-Key': key }),
    };
    const response = await send(this.#options.fetch, this.#base + path, { method, headers, signal, keepalive, cache: 'no-store', ...(body && { body: JSON.stringify(body) }) });
    if (response.ok) return response;
    throw await problem(response);
  }
}
