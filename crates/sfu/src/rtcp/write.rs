//! Writes RTCP packets. A compound report is their concatenation.

use super::{
    APPLICATION, ARRIVALS, KEYFRAME_REQUEST, NACK, PAYLOAD, RECEIVER_REPORT, REFERENCE_US, REMB, ReportBlock,
    SENDER_REPORT, SenderReport, TICK_US, TRANSPORT,
};

/// Maximum number of packets covered by one report of arrival times that is written here.
const ARRIVALS_MAX: usize = 4096;
/// Number of bits of the mantissa in a REMB.
const MANTISSA_BITS: u32 = 18;

/// Writes a report of a sender, without reception reports.
pub fn sender_report(report: &SenderReport) -> Vec<u8> {
    let SenderReport { ssrc, ntp, rtp_time, packets, bytes } = *report;
    packet(0, SENDER_REPORT, &[ssrc, (ntp >> 32) as u32, ntp as u32, rtp_time, packets, bytes])
}

/// Writes a report of a receiver on one stream. `ssrc`: the receiver.
pub fn receiver_report(ssrc: u32, block: &ReportBlock) -> Vec<u8> {
    let ReportBlock { ssrc: of, fraction_lost, lost, highest, jitter, last_report, delay } = *block;
    let lost = lost.clamp(-(1 << 23), (1 << 23) - 1) as u32 & 0xff_ffff;
    let loss = u32::from(fraction_lost) << 24 | lost;
    packet(1, RECEIVER_REPORT, &[ssrc, of, loss, highest, jitter, last_report, delay])
}

/// Writes a bandwidth estimate of a receiver (REMB) for one stream. The value is rounded down to 18 bits.
pub fn remb(ssrc: u32, of: u32, bits_per_s: u64) -> Vec<u8> {
    let exponent = (u64::BITS - bits_per_s.leading_zeros()).saturating_sub(MANTISSA_BITS);
    let value = 1 << 24 | exponent << MANTISSA_BITS | (bits_per_s >> exponent) as u32;
    packet(APPLICATION, PAYLOAD, &[ssrc, 0, u32::from_be_bytes(*REMB), value, of])
}

/// Writes a request for missing packets of one stream (NACK). `missing`: ascending, wrapping at 65,536. `None`: nothing
/// is missing.
pub fn nack(ssrc: u32, of: u32, missing: &[u16]) -> Option<Vec<u8>> {
    let mut words = vec![ssrc, of];
    let mut entry: Option<(u16, u16)> = None;
    for &sequence in missing {
        let behind = |first: u16| sequence.wrapping_sub(first).checked_sub(1).filter(|bit| *bit < 16);
        match entry.as_mut().and_then(|(first, others)| Some((others, behind(*first)?))) {
            Some((others, bit)) => *others |= 1 << bit,
            None => {
                words.extend(entry.map(word));
                entry = Some((sequence, 0));
            }
        }
    }
    words.push(word(entry?));
    Some(packet(NACK, TRANSPORT, &words))
}

fn word((first, others): (u16, u16)) -> u32 {
    u32::from(first) << 16 | u32::from(others)
}

/// Writes a request for a keyframe of one stream (PLI).
pub fn keyframe_request(ssrc: u32, of: u32) -> Vec<u8> {
    packet(KEYFRAME_REQUEST, PAYLOAD, &[ssrc, of])
}

fn packet(count: u8, kind: u8, words: &[u32]) -> Vec<u8> {
    let mut packet = vec![0x80 | count, kind];
    packet.extend((words.len() as u16).to_be_bytes());
    packet.extend(words.iter().flat_map(|word| word.to_be_bytes()));
    packet
}

