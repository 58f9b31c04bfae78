/** Explains in words why a call is bad, from the measurements of the browser and of the SFU. Uses no DOM. */
import { isByServer, type LinkQuality, type Quality, type RoomState, type StreamQuality } from '@millrace/client/room';
import { SWITCH } from './graph';
import type { Report, SwitchView } from './view';

export interface Reason {
  readonly weight: 'bad' | 'warn' | 'note';
  readonly text: string;
}

export interface Observations {
  readonly me: string;
  readonly state: RoomState;
  /** Measurements of this browser of about ten seconds, newest last. */
  readonly samples: readonly Quality[];
  /** Milliseconds covered by the samples. */
  readonly overMs: number;
  /** Reports of the SFU about each participant, and its report about this participant a minute ago. */
  readonly views: ReadonlyMap<string, SwitchView>;
  readonly viewBefore: SwitchView | undefined;
  readonly reports: ReadonlyMap<string, Report>;
  /** Participants to whom a connection is missing. */
  readonly missing: readonly string[];
  readonly nameOf: (id: string) => string;
}

/** Shares of lost packets: one in fifty is noticeable, one in ten is too many. */
const LOSS = { warn: 0.02, bad: 0.1 };
/**
 * Round-trip time, ms. A one-way delay of 150 ms disturbs a conversation, and 400 ms makes it impossible (ITU-T G.114).
 */
const RTT = { warn: 300, bad: 800 };
/** Share of the observed time, and minimum duration. The first frames of a call may freeze for a moment. */
const FROZEN_BAD = { share: 0.1, ms: 1_000 };
const FPS_LOW = 10;
const SWITCHES_MANY = 3;

export function diagnose(observed: Observations): readonly Reason[] {
  const { samples, state, nameOf, missing, me, reports } = observed;
  const reasons: Reason[] = [];
  const add: Add = (weight, text) => void reasons.push({ weight, text });
  const peerName = (id: string): string => (id === SWITCH ? 'the server' : nameOf(id));
  for (const id of missing) add('bad', `No connection to ${peerName(id)}. Reconnecting…`);
  const last = samples.at(-1);
  for (const link of last?.links ?? []) {
    const peer = peerName(link.to);
    const over = samples.flatMap((sample) => sample.links.filter(({ to }) => to === link.to));
    path(link, peer, state, add);
    incoming(over, observed, add);
    outgoing(link, last!, peer, add);
  }
  sfu(observed, add);
  for (const { id } of state.participants) {
    if (id === me) continue;
    for (const link of reports.get(id)?.links ?? []) {
      if (link.to !== me) continue;
      for (const stream of link.streams ?? []) {
        if (stream.direction === 'in' && stream.from === me && stream.kind === 'video' && (stream.frozen_ms ?? 0) > 500) add('warn', `${nameOf(id)} sees your video freeze (${seconds(stream.frozen_ms!)} of the last 5 s).`);
      }
    }
  }
  const failed = last?.calls_failed ?? 0;
  if (failed) add('note', `${failed} of ${last!.calls} connections since you joined could not be established.`);
  const order = { bad: 0, warn: 1, note: 2 };
  return reasons.sort((a, b) => order[a.weight] - order[b.weight]);
}

type Add = (weight: Reason['weight'], text: string) => void;

function path({ kind, rtt_ms = 0 }: LinkQuality, peer: string, state: RoomState, add: Add): void {
  if (kind === 'relay') add('note', state.topology === 'relay' ? `Traffic with ${peer} goes through a relay, as the topology of this room requires.` : `No direct path to ${peer} was found. Traffic goes through a relay, which adds delay.`);
  if (rtt_ms > RTT.warn) add(rtt_ms > RTT.bad ? 'bad' : 'warn', `The round-trip time to ${peer} is ${Math.round(rtt_ms)} ms. You may interrupt each other.`);
}

