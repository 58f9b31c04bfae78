/** Display names of the report. */
import { bytes, percent, plain, us, type Format } from '../../lib/chart/units';
import { ink, type Ink } from '../../lib/chart/palette';
import type { Analysis, Load, LoadUnit, Point } from './analysis';

const TARGETS: Readonly<Record<string, string>> = {
  millrace: 'Millrace', ws: 'ws', bun: 'Bun', uws: 'uWebSockets', socketio: 'Socket.IO', engineio: 'Engine.IO',
  socketcluster: 'SocketCluster', nats: 'NATS', nchan: 'Nchan', mosquitto: 'Mosquitto', pushpin: 'Pushpin', centrifugo: 'Centrifugo', mercure: 'Mercure',
  'durable-streams': 'Durable Streams',
};
const TRANSPORTS: Readonly<Record<string, string>> = {
  websocket: 'WebSocket', session: 'WebSocket session', sse: 'SSE', stream: 'HTTP streaming', ndjson: 'HTTP streaming', 'long-polling': 'Long polling', polling: 'Polling',
  'data-channel': 'Data channel',
};
const LOADS: Readonly<Record<LoadUnit, string>> = {
  clients: 'clients', publishers: 'publishers', connections: 'connections', 'each-per-second': 'publications per second each', bytes: 'bytes of payload', 'server-cpus': 'CPUs of the server',
};

export const targetName = (name: string): string => TARGETS[name] ?? name;
export const transportName = (name: string): string => TRANSPORTS[name] ?? name;
export const loadUnit = (unit: LoadUnit): string => LOADS[unit];
export const loadName = ({ value, counts }: Load): string => {
  const unit = LOADS[counts];
  return `${plain(value)} ${value === 1 && unit.endsWith('s') && counts !== 'bytes' ? unit.slice(0, -1) : unit}`;
};

/** Returns the format for the unit of a metric. */
export function inUnit(unit: string): Format {
  switch (unit) {
    case 'us': return us;
    case 'bytes': return bytes;
    case 'share': return percent;
    case 'per s': return (value) => `${plain(value)}/s`;
    case 'cores': return percent;
    default: return plain;
  }
}

export interface LineKey {
  readonly part: string;
  readonly target: string;
  readonly transport: string;
}

export const isSameLine = (a: LineKey, b: LineKey): boolean => a.part === b.part && a.target === b.target && a.transport === b.transport;

/**
 * Names and styles of the lines. A name contains only what distinguishes the lines of one report. A line has the same
 * color and mark in all charts.
 */
export class LineStyles {
  readonly lines: readonly (LineKey & { readonly name: string; readonly ink: Ink })[];
  /** Millrace first, then in the order of `TARGETS`. */
  readonly targets: string[];
  readonly transports: string[];

  constructor(analysis: Analysis) {
    const unique = (of: (point: Point) => string) => [...new Set(analysis.points.map(of))];
    this.targets = unique((point) => point.target);
    this.transports = unique((point) => point.transport);
    const known = (all: Readonly<Record<string, string>>, name: string) => (name in all ? Object.keys(all).indexOf(name) : 99);
    this.targets.sort((a, b) => known(TARGETS, a) - known(TARGETS, b));
    this.transports.sort((a, b) => known(TRANSPORTS, a) - known(TRANSPORTS, b));
    const keys: LineKey[] = [];
    for (const { part, target, transport } of analysis.points) if (!keys.some((key) => isSameLine(key, { part, target, transport }))) keys.push({ part, target, transport });
    keys.sort((a, b) => this.place(a) - this.place(b));
    // Many servers with few transports get a color per server. One server with many transports gets a color per
    // transport.
    const pairs = [...new Set(keys.map((key) => `${key.target} ${key.transport}`))];
    this.lines = keys.map((key) => ({ ...key, name: this.#name(key), ink: ink(pairs.indexOf(`${key.target} ${key.transport}`)) }));
  }

  #name({ target, transport }: LineKey): string {
    if (this.targets.length === 1) return transportName(transport);
    if (this.transports.length === 1) return targetName(target);
    return `${targetName(target)} ${transportName(transport)}`;
  }

  /** Returns the position of a line in the drawing order. */
  place({ target, transport }: Pick<LineKey, 'target' | 'transport'>): number {
    return this.targets.indexOf(target) * 100 + this.transports.indexOf(transport);
  }

  of(key: LineKey): { readonly name: string; readonly ink: Ink } {
    return this.lines.find((line) => isSameLine(line, key)) ?? { name: `${key.target} ${key.transport}`, ink: ink(0) };
  }
}
