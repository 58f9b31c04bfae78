//! RTCP reports: a parser for the contents that the library does not expose, and a [writer](write). Source: RFC 3550
//! (reports), RFC 4585 (NACK, keyframe requests), draft-alvestrand-rmcat-remb-03,
//! draft-holmer-rmcat-transport-wide-cc-extensions-01.

pub mod write;

pub use write::{arrivals as write_arrivals, keyframe_request, nack, receiver_report, remb, sender_report};

/// One item of a report.
#[derive(Debug, PartialEq)]
pub enum Feedback<'a> {
    SenderReport(SenderReport),
    ReceiverReport(ReportBlock),
    /// NACK of one stream: `first` is missing, and so is `first + 1 + n` for each bit `n` set in `others`.
    Nack {
        ssrc: u32,
        first: u16,
        others: u16,
    },
    /// Arrival times of packets, across all streams.
    Arrivals(Arrivals<'a>),
    /// Bandwidth estimate made by the client (REMB), for the sum of some streams.
    Remb {
        bits_per_s: u64,
        ssrcs: Ssrcs<'a>,
    },
    /// Request for a keyframe of one stream (PLI).
    KeyframeRequest {
        ssrc: u32,
    },
    /// Other feedback, which the library must process.
    Other,
}

/// Report of the sender of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SenderReport {
    pub ssrc: u32,
    /// Time of the report by the sender's clock: seconds in the upper half, fractions in the lower half.
    pub ntp: u64,
    /// The same time in units of the stream.
    pub rtp_time: u32,
    pub packets: u32,
    /// Bytes of payload.
    pub bytes: u32,
}

impl SenderReport {
    /// Returns the middle 32 bits of the NTP timestamp, by which receivers refer to this report.
    pub fn middle(&self) -> u32 {
        (self.ntp >> 16) as u32
    }
}

/// Reception report of one stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReportBlock {
    pub ssrc: u32,
    /// Share of the packets that were lost since the last report, in units of 1/256.
    pub fraction_lost: u8,
    /// Packets lost since the start: 24 bits, signed. Duplicates make it smaller.
    pub lost: i32,
    /// Highest sequence number received, extended to 32 bits.
    pub highest: u32,
    /// Jitter in units of the RTP timestamp.
    pub jitter: u32,
    /// Middle 32 bits of the NTP timestamp in the newest sender report that was received; 0: none.
    pub last_report: u32,
    /// Time since that report, in units of 1/65,536 s.
    pub delay: u32,
}

/// Arrival times of consecutive packets, from `first` on.
#[derive(Clone, Debug, PartialEq)]
pub struct Arrivals<'a> {
    pub first: u16,
    pub count: u16,
    /// Reference time by the receiver's clock, in units of 64 ms; 24 bits, signed.
    reference: i32,
    chunks: &'a [u8],
}

/// SSRCs of the streams that a REMB covers, as they are in the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ssrcs<'a>(&'a [u8]);

impl Ssrcs<'_> {
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        self.0.chunks_exact(4).map(|ssrc| u32_at(ssrc, 0))
    }

    /// Returns whether the report names no stream.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

pub const SENDER_REPORT: u8 = 200;
const RECEIVER_REPORT: u8 = 201;
const DESCRIPTION: u8 = 202;
const TRANSPORT: u8 = 205;
const PAYLOAD: u8 = 206;
const EXTENDED: u8 = 207;
const NACK: u8 = 1;
const ARRIVALS: u8 = 15;
const APPLICATION: u8 = 15;
const REMB: &[u8; 4] = b"REMB";
const KEYFRAME_REQUEST: u8 = 1;
const BLOCK_BYTES: usize = 24;
const SENDER_REPORT_BYTES: usize = 28;
/// Unit of an arrival time.
pub const TICK_US: i64 = 250;
const REFERENCE_US: i64 = 64_000;

