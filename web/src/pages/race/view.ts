/** Contents of a lane card. */
import { describe, type Figures } from './figures';
import { LANES, type Impairment, type LaneName, type ServerLane } from './api';
import type { Reader } from './reader';

/** Delay of each direction, and rate, that the buttons set. */
export const DELAY_MS = 250;
export const RATE_KBIT_S = 16;

/** Time for a first connection; then the card says why there may be none. */
const FIRST_MS = 6_000;

export interface View {
  readonly name: LaneName;
  readonly label: string;
  readonly state: 'open' | 'waiting' | 'impaired' | 'failed';
  readonly stateLabel: string;
  readonly impairment: Impairment;
  readonly symbol: string | undefined;
  readonly price: number | undefined;
  readonly ageMs: number | undefined;
  readonly p99: number | undefined;
  readonly bytesPerTick: number | undefined;
  readonly requests: number;
  readonly reconnects: number;
  readonly progress: number;
  readonly place: string;
}

/** `reader`: `undefined` if the server has no port for this lane. `waitedMs`: time since the page opened the lane. */
export function viewOf(lane: ServerLane, figures: Figures, reader: Reader | undefined, now: number, waitedMs: number, place: string): View {
  const { label, how } = LANES.find(({ name }) => name === lane.transport)!;
  const { bytesPerTick, requests, reconnects } = figures.row();
  const link = describe(lane);
  const [state, stateLabel] = ((): [View['state'], string] => {
    if (!reader) return ['failed', 'The server has no data channels (rtc.listen)'];
    if (reader.refusal !== undefined) return ['failed', reader.refusal];
    if (link) return ['impaired', link];
    if (reader.isOpen) return ['open', how];
    if (figures.newest || waitedMs < FIRST_MS) return ['waiting', figures.newest ? 'Reconnecting…' : 'Connecting…'];
    return ['waiting', lane.transport === 'data-channel' ? 'No connection: Firefox has no WebRTC on loopback' : 'No connection yet'];
  })();
  return {
    name: lane.transport, label, state, stateLabel, impairment: { cut: lane.cut, delay_ms: lane.delay_ms, rate_kbit_s: lane.rate_kbit_s },
    symbol: figures.shown?.symbol, price: figures.shown?.price, ageMs: figures.newest && Math.max(0, now - figures.newest.time), p99: figures.recentP99,
    bytesPerTick, requests, reconnects, progress: figures.progress, place,
  };
}
