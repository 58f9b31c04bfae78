/** Explains in words why a call is bad, from the measurements of the browser and of the SFU. Uses no DOM. */
import { isByServer, type LinkQuality, type Quality, type RoomState, type StreamQuality } from '@millrace/client/room';
import { SWITCH } from './graph';
import type { Report, SwitchView } from './view';

export interface Reason {
  readonly weight: 'bad' | 'warn' | 'note';
  readonly text: string;
}

export interface Seen {
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

export function whyBad(seen: Seen): readonly Reason[] {
  const { samples, state, nameOf, missing, me, reports } = seen;
  const reasons: Reason[] = [];
  const say = (weight: Reason['weight'], text: string): void => void reasons.push({ weight, text });
  for (const id of missing) say('bad', `There is no connection with ${id === SWITCH ? 'the server' : nameOf(id)}. It is tried again.`);
  const last = samples.at(-1);
  for (const link of last?.links ?? []) {
    const whom = link.to === SWITCH ? 'the server' : nameOf(link.to);
    const over = samples.flatMap((sample) => sample.links.filter(({ to }) => to === link.to));
    way(link, whom, state, say);
    incoming(over, seen, say);
    outgoing(link, last!, seen, say);
  }
  unit(seen, say);
  for (const { id } of state.participants) {
    if (id === me) continue;
    for (const link of reports.get(id)?.links ?? []) {
      if (link.to !== me) continue;
      for (const stream of link.streams ?? []) {
        if (stream.direction === 'in' && stream.from === me && stream.kind === 'video' && (stream.frozen_ms ?? 0) > 500) say('warn', `${nameOf(id)} sees your picture stand still (${seconds(stream.frozen_ms!)} of the last five).`);
      }
    }
  }
  const failed = last?.calls_failed ?? 0;
  if (failed) say('note', `${failed} of ${last!.calls} connections that were tried since you joined could not be made.`);
  const order = { bad: 0, warn: 1, note: 2 };
  return reasons.sort((a, b) => order[a.weight] - order[b.weight]);
}

type Say = (weight: Reason['weight'], text: string) => void;

function way({ kind, rtt_ms }: LinkQuality, whom: string, state: RoomState, say: Say): void {
  if (kind === 'relay') say('note', state.topology === 'relay' ? `All with ${whom} goes through a relay, as this room wants it.` : `No straight way to ${whom} was found: all goes through a relay, which takes longer.`);
  if (rtt_ms > RTT.warn) say(rtt_ms > RTT.bad ? 'bad' : 'warn', `The way to ${whom} and back takes ${Math.round(rtt_ms)} ms: you will talk at the same time.`);
}

function incoming(links: readonly LinkQuality[], { nameOf, overMs }: Seen, say: Say): void {
  const streams = links.flatMap((link) => link.streams).filter(({ direction }) => direction === 'in');
  const by = new Map<string, StreamQuality[]>();
  for (const one of streams) by.set(`${one.from} ${one.kind}`, [...(by.get(`${one.from} ${one.kind}`) ?? []), one]);
  for (const all of by.values()) {
    const { from, kind } = all[0]!;
    const what = `${possessive(nameOf(from))} ${kind === 'video' ? 'picture' : 'sound'}`;
    const frozen = sum(all, 'frozen_ms');
    if (frozen > 200) say(frozen > Math.max(overMs * FROZEN_BAD.share, FROZEN_BAD.ms) ? 'bad' : 'warn', `${what} stood still for ${seconds(frozen)} in the last ${seconds(overMs)}.`);
    const [loss, residual] = [sum(all, 'loss') / all.length, sum(all, 'residual_loss') / all.length];
    if (loss > LOSS.warn) {
      const rest = residual > 0.002 ? `, and ${percent(residual)} could not be repaired` : ', and all were sent again in time';
      say(residual > LOSS.bad || loss > LOSS.bad ? 'bad' : 'warn', `${percent(loss)} of the packets of ${what} are lost on their way to you${rest}.`);
    }
    const now = all.at(-1)!;
    if (kind === 'video' && all.length > 2 && !frozen && now.rate_kbps > 40 && (now.fps ?? 0) < FPS_LOW) say('warn', `Of ${what} only ${Math.round(now.fps ?? 0)} per second come.`);
  }
}

function outgoing(link: LinkQuality, quality: Quality, { nameOf }: Seen, say: Say): void {
  const sent = link.streams.filter(({ direction, kind }) => direction === 'out' && kind === 'video');
  const whom = link.to === SWITCH ? 'the server' : nameOf(link.to);
  const limited = (by: StreamQuality['limited_by']): StreamQuality | undefined => sent.find(({ limited_by }) => limited_by === by);
  const cpu = limited('cpu');
  if (cpu) say('warn', `This device does not encode fast enough: your picture to ${whom} is sent ${size(cpu)}.`);
  const bandwidth = limited('bandwidth');
  if (bandwidth) say('warn', `Your way to ${whom} carries too little${quality.uplink_kbps ? ` (about ${Math.round(quality.uplink_kbps)} kbit/s)` : ''}: your picture is sent ${size(bandwidth)}.`);
  const lossy = sent.find(({ loss }) => loss > LOSS.warn);
  if (lossy) say(lossy.loss > LOSS.bad ? 'bad' : 'warn', `${percent(lossy.loss)} of the packets of your picture are lost on their way to ${whom}.`);
}

/** Adds reasons that only the SFU can report. */
function unit({ me, views, viewBefore, nameOf, state }: Seen, say: Say): void {
  const now = views.get(me);
  if (!isByServer(state.topology) || !now) return;
  const carries = now.estimate_kbps ? `: your way carries about ${now.estimate_kbps} kbit/s` : '';
  for (const { from, kind, layer, layer_switches, last_switch, is_waiting } of now.receives) {
    if (kind !== 'video' || state.participants.some((one) => one.id === from && one.muted_by_host?.includes('video'))) continue;
    const picture = `${possessive(nameOf(from))} picture`;
    const switched = layer_switches - (viewBefore?.receives.find((one) => one.from === from && one.kind === kind)?.layer_switches ?? layer_switches);
    if (switched >= SWITCHES_MANY) say('warn', `${picture} has changed its size ${switched} times in the last minute: your way is uneven.`);
    if (layer === null) say('note', `${picture} begins with its next key frame.`);
    const layers = views.get(from)?.sends.find((sent) => sent.kind === 'video')?.layers_kbps ?? [];
    if (!is_waiting && layer !== null && (layers[layer] ?? 0) < 0.7 * Math.max(...layers, 0)) say('note', `The server sends you a smaller copy of ${picture}${last_switch?.why === 'floor' ? ': somebody else speaks' : last_switch?.why === 'gone' ? ': its sender has stopped the better one' : carries}.`);
  }
}

const sum = (streams: readonly StreamQuality[], name: 'frozen_ms' | 'loss' | 'residual_loss'): number => streams.reduce((all, one) => all + (one[name] ?? 0), 0);
const seconds = (ms: number): string => `${(ms / 1000).toFixed(1)} s`;
const percent = (share: number): string => `${(share * 100).toFixed(share < 0.1 ? 1 : 0)} %`;
const possessive = (name: string): string => (name === 'You' ? 'Your' : `${name}’s`);
const size = ({ width, height, fps }: StreamQuality): string => (width && height ? `with ${width} × ${height} and ${Math.round(fps ?? 0)} pictures per second` : 'smaller');
