/** Requests to the lanes of the server (docs/reference/race.md). */
import { request } from '../../lib/request';

/** Transports of the lanes, in the server's order. */
export const LANES = [
  { name: 'websocket', label: 'WebSocket, bare', how: 'payloads only' },
  { name: 'session', label: 'WebSocket session', how: 'one connection' },
  { name: 'sse', label: 'SSE', how: 'one response' },
  { name: 'stream', label: 'HTTP streaming', how: 'one response' },
  { name: 'long-polling', label: 'Long polling', how: 'a request per tick' },
  { name: 'polling', label: 'Polling', how: 'a request per second' },
  { name: 'data-channel', label: 'Data channel', how: 'WebRTC over UDP' },
] as const;

export type LaneName = (typeof LANES)[number]['name'];

export const labelOf = (name: LaneName): string => LANES.find((lane) => lane.name === name)!.label;

export interface Impairment {
  readonly cut: boolean;
  readonly delay_ms: number;
  readonly rate_kbit_s: number;
}

/** State of a lane, as `GET /v1/race` returns it. */
export interface ServerLane extends Impairment {
  readonly transport: LaneName;
  readonly port: number;
  readonly datagram_ports: readonly { readonly server: number; readonly lane: number }[];
  readonly connections: number;
  readonly opened: number;
  readonly bytes_up: number;
  readonly bytes_down: number;
}

export interface ServerRace {
  readonly time_ms: number;
  readonly may_control: boolean;
  readonly lanes: readonly ServerLane[];
}

export class Api {
  constructor(readonly token: string | undefined) {}

  lanes = (signal?: AbortSignal): Promise<ServerRace> => request('/v1/race', this.token, { ...(signal && { signal }) });

  impair = (lane: LaneName, impairment: Impairment, reset = false): Promise<ServerLane> =>
    request(`/v1/race/${lane}`, this.token, { method: 'POST', body: JSON.stringify({ cut: impairment.cut, delay_ms: impairment.delay_ms, rate_kbit_s: impairment.rate_kbit_s, reset }) });
}

/**
 * Replaces the server's ports in an SDP answer by those of the lane, and drops candidates over TCP, which would pass
 * beside the lane. Source: RFC 8839, section 5.1.
 */
export function relayed(sdp: string, ports: ServerLane['datagram_ports']): string {
  const lines = sdp.split('\r\n').flatMap((line) => {
    if (!line.startsWith('a=candidate:')) return [line];
    const fields = line.split(' ');
    const pair = ports.find(({ server }) => String(server) === fields[5]);
    if (fields[2]?.toLowerCase() !== 'udp' || !pair) return [];
    fields[5] = String(pair.lane);
    return [fields.join(' ')];
  });
  return lines.join('\r\n');
}
