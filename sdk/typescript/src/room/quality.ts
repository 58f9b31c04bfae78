// Measures a link since the last reading, with the metrics of Lozano's thesis: rate, RTT, OWD, loss, residual loss,
// set-up time, CPU. Source: W3C "Identifiers for WebRTC's Statistics API"; docs/reference/rooms.md, "Measuring".
import type { LinkQuality, StreamQuality } from './types.js';

/** A link that a meter reads. */
export interface Metered {
  readonly to: string;
  readonly pc: RTCPeerConnection;
  /** Time of `performance.now()`. */
  readonly connectedAt: number;
  readonly setupMs: number | undefined;
  ownerOf(trackId: string): string | undefined;
}

export interface Measured {
  readonly link: LinkQuality;
  /** Bandwidth estimate of the browser; undefined in Firefox, and in Safari from 16.2 on, which do not report it. */
  readonly uplink_kbps: number | undefined;
  /** Seconds spent in encoding and decoding, per second. */
  readonly codec_cpu: number;
}

type Stat = Record<string, any>;

export class Meter {
  /** Time of the last reading; 0 before the first one, which counts from the connection of the link. */
  #at = 0;
  /** Counters at the last reading, by the stream's id in the statistics. */
  #last = new Map<string, Stat>();

  async read({ to, pc, connectedAt, setupMs, ownerOf }: Metered): Promise<Measured> {
    const stats = (await pc.getStats()) as unknown as Map<string, Stat>;
    const [last, now] = [this.#last, performance.now()];
    const ms = Math.max(now - (this.#at || connectedAt), 1);
    this.#at = now;
    this.#last = new Map();
    /** Returns the increase of a counter since the last reading. */
    const more = (one: Stat, name: string): number => Math.max((one[name] ?? 0) - (last.get(one['id'])?.[name] ?? 0), 0);
    const kbps = (bytes: number): number => round((bytes * 8) / ms);
    const sum = { received: 0, sent: 0, lost: 0, unrepaired: 0, expected: 0, decoded: 0, frames: 0, frozen: 0, dataIn: 0, dataOut: 0, busy: 0 };
    const remotes = new Map<string, Stat>();
    for (const one of stats.values()) if (/^remote-/.test(one['type'])) remotes.set(one['localId'], one);
    const pair = selectedPair(stats);
    const ends = [pair?.['localCandidateId'], pair?.['remoteCandidateId']].map((id) => stats.get(id)?.['candidateType'] ?? '');
    const kind = ends.includes('relay') ? 'relay' : ends[0];
    // Firefox before 142 reports no time of a pair; later ones whole milliseconds. A time of 0 is shorter than that, or
    // the value before the first check.
    const time = pair?.['currentRoundTripTime'];
    const rtt = known((time || pair?.['responsesReceived'] ? time : NaN) * 1000);
    const uplink = known((pair?.['availableOutgoingBitrate'] || NaN) / 1000);
    const streams: StreamQuality[] = [];
    for (const one of stats.values()) {
      const remote = remotes.get(one['id']);
      const isIn = one['type'] === 'inbound-rtp';
      if (one['type'] === 'data-channel') {
        sum.dataIn += more(one, 'bytesReceived');
        sum.dataOut += more(one, 'bytesSent');
      } else if (isIn || one['type'] === 'outbound-rtp') {
        const [bytes, frames] = [more(one, isIn ? 'bytesReceived' : 'bytesSent'), more(one, isIn ? 'framesDecoded' : 'framesEncoded')];
        const [sent, target] = [more(one, 'packetsSent'), one['targetBitrate']];
        // Retransmissions have their own sequence numbers (RTX), so a repaired packet still counts as lost.
        const [lost, repaired] = [more(one, 'packetsLost'), more(one, 'retransmittedPacketsReceived') + more(one, 'fecPacketsReceived')];
        const expected = lost + Math.max(more(one, 'packetsReceived') - repaired, 0);
        const unrepaired = Math.max(lost - repaired, 0);
        const frozen = more(one, 'totalFreezesDuration') * 1000;
        sum[isIn ? 'received' : 'sent'] += bytes;
        sum.busy += more(one, 'totalDecodeTime') + more(one, 'totalEncodeTime');
        if (isIn) {
          sum.lost += lost;
          sum.unrepaired += unrepaired;
          sum.expected += expected;
          sum.decoded += one['kind'] === 'video' ? frames : 0;
          sum.frames += one['framesDecoded'] ?? 0;
          sum.frozen += frozen;
        }
        // Firefox names no media source of an outgoing stream, only its line of the SDP (`mid`).
        const source = isIn ? one : stats.get(one['mediaSourceId']);
        const from = ownerOf(source ? source['trackIdentifier'] : pc.getTransceivers().find(({ mid }) => mid === one['mid'])?.sender.track?.id);
        if (from !== undefined && (one['bytesReceived'] || one['bytesSent'])) {
          const streamRtt = known((remote?.['roundTripTime'] || NaN) * 1000) ?? rtt;
          const fractionLost = known(remote?.['fractionLost']);
          streams.push({
            from,
            direction: isIn ? 'in' : 'out',
            kind: one['kind'],
            ...(one['rid'] && { layer: one['rid'] }),
            rate_kbps: kbps(bytes),
            ...(streamRtt !== undefined && { rtt_ms: round(streamRtt) }),
            ...(isIn ? { loss: share(lost, expected), residual_loss: share(unrepaired, expected), ...owd(remote, streamRtt) } : fractionLost !== undefined && { loss: round(Math.min(Math.max(fractionLost, 0), 1)) }),
            ...(one['kind'] === 'video' && {
              fps: round((frames * 1000) / ms),
              width: one['frameWidth'] ?? 0,
              height: one['frameHeight'] ?? 0,
              ...(isIn && { freezes: more(one, 'freezeCount'), frozen_ms: round(frozen) }),
              ...(!isIn && { retransmitted: Math.min(share(more(one, 'retransmittedPacketsSent'), sent), 1) }),
              ...(target && { target_kbps: round(target / 1000) }),
              ...(one['qualityLimitationReason'] && { limited_by: one['qualityLimitationReason'] }),
            }),
            codec: String(stats.get(one['codecId'])?.['mimeType'] ?? '').replace(/^.*\//, ''),
          });
        }
      } else continue;
      this.#last.set(one['id'], one);
    }
    const link: LinkQuality = {
      to,
      rate_kbps: kbps(sum.received),
      sent_kbps: kbps(sum.sent),
      data_kbps: kbps(sum.dataIn),
      data_sent_kbps: kbps(sum.dataOut),
      ...(uplink !== undefined && { uplink_kbps: round(uplink) }),
      ...(rtt !== undefined && { rtt_ms: round(rtt) }),
      loss: share(sum.lost, sum.expected),
      residual_loss: share(sum.unrepaired, sum.expected),
      fps: round((sum.decoded * 1000) / ms),
      frames: sum.frames,
      frozen_ms: round(sum.frozen),
      kind,
      ...(setupMs !== undefined && { setup_ms: round(setupMs) }),
      streams,
    };
    return { link, uplink_kbps: uplink === undefined ? undefined : round(uplink), codec_cpu: round((sum.busy * 1000) / ms) };
  }
}

/**
 * Returns the candidate pair in use. Firefox before 153 has no `selectedCandidatePairId`; there, the pair in use is the
 * nominated one.
 */
function selectedPair(stats: Map<string, Stat>): Stat | undefined {
  const all = [...stats.values()];
  const id = all.find((one) => one['selectedCandidatePairId'])?.['selectedCandidatePairId'];
  return stats.get(id) ?? all.find((one) => one['nominated'] && one['state'] === 'succeeded');
}

/**
 * Returns the one-way delay: arrival by this machine's clock minus the sender's time of its report. The result is valid
 * only if both clocks agree, so it is omitted unless it lies between 0 and the round-trip time.
 */
function owd(remote: Stat | undefined, rtt = 0): { owd_ms?: number } {
  const ms = remote?.['remoteTimestamp'] && remote['type'] === 'remote-outbound-rtp' ? remote['timestamp'] - remote['remoteTimestamp'] : -1;
  return ms >= 0 && ms <= rtt + 1 ? { owd_ms: round(ms) } : {};
}

/** Returns a figure of the browser, or undefined if the browser does not report it. */
const known = (figure: unknown): number | undefined => (typeof figure === 'number' && Number.isFinite(figure) ? figure : undefined);
const share = (part: number, whole: number): number => (whole > 0 ? round(part / whole) : 0);
const round = (figure: number): number => Math.round(figure * 1000) / 1000;
