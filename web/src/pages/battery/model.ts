/**
 * Power of a phone that forwards between data channels: the same model as `millrace lab battery`
 * (crates/lab/src/energy/phone_gateway.rs). `millrace lab battery --model` writes the coefficients; tests compare both.
 */
import model from './model.json' with { type: 'json' };

export type Forwarding = 'multiplexing' | 'demultiplexing';

export interface Duty {
  readonly forwarding: Forwarding;
  readonly peers: number;
  /** Messages per second of each peer. */
  readonly rate: number;
  /** Time for which messages are joined, ms; only for multiplexing. */
  readonly windowMs: number;
  /** Interval of heartbeats on each channel, s; 0: no heartbeats. Each is a message in both directions. */
  readonly heartbeatS: number;
}

export interface Power {
  readonly channels: number;
  readonly messagesPerS: number;
  readonly idleMw: number;
  readonly activeMw: number;
  readonly channelsMw: number;
  readonly messagesMw: number;
  readonly powerMw: number;
}

export function powerOf({ forwarding, peers, rate, windowMs, heartbeatS }: Duty): Power {
  const isJoining = forwarding === 'multiplexing';
  const channels = peers + (isJoining ? 1 : model.receivers);
  const received = peers * rate;
  // No more messages leave than arrive.
  const sent = isJoining ? Math.min(1000 / windowMs, received) : received * model.receivers;
  const heartbeats = heartbeatS > 0 ? (2 * channels) / heartbeatS : 0;
  const messagesPerS = received + sent + heartbeats;
  const [idleMw, activeMw] = [model.idle_mw[forwarding], model.active_mw[forwarding]];
  const [channelsMw, messagesMw] = [channels * model.per_channel_mw, messagesPerS * model.per_message_mj];
  return { channels, messagesPerS, idleMw, activeMw, channelsMw, messagesMw, powerMw: idleMw + activeMw + channelsMw + messagesMw };
}

export const hoursOf = (capacityWh: number, powerMw: number): number => capacityWh / (powerMw / 1000);

/** The four battery lives that Karadogan states, from his measured power. */
export const KARADOGAN_WH = 8;
const STATED = [
  ['multiplexing', 10, 6.1],
  ['multiplexing', 49, 4.7],
  ['demultiplexing', 10, 5.1],
  ['demultiplexing', 40, 3.4],
] as const;

export interface Stated {
  readonly duty: Duty;
  readonly measuredMw: number;
  readonly hours: number;
}

export const stated: readonly Stated[] = STATED.map(([forwarding, peers, hours]) => ({
  duty: { forwarding, peers, rate: 4, windowMs: 250, heartbeatS: 0 },
  measuredMw: model.published.find((row) => row.series === forwarding && row.peers === peers)!.mean_mw,
  hours,
}));
