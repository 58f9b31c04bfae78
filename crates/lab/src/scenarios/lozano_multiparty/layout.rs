/// Distance of the SSRCs of two participants, and of two layers of one of them.
const PEER_STEP: u32 = 100;
const LAYER_STEP: u32 = 10;
const FIRST: u32 = 1000;

/// Layers of a simulcast, and their share of the ceiling, the lowest first.
pub const LAYERS: [f64; 3] = [0.2, 0.5, 1.0];

/// Returns the SSRC of a layer of a participant.
pub fn ssrc(peer: usize, layer: usize) -> u32 {
    FIRST + PEER_STEP * peer as u32 + LAYER_STEP * layer as u32
}

/// Returns the participant and the layer of an SSRC, of video or repair.
pub fn stream_of(ssrc: u32) -> (usize, usize) {
    let offset = ssrc.saturating_sub(FIRST);
    ((offset / PEER_STEP) as usize, (offset % PEER_STEP / LAYER_STEP) as usize)
}

/// Returns the SSRC of the stream that a report is about: its first packet decides.
pub fn reported_ssrc(report: &[u8]) -> Option<u32> {
    let word = |at: usize| report.get(at..)?.first_chunk().map(|bytes| u32::from_be_bytes(*bytes));
    match report {
        [_, 200, ..] => word(4),
        [_, 206, ..] if report.get(12..16) == Some(b"REMB") => word(20),
        _ => word(8),
    }
}

/// Returns whether a report is that of a sender.
pub fn is_sender_report(report: &[u8]) -> bool {
    matches!(report, [_, 200, ..])
}

#[cfg(test)]
mod tests {
    use millrace_sfu::rtcp;

    use super::*;

    #[test]
    fn streams_are_found_by_their_ssrc() {
        for (peer, layer) in [(0, 0), (0, 2), (7, 1), (49, 2)] {
            for repair in 0..3 {
                assert_eq!(stream_of(ssrc(peer, layer) + repair), (peer, layer));
            }
        }
        assert_eq!(stream_of(0), (0, 0));
    }

    #[test]
    fn reports_name_their_stream() {
        let block = rtcp::ReportBlock { ssrc: 5, ..rtcp::ReportBlock::default() };
        let sender = rtcp::sender_report(&rtcp::SenderReport { ssrc: 5, ..rtcp::SenderReport::default() });
        for report in [
            rtcp::receiver_report(9, &block),
            sender.clone(),
            rtcp::keyframe_request(9, 5),
            rtcp::nack(9, 5, &[1]).expect("a number"),
            rtcp::remb(9, 5, 1000),
            rtcp::write_arrivals((9, 5), 0, &[(1, 1)]).expect("an arrival"),
        ] {
            assert_eq!(reported_ssrc(&report), Some(5), "{report:?}");
            assert_eq!(is_sender_report(&report), report == sender);
        }
        assert_eq!(reported_ssrc(&[0x80, 201]), None);
    }
}