/// Writes a report of arrival times. `arrived`: packet numbers and times in microseconds of any clock, in the order of
/// arrival. `ssrcs`: the sender of the report and the media source.
///
/// Shape: a packet numbered before the first one is not covered; one more than eight seconds apart from its predecessor
/// is reported as lost. `None`: `arrived` is empty.
pub fn arrivals(ssrcs: (u32, u32), count: u8, arrived: &[(u16, i64)]) -> Option<Vec<u8>> {
    let (first, first_us) = *arrived.first()?;
    let ahead = |number: u16| usize::from(number.wrapping_sub(first));
    let span = arrived.iter().map(|(number, _)| ahead(*number)).filter(|ahead| *ahead < ARRIVALS_MAX).max()? + 1;
    let mut numbers = vec![None; span];
    for (number, at_us) in arrived {
        if let Some(slot) = numbers.get_mut(ahead(*number)) {
            *slot = Some(at_us / TICK_US);
        }
    }
    let reference = first_us / REFERENCE_US;
    let mut report = vec![0x80 | ARRIVALS, TRANSPORT, 0, 0];
    report.extend([ssrcs.0, ssrcs.1].iter().flat_map(|ssrc| ssrc.to_be_bytes()));
    report.extend([first, span as u16].iter().flat_map(|half| half.to_be_bytes()));
    report.extend(((reference as u32) << 8 | u32::from(count)).to_be_bytes());
    let (mut deltas, mut before) = (Vec::new(), reference * REFERENCE_US / TICK_US);
    for numbers in numbers.chunks(7) {
        let mut chunk = 0b11_u16 << 14;
        for (at, ticks) in numbers.iter().enumerate() {
            if let Some((ticks, delta)) = ticks.and_then(|ticks| Some((ticks, i16::try_from(ticks - before).ok()?))) {
                chunk |= 2 << (12 - 2 * at);
                deltas.extend(delta.to_be_bytes());
                before = ticks;
            }
        }
        report.extend(chunk.to_be_bytes());
    }
    report.extend(deltas);
    report.resize(report.len().next_multiple_of(4), 0);
    let words = (report.len() / 4 - 1) as u16;
    report[2..4].copy_from_slice(&words.to_be_bytes());
    Some(report)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rtcp::{Feedback, read};

    #[test]
    fn written_reports_are_read() {
        let report = SenderReport { ssrc: 1, ntp: 0x0123_4567_89ab_cdef, rtp_time: 3, packets: 4, bytes: u32::MAX };
        assert_eq!(report.middle(), 0x4567_89ab);
        let block = ReportBlock {
            ssrc: 9,
            fraction_lost: 255,
            lost: -5,
            highest: u32::MAX,
            jitter: 1,
            last_report: 2,
            delay: 3,
        };
        let compound = [
            sender_report(&report),
            receiver_report(7, &block),
            keyframe_request(7, 9),
            nack(7, 9, &[65_535, 0, 15, 16, 40]).unwrap(),
            remb(7, 9, 2_000_000),
        ]
        .concat();
        let (mut seen, mut remb) = (Vec::new(), None);
        read(&compound, |feedback| match feedback {
            Feedback::Remb { bits_per_s, ssrcs } => remb = Some((bits_per_s, ssrcs.iter().collect::<Vec<_>>())),
            other => seen.push(format!("{other:?}")),
        });
        assert_eq!(remb, Some((2_000_000, vec![9])));
        let expected = [
            Feedback::SenderReport(report),
            Feedback::ReceiverReport(block),
            Feedback::KeyframeRequest { ssrc: 9 },
            // The numbers 0 and 15 are bits of the first entry; the number 16 is one too far.
            Feedback::Nack { ssrc: 9, first: 65_535, others: 0x8001 },
            Feedback::Nack { ssrc: 9, first: 16, others: 0 },
            Feedback::Nack { ssrc: 9, first: 40, others: 0 },
        ];
        assert_eq!(seen, expected.map(|feedback| format!("{feedback:?}")));
        assert_eq!(nack(7, 9, &[]), None);
    }

    #[test]
    fn remb_keeps_18_bits_of_any_value() {
        for bits_per_s in [0, 1, 0x3_ffff, 0x4_0000, 1_234_567, u64::from(u32::MAX), u64::MAX] {
            let mut seen = None;
            read(&remb(1, 2, bits_per_s), |feedback| match feedback {
                Feedback::Remb { bits_per_s, .. } => seen = Some(bits_per_s),
                other => panic!("{other:?}"),
            });
            let seen = seen.unwrap();
            assert!(seen <= bits_per_s && bits_per_s - seen <= bits_per_s >> 17, "{bits_per_s}: {seen}");
        }
    }

    #[test]
    fn cumulative_loss_saturates_at_24_bits() {
        for (lost, expected) in [(i32::MAX, 0x7f_ffff), (i32::MIN, -0x80_0000), (-1, -1)] {
            let report = receiver_report(1, &ReportBlock { lost, ..ReportBlock::default() });
            read(&report, |feedback| match feedback {
                Feedback::ReceiverReport(block) => assert_eq!(block.lost, expected),
                other => panic!("{other:?}"),
            });
        }
    }
}
