/** Reads the ticks over one transport, through the lane's own origin, and counts what that takes. */
import { millrace, type Client, type TransportName } from '@millrace/client';
import { CHANNEL, tickOf, type Tick } from '../../lib/ticks';
import { relayed, type LaneName, type ServerLane } from './api';

/** Transports of the client. The bare WebSocket has no client: see `BareReader`. */
const CLIENT: Readonly<Record<Exclude<LaneName, 'websocket'>, TransportName>> = {
  session: 'websocket', sse: 'sse', stream: 'http-stream', 'long-polling': 'long-poll', polling: 'poll', 'data-channel': 'data-channel',
};
const RETRY = { min: 300, max: 2_000 };
/** The shortest heartbeat interval: a silent lane is noticed within about 7 s. */
const HEARTBEAT_MS = 5_000;

export interface Reader {
  readonly isOpen: boolean;
  /** Requests, connections of a WebSocket included. */
  readonly requests: number;
  readonly reconnects: number;
  /** The server's refusal, after which the reader does not try again. */
  readonly refusal: string | undefined;
  close(): void;
}

export type OnTick = (tick: Tick, now: number) => void;

export function read(lane: ServerLane, token: string | undefined, onTick: OnTick): Reader {
  const origin = `${location.protocol}//${location.hostname}:${lane.port}`;
  return lane.transport === 'websocket' ? new BareReader(origin, token, onTick) : new ClientReader(lane, origin, token, onTick);
}

/** A reader by the client. It resumes after its last tick, on every transport. */
class ClientReader implements Reader {
  requests = 0;
  refusal: string | undefined;
  readonly #client: Client;

  constructor(lane: ServerLane & { transport: string }, origin: string, token: string | undefined, onTick: OnTick) {
    const counted = (): void => void this.requests++;
    this.#client = millrace(origin, {
      ...(token !== undefined && { token }),
      transports: [CLIENT[lane.transport as Exclude<LaneName, 'websocket'>]],
      retry: RETRY,
      heartbeatMs: HEARTBEAT_MS,
      fetch: async (input, init) => {
        counted();
        const response = await fetch(input, init);
        if (lane.transport !== 'data-channel' || response.status !== 201) return response;
        return new Response(relayed(await response.text(), lane.datagram_ports), { status: 201, headers: response.headers });
      },
      WebSocket: class extends WebSocket {
        constructor(url: string | URL, protocols?: string | string[]) {
          super(url, protocols);
          counted();
        }
      },
    });
    this.#client.subscribe(CHANNEL).on(
      ({ data }) => {
        const tick = tickOf(data);
        if (tick) onTick(tick, Date.now());
      },
      (cause) => (this.refusal = cause?.message),
    );
  }

  get isOpen(): boolean {
    return this.#client.state.name === 'open';
  }

  get reconnects(): number {
    return this.#client.stats().reconnects;
  }

  close(): void {
    void this.#client.close();
  }
}

/**
 * A reader by a WebSocket alone, without the client. It connects again after a lost connection, and misses what was
 * published meanwhile.
 */
class BareReader implements Reader {
  requests = 0;
  reconnects = 0;
  readonly refusal = undefined;
  #socket: WebSocket | undefined;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #isClosed = false;

  constructor(
    readonly origin: string,
    readonly token: string | undefined,
    readonly onTick: OnTick,
  ) {
    this.#connect();
  }

  get isOpen(): boolean {
    return this.#socket?.readyState === WebSocket.OPEN;
  }

  close(): void {
    this.#isClosed = true;
    clearTimeout(this.#timer);
    this.#socket?.close();
  }

  #connect(): void {
    this.requests++;
    const url = `${this.origin.replace('http', 'ws')}/v1/channels/${CHANNEL}`;
    const socket = new WebSocket(url, this.token === undefined ? [] : ['millrace.bare', `bearer.${this.token}`]);
    this.#socket = socket;
    let hasOpened = false;
    socket.onopen = () => {
      hasOpened = true;
      if (this.requests > 1) this.reconnects++;
    };
    socket.onmessage = ({ data }) => {
      try {
        const tick = tickOf(JSON.parse(String(data)));
        if (tick) this.onTick(tick, Date.now());
      } catch {
        // Another publisher's message that is not JSON.
      }
    };
    socket.onclose = () => {
      if (!this.#isClosed) this.#timer = setTimeout(() => this.#connect(), hasOpened ? RETRY.min : RETRY.max);
    };
  }
}