/// Iterates over the packets of a compound: type, count (or format), and the whole packet with its header.
pub fn packets(mut compound: &[u8]) -> impl Iterator<Item = (u8, u8, &[u8])> {
    std::iter::from_fn(move || {
        let [flags, kind, high, low] = *compound.first_chunk()?;
        let length = 4 * (usize::from(u16::from_be_bytes([high, low])) + 1);
        let (packet, rest) = compound.split_at_checked(length).filter(|_| flags >> 6 == 2)?;
        compound = rest;
        Some((kind, flags & 0x1f, packet))
    })
}

/// Parses a report and passes its items to `emit` in their order. Truncated or malformed parts are skipped.
pub fn read<'a>(compound: &'a [u8], mut emit: impl FnMut(Feedback<'a>)) {
    for (kind, count, packet) in packets(compound) {
        match (kind, count) {
            (SENDER_REPORT, _) if packet.len() >= SENDER_REPORT_BYTES => {
                emit(Feedback::SenderReport(SenderReport {
                    ssrc: u32_at(packet, 4),
                    ntp: u64::from(u32_at(packet, 8)) << 32 | u64::from(u32_at(packet, 12)),
                    rtp_time: u32_at(packet, 16),
                    packets: u32_at(packet, 20),
                    bytes: u32_at(packet, 24),
                }));
                packet.get(28..).into_iter().for_each(|blocks| read_blocks(blocks, count, &mut emit));
            }
            (RECEIVER_REPORT, _) => {
                packet.get(8..).into_iter().for_each(|blocks| read_blocks(blocks, count, &mut emit));
            }
            (TRANSPORT, NACK) => {
                let Some((head, entries)) = packet.split_at_checked(12) else { continue };
                let ssrc = u32_at(head, 8);
                for entry in entries.chunks_exact(4) {
                    emit(Feedback::Nack { ssrc, first: u16_at(entry, 0), others: u16_at(entry, 2) });
                }
            }
            (TRANSPORT, ARRIVALS) => {
                let Some((head, chunks)) = packet.split_at_checked(20) else { continue };
                // 24 bits of reference time, followed by the number of the report.
                let reference = u32_at(head, 16) as i32 >> 8;
                let (first, count) = (u16_at(head, 12), u16_at(head, 14));
                emit(Feedback::Arrivals(Arrivals { first, count, reference, chunks }));
            }
            (PAYLOAD, APPLICATION) if packet.get(12..16) == Some(&REMB[..]) => {
                let Some((head, ssrcs)) = packet.split_at_checked(20) else { continue };
                // The number of SSRCs in 8 bits, an exponent in 6 bits, a mantissa in 18 bits.
                let word = u32_at(head, 16);
                let (mantissa, exponent) = (u64::from(word & 0x3_ffff), word >> 18 & 0x3f);
                let bits_per_s = if mantissa.leading_zeros() >= exponent { mantissa << exponent } else { u64::MAX };
                let ssrcs = Ssrcs(&ssrcs[..ssrcs.len().min(4 * (word >> 24) as usize)]);
                emit(Feedback::Remb { bits_per_s, ssrcs });
            }
            (PAYLOAD, KEYFRAME_REQUEST) if packet.len() >= 12 => {
                emit(Feedback::KeyframeRequest { ssrc: u32_at(packet, 8) });
            }
            // Source descriptions and extended reports: their contents are not used.
            (DESCRIPTION | EXTENDED, _) => {}
            _ => emit(Feedback::Other),
        }
    }
}

fn read_blocks<'a>(blocks: &[u8], count: u8, emit: &mut impl FnMut(Feedback<'a>)) {
    for block in blocks.chunks_exact(BLOCK_BYTES).take(count.into()) {
        emit(Feedback::ReceiverReport(ReportBlock {
            ssrc: u32_at(block, 0),
            fraction_lost: block[4],
            // The sign is that of 24 bits.
            lost: (u32_at(block, 4) << 8) as i32 >> 8,
            highest: u32_at(block, 8),
            jitter: u32_at(block, 12),
            last_report: u32_at(block, 16),
            delay: u32_at(block, 20),
        }));
    }
}

