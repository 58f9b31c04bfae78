// What a link has carried since the last time. Source: W3C "Identifiers for WebRTC's Statistics API".
import type { LinkQuality } from './types.js';

interface Last {
  readonly at: number;
  readonly received: number;
  readonly sent: number;
  readonly lost: number;
  readonly packets: number;
  readonly frames: number;
  readonly frozen: number;
}

export class Meter {
  #last: Last | undefined;

  async read(to: string, pc: RTCPeerConnection): Promise<LinkQuality & { readonly uplink_kbps: number }> {
    const sum = { received: 0, sent: 0, lost: 0, packets: 0, frames: 0, frozen: 0 };
    let [rtt, uplink, kind] = [0, 0, ''];
    const stats = (await pc.getStats()) as unknown as Map<string, Record<string, any>>;
    for (const one of stats.values()) {
      if (one['type'] === 'inbound-rtp') {
        sum.received += one['bytesReceived'] ?? 0;
        sum.lost += one['packetsLost'] ?? 0;
        sum.packets += one['packetsReceived'] ?? 0;
        if (one['kind'] === 'video') {
          sum.frames += one['framesDecoded'] ?? 0;
          sum.frozen += (one['totalFreezesDuration'] ?? 0) * 1000;
        }
      } else if (one['type'] === 'outbound-rtp') sum.sent += one['bytesSent'] ?? 0;
      else if (one['type'] === 'transport' && one['selectedCandidatePairId']) {
        const pair = stats.get(one['selectedCandidatePairId']);
        rtt = (pair?.['currentRoundTripTime'] ?? 0) * 1000;
        uplink = (pair?.['availableOutgoingBitrate'] ?? 0) / 1000;
        kind = stats.get(pair?.['localCandidateId'])?.['candidateType'] ?? '';
      }
    }
    const now: Last = { at: performance.now(), ...sum };
    const last = this.#last ?? { at: now.at - 1, received: 0, sent: 0, lost: 0, packets: 0, frames: 0, frozen: 0 };
    const isFirst = !this.#last;
    this.#last = now;
    const ms = Math.max(now.at - last.at, 1);
    const per = (count: number): number => (isFirst ? 0 : round(count / ms));
    const lost = Math.max(now.lost - last.lost, 0);
    const all = lost + now.packets - last.packets;
    return {
      to,
      rate_kbps: per((now.received - last.received) * 8),
      sent_kbps: per((now.sent - last.sent) * 8),
      rtt_ms: round(rtt),
      loss: all > 0 ? round(lost / all) : 0,
      fps: per((now.frames - last.frames) * 1000),
      frames: now.frames,
      frozen_ms: round(now.frozen - last.frozen),
      kind,
      uplink_kbps: round(uplink),
    };
  }
}

const round = (figure: number): number => Math.round(figure * 1000) / 1000;
