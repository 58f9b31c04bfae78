//! Bandwidth estimates for members that send without transport-wide congestion control: the SFU estimates the rate that
//! the path from such a member carries, and reports it to the member (REMB).

use std::time::Instant;

use str0m::{
    bwe::Bitrate,
    media::{MediaKind, Mid, Rid},
    rtp::RtpPacket,
};

use super::state::{Send, Switch};
use crate::{congestion::gcc::SendTime, member_id::MemberId};

/// Minimum of a reported estimate in bit/s. A lower one could stop the sender, and then no packet could raise it.
const REPORT_MIN: u64 = 30_000;

/// Clock rate of all video codecs.
const VIDEO_HZ: u32 = 90_000;

impl Switch {
    /// Measures the path from a member by one packet. An estimate that has fallen is reported at once.
    pub(super) fn measure_incoming(
        &mut self,
        id: MemberId,
        packet: &RtpPacket,
        now: Instant,
        send: &mut (impl Send + ?Sized),
    ) {
        let Some(member) = self.member(id) else { return };
        let (header, clock_hz) = (&packet.header, packet.time.denom());
        // The RTP timestamps of audio say little: they show the time of recording, and audio fills no queue.
        let is_video = clock_hz == VIDEO_HZ;
        let rtp = SendTime::Rtp { ssrc: *header.ssrc, timestamp: header.timestamp, clock_hz };
        let sent = header.ext_vals.abs_send_time.map(SendTime::Absolute).or_else(|| is_video.then_some(rtp));
        let Some(incoming) = &mut member.incoming else { return };
        let allowed = incoming.allows_retransmissions();
        incoming.count(*header.ssrc, header.sequence_number);
        incoming.handle_packet(sent, packet.payload.len(), now);
        let allows = incoming.allows_retransmissions();
        if incoming.has_fallen() {
            self.report_incoming(id, now, send);
        }
        if allows != allowed {
            self.allow_retransmissions(id, allows, now, send);
        }
    }

    /// Begins or ends to request lost packets of a member.
    fn allow_retransmissions(&mut self, id: MemberId, is_allowed: bool, now: Instant, send: &mut (impl Send + ?Sized)) {
        self.work(id, now, send, |member, collected| {
            let layers = member.tracks.iter().flat_map(|track| track.layers.iter().map(|layer| (track.mid, layer.rid)));
            let layers: Vec<(Mid, Option<Rid>)> = layers.collect();
            member.run(collected, |rtc| {
                let mut api = rtc.direct_api();
                for (mid, rid) in layers {
                    // A stream without retransmissions of its own never requests them.
                    if let Some(stream) = api.stream_rx_by_mid(mid, rid).filter(|stream| stream.rtx().is_some()) {
                        stream.suppress_nack(!is_allowed);
                    }
                }
                Ok(())
            })
        });
    }

    /// Reports the estimate of the path from a member to it. Does nothing for a member without an estimate. Callers
    /// call it once per second, and when the estimate falls.
    ///
    /// Each video gets an equal share: a sender without transport-wide congestion control applies a REMB to the encoder
    /// of the video that the REMB names.
    pub(super) fn report_incoming(&mut self, id: MemberId, now: Instant, send: &mut (impl Send + ?Sized)) {
        let Some(member) = self.member(id) else { return };
        let Some(estimate) = member.incoming.as_mut().and_then(|incoming| incoming.report()) else { return };
        let (mut videos, mut audio): (Vec<(Mid, Option<Rid>)>, u64) = (Vec::new(), 0);
        for track in &member.tracks {
            let mut sent = track.layers.iter().filter(|layer| layer.bits_per_s(now) > 0);
            match track.kind {
                MediaKind::Audio => audio += sent.map(|layer| layer.bits_per_s(now)).sum::<u64>(),
                MediaKind::Video => videos.extend(sent.next().map(|layer| (track.mid, layer.rid))),
            }
        }
        if videos.is_empty() {
            return;
        }
        let share = (estimate.saturating_sub(audio) / videos.len() as u64).max(REPORT_MIN);
        self.work(id, now, send, |member, collected| {
            member.run(collected, |rtc| {
                let mut api = rtc.direct_api();
                for (mid, rid) in videos {
                    if let Some(stream) = api.stream_rx_by_mid(mid, rid) {
                        stream.request_remb(Bitrate::from(share));
                    }
                }
                Ok(())
            })
        });
    }
}