impl Arrivals<'_> {
    /// Passes each packet number and its arrival time to `emit`, in microseconds of the receiver's clock. `None`: the
    /// packet has not arrived. Stops where the report is truncated.
    pub fn for_each(&self, mut emit: impl FnMut(u16, Option<i64>)) {
        let (mut chunks, mut left) = (self.chunks, self.count);
        let mut statuses = Vec::new();
        while left > 0 {
            let Some((chunk, rest)) = chunks.split_first_chunk() else { return };
            chunks = rest;
            let chunk = u16::from_be_bytes(*chunk);
            let before = statuses.len();
            match chunk >> 14 {
                0 | 1 => {
                    let run = usize::from((chunk & 0x1fff).min(left));
                    statuses.resize(before + run, (chunk >> 13 & 3) as u8);
                }
                2 => statuses.extend((0..14).rev().map(|bit| (chunk >> bit & 1) as u8)),
                _ => statuses.extend((0..7).rev().map(|pair| (chunk >> (2 * pair) & 3) as u8)),
            }
            statuses.truncate(before + usize::from(left));
            left -= (statuses.len() - before) as u16;
        }
        let (mut at, mut deltas) = (i64::from(self.reference) * REFERENCE_US, chunks);
        for (number, status) in (0_u16..).zip(statuses) {
            let delta = match status {
                1 => deltas.split_first().map(|(delta, rest)| (i64::from(*delta), rest)),
                2 => deltas.split_first_chunk().map(|(delta, rest)| (i64::from(i16::from_be_bytes(*delta)), rest)),
                _ => {
                    emit(self.first.wrapping_add(number), None);
                    continue;
                }
            };
            let Some((delta, rest)) = delta else { return };
            (at, deltas) = (at + delta * TICK_US, rest);
            emit(self.first.wrapping_add(number), Some(at));
        }
    }
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..).and_then(|bytes| bytes.first_chunk()).map_or(0, |bytes| u16::from_be_bytes(*bytes))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(|bytes| bytes.first_chunk()).map_or(0, |bytes| u32::from_be_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(compound: &[u8]) -> Vec<Feedback<'_>> {
        let mut all = Vec::new();
        read(compound, |feedback| all.push(feedback));
        all
    }

    fn packet(flags: u8, kind: u8, words: &[u32]) -> Vec<u8> {
        let mut packet = vec![0x80 | flags, kind, 0, words.len() as u8];
        words.iter().for_each(|word| packet.extend_from_slice(&word.to_be_bytes()));
        packet
    }

    #[test]
    fn compound_report_is_parsed_in_order() {
        let compound = [
            packet(1, 201, &[1, 2, 0x4000_0001, 3, 4, 5, 6]),
            packet(1, 205, &[1, 2, 0x0007_8001, 0x0100_0000]),
            packet(15, 206, &[1, 0, u32::from_be_bytes(*b"REMB"), (1 << 24) | (3 << 18) | 125_000, 2]),
            packet(1, 206, &[1, 2]),
        ]
        .concat();
        let (ssrc, bits_per_s) = (2, 1_000_000);
        let expected = [
            Feedback::ReceiverReport(ReportBlock {
                ssrc,
                fraction_lost: 0x40,
                lost: 1,
                highest: 3,
                jitter: 4,
                last_report: 5,
                delay: 6,
            }),
            Feedback::Nack { ssrc, first: 7, others: 0x8001 },
            Feedback::Nack { ssrc, first: 0x100, others: 0 },
            Feedback::Remb { bits_per_s, ssrcs: Ssrcs(&[0, 0, 0, 2]) },
            Feedback::KeyframeRequest { ssrc },
        ];
        assert_eq!(all(&compound), expected);
        for length in 0..compound.len() {
            assert!(all(&compound[..length]).len() < expected.len());
        }
    }

    #[test]
    fn remb_saturates_and_bounds_its_ssrcs() {
        let remb = |word: u32, ssrcs: &[u32]| {
            let words = [&[1, 0, u32::from_be_bytes(*b"REMB"), word], ssrcs].concat();
            let report = packet(15, 206, &words);
            match all(&report)[..] {
                [Feedback::Remb { bits_per_s, ssrcs }] => (bits_per_s, ssrcs.iter().collect::<Vec<_>>()),
                ref other => panic!("{other:?}"),
            }
        };
        assert_eq!(remb(0, &[]), (0, vec![]));
        assert_eq!(remb(63 << 18, &[]).0, 0, "no mantissa, the largest exponent");
        assert_eq!(remb(46 << 18 | 0x3_ffff, &[]).0, 0x3_ffff << 46);
        // 2^64 and more do not fit.
        assert_eq!(remb(63 << 18 | 2, &[]).0, u64::MAX);
        assert_eq!(remb(63 << 18 | 1, &[]).0, 1 << 63);
        assert_eq!(remb(63 << 18 | 0x3_ffff, &[]).0, u64::MAX);
        // The number of SSRCs is larger or smaller than the list.
        assert_eq!(remb(255 << 24 | 7, &[8, 9]), (7, vec![8, 9]));
        assert_eq!(remb(1 << 24 | 7, &[8, 9]), (7, vec![8]));
        assert_eq!(remb(7, &[8, 9]), (7, vec![]));
    }

    #[test]
    fn arrivals_round_trip() {
        let arrived = [(65_535, 700_000), (0, 701_000), (3, 709_250), (2, 700_250), (40, 3_000_000)];
        let report = write_arrivals((1, 2), 3, &arrived).unwrap();
        let mut seen = Vec::new();
        for feedback in all(&report) {
            let Feedback::Arrivals(arrivals) = feedback else { panic!("{feedback:?}") };
            arrivals.for_each(|number, at| seen.push((number, at)));
        }
        assert_eq!((seen.len(), seen[0].0), (42, 65_535));
        let mut read_back: Vec<_> = seen.into_iter().filter_map(|(number, at)| Some((number, at?))).collect();
        read_back.sort_by_key(|(number, _)| arrived.iter().position(|(arrived, _)| arrived == number));
        assert_eq!(read_back, arrived);
        assert_eq!(write_arrivals((1, 2), 3, &[]), None);
    }

    #[test]
    fn arrivals_are_read_from_all_chunk_types() {
        // A run of three arrivals; a one-bit vector: arrived, lost, arrived; a two-bit vector: a long negative delta,
        // then lost.
        let chunks: [u16; 3] = [0b0010_0000_0000_0011, 0b1010_1000_0000_0000, 0b1110_0000_0000_0000];
        let mut bytes = chunks.iter().flat_map(|chunk| chunk.to_be_bytes()).collect::<Vec<u8>>();
        bytes.extend([4, 0, 8, 4, 4]);
        bytes.extend((-8_i16).to_be_bytes());
        let arrivals = Arrivals { first: 65_534, count: 18, reference: 2, chunks: &bytes };
        let mut seen = Vec::new();
        arrivals.for_each(|number, at| seen.push((number, at.map(|at| at - 128_000))));
        let arrived = [(65_534, 1000), (65_535, 1000), (0, 3000), (1, 4000), (3, 5000), (15, 3000)];
        assert_eq!(seen.len(), 18);
        assert_eq!(seen.iter().filter_map(|(number, at)| Some((*number, (*at)?))).collect::<Vec<_>>(), arrived);
        for length in 0..bytes.len() {
            Arrivals { chunks: &bytes[..length], ..arrivals.clone() }.for_each(|_, _| {});
        }
    }
}