function incoming(links: readonly LinkQuality[], { nameOf, overMs }: Observations, add: Add): void {
  const streams = links.flatMap((link) => link.streams).filter(({ direction }) => direction === 'in');
  const by = new Map<string, StreamQuality[]>();
  for (const one of streams) by.set(`${one.from} ${one.kind}`, [...(by.get(`${one.from} ${one.kind}`) ?? []), one]);
  for (const all of by.values()) {
    const { from, kind } = all[0]!;
    const media = `${possessive(nameOf(from))} ${kind}`;
    const frozen = sum(all, 'frozen_ms');
    if (frozen > 200) add(frozen > Math.max(overMs * FROZEN_BAD.share, FROZEN_BAD.ms) ? 'bad' : 'warn', `${media} froze for ${seconds(frozen)} in the last ${seconds(overMs)}.`);
    const [loss, residual] = [sum(all, 'loss') / all.length, sum(all, 'residual_loss') / all.length];
    if (loss > LOSS.warn) {
      const rest = residual > 0.002 ? `, and ${percent(residual)} could not be repaired` : ', and all were retransmitted in time';
      add(residual > LOSS.bad || loss > LOSS.bad ? 'bad' : 'warn', `${percent(loss)} of the packets of ${media} are lost on the path to you${rest}.`);
    }
    const now = all.at(-1)!;
    if (kind === 'video' && all.length > 2 && !frozen && now.rate_kbps > 40 && (now.fps ?? 0) < FPS_LOW) add('warn', `${media} arrives with only ${Math.round(now.fps ?? 0)} frames per second.`);
  }
}

function outgoing(link: LinkQuality, quality: Quality, peer: string, add: Add): void {
  const sent = link.streams.filter(({ direction, kind }) => direction === 'out' && kind === 'video');
  const limited = (by: StreamQuality['limited_by']): StreamQuality | undefined => sent.find(({ limited_by }) => limited_by === by);
  const cpu = limited('cpu');
  if (cpu) add('warn', `This device is too slow to encode your video, so ${peer} receives it ${size(cpu)}.`);
  const bandwidth = limited('bandwidth');
  if (bandwidth) add('warn', `Your upload bandwidth to ${peer} is too low${quality.uplink_kbps ? ` (about ${Math.round(quality.uplink_kbps)} kbit/s)` : ''}, so your video is sent ${size(bandwidth)}.`);
  const lossy = sent.find(({ loss = 0 }) => loss > LOSS.warn);
  if (lossy) add(lossy.loss! > LOSS.bad ? 'bad' : 'warn', `${percent(lossy.loss!)} of the packets of your video are lost on the path to ${peer}.`);
}

/** Adds reasons that only the SFU can report. */
function sfu({ me, views, viewBefore, nameOf, state }: Observations, add: Add): void {
  const now = views.get(me);
  if (!isByServer(state.topology) || !now) return;
  const bandwidth = now.estimate_kbps ? `: your download bandwidth is about ${now.estimate_kbps} kbit/s` : '';
  for (const { from, kind, layer, layer_switches, last_switch, is_waiting } of now.receives) {
    if (kind !== 'video' || state.participants.some((one) => one.id === from && one.muted_by_host?.includes('video'))) continue;
    const video = `${possessive(nameOf(from))} video`;
    const switched = layer_switches - (viewBefore?.receives.find((one) => one.from === from && one.kind === kind)?.layer_switches ?? layer_switches);
    if (switched >= SWITCHES_MANY) add('warn', `${video} changed its resolution ${switched} times in the last minute: your download bandwidth varies.`);
    if (layer === null) add('note', `${video} starts with its next keyframe.`);
    const layers = views.get(from)?.sends.find((sent) => sent.kind === 'video')?.layers_kbps ?? [];
    if (!is_waiting && layer !== null && (layers[layer] ?? 0) < 0.7 * Math.max(...layers, 0)) add('note', `The server sends you a lower resolution of ${video}${last_switch?.why === 'floor' ? ': another participant is the active speaker' : last_switch?.why === 'gone' ? ': its sender has stopped the higher one' : bandwidth}.`);
  }
}

const sum = (streams: readonly StreamQuality[], name: 'frozen_ms' | 'loss' | 'residual_loss'): number => streams.reduce((all, one) => all + (one[name] ?? 0), 0);
const seconds = (ms: number): string => `${(ms / 1000).toFixed(1)} s`;
const percent = (share: number): string => `${(share * 100).toFixed(share < 0.1 ? 1 : 0)} %`;
const possessive = (name: string): string => (name === 'You' ? 'Your' : `${name}’s`);
const size = ({ width, height, fps }: StreamQuality): string => (width && height ? `at ${width} × ${height} and ${Math.round(fps ?? 0)} frames per second` : 'at a lower resolution');
