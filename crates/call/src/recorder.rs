//! Records the heads of RTP packets at one end of a call: bins of one second per stream, and the time of each sequence
//! number. Two recorders give the one-way delay, because here both ends have the same clock.
//!
//! A capture counts heads, and the statistics of a browser (`getStats`) count payload. [`Difference`] explains the
//! difference.

use std::{collections::BTreeMap, time::Duration};

use crate::{packet::Header, sequence::Extender};

/// Packets of one second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bin {
    pub packets: u64,
    /// Bytes of RTP, with heads.
    pub bytes: u64,
    /// Bytes of payload, without padding.
    pub payload_bytes: u64,
}

/// Packets of one stream.
#[derive(Clone, Debug, Default)]
pub struct Stream {
    pub payload_type: u8,
    /// One bin per second since the start of the recorder.
    pub bins: Vec<Bin>,
    extender: Extender,
    /// Time of each sequence number, the first one if it is repeated.
    times: BTreeMap<u64, Duration>,
}

/// Recorder at one end of a call.
#[derive(Clone, Debug, Default)]
pub struct Recorder {
    streams: BTreeMap<u32, Stream>,
}

/// Packet loss and one-way delay of a stream between two recorders.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Comparison {
    /// Send time and one-way delay of each packet that arrived, in the order of sequence numbers.
    pub delays: Vec<(Duration, Duration)>,
    pub sent: u64,
    pub lost: u64,
}

/// Maximum number of streams, and of seconds, that are recorded. The rest is not counted.
const STREAMS_MAX: usize = 1024;
const SECONDS_MAX: usize = 24 * 3600;

impl Recorder {
    /// Records a packet. `at`: time since the start. Bytes that are no RTP packet are ignored.
    pub fn record(&mut self, packet: &[u8], at: Duration) {
        let Some((header, payload)) = Header::read(packet) else { return };
        self.record_head(&header, packet.len(), payload.len(), at);
    }

    /// Records a packet of which only the head is known, such as one of SRTP. `bytes`: with heads.
    pub fn record_head(&mut self, header: &Header, bytes: usize, payload_bytes: usize, at: Duration) {
        if self.streams.len() >= STREAMS_MAX && !self.streams.contains_key(&header.ssrc) {
            return;
        }
        let stream = self.streams.entry(header.ssrc).or_default();
        stream.payload_type = header.payload_type;
        let second = at.as_secs() as usize;
        if second < SECONDS_MAX {
            stream.bins.resize(stream.bins.len().max(second + 1), Bin::default());
            let bin = &mut stream.bins[second];
            bin.packets += 1;
            bin.bytes += bytes as u64;
            bin.payload_bytes += payload_bytes as u64;
        }
        let number = stream.extender.extend(header.sequence);
        stream.times.entry(number).or_insert(at);
    }

    /// Returns the recorded streams by SSRC.
    pub fn streams(&self) -> &BTreeMap<u32, Stream> {
        &self.streams
    }

    /// Returns the bins of all streams together.
    pub fn bins(&self) -> Vec<Bin> {
        let mut all: Vec<Bin> = Vec::new();
        for stream in self.streams.values() {
            all.resize(all.len().max(stream.bins.len()), Bin::default());
            for (sum, bin) in all.iter_mut().zip(&stream.bins) {
                sum.packets += bin.packets;
                sum.bytes += bin.bytes;
                sum.payload_bytes += bin.payload_bytes;
            }
        }
        all
    }

    /// Returns the sum of all bins.
    pub fn total(&self) -> Bin {
        self.bins().into_iter().fold(Bin::default(), |sum, bin| Bin {
            packets: sum.packets + bin.packets,
            bytes: sum.bytes + bin.bytes,
            payload_bytes: sum.payload_bytes + bin.payload_bytes,
        })
    }

    /// Compares a stream at the sender, `self`, with the same stream at the receiver. Packets that were sent after
    /// `until` do not count: they may still be in transit.
    pub fn compare(&self, received: &Recorder, ssrc: u32, until: Duration) -> Comparison {
        let (Some(sent), received) = (self.streams.get(&ssrc), received.streams.get(&ssrc)) else {
            return Comparison::default();
        };
        // Both recorders extend the numbers from their own first packet, which may be another one.
        let shift = received.map_or(0, |received| shift(sent, received));
        let mut comparison = Comparison::default();
        for (number, at) in sent.times.iter().filter(|(_, at)| **at <= until) {
            comparison.sent += 1;
            let arrived = received.and_then(|received| received.times.get(&number.wrapping_add_signed(shift)));
            match arrived {
                Some(arrived) => comparison.delays.push((*at, arrived.saturating_sub(*at))),
                None => comparison.lost += 1,
            }
        }
        comparison
    }
}

/// Returns what to add to a number of one stream to get the number of the same packet in the other one.
fn shift(sent: &Stream, received: &Stream) -> i64 {
    let (Some((first, _)), Some((other, _))) = (sent.times.first_key_value(), received.times.first_key_value()) else {
        return 0;
    };
    // The first packet to arrive is at most half of the range behind the first one sent.
    let ahead = (*other as u16).wrapping_sub(*first as u16) as i16;
    *other as i64 - (*first as i64 + i64::from(ahead))
}

/// A capture beside the statistics of the sender or receiver.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Difference {
    /// Bytes of the capture, and those of the statistics.
    pub capture_bytes: u64,
    pub statistics_bytes: u64,
    /// Bytes of RTP heads.
    pub head_bytes: u64,
}

impl Difference {
    /// Returns the part of the capture that neither payload nor heads explain, from 0 to 1.
    pub fn unexplained(&self) -> f64 {
        let explained = self.statistics_bytes + self.head_bytes;
        self.capture_bytes.abs_diff(explained) as f64 / self.capture_bytes.max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::VIDEO;

    fn packet(sequence: u16, bytes: usize) -> Vec<u8> {
        Header { payload_type: VIDEO, marker: false, sequence, time: 0, ssrc: 7, number: None }.write(&vec![1; bytes])
    }

    #[test]
    fn delay_and_loss_are_by_sequence_number() {
        let (mut sent, mut received) = (Recorder::default(), Recorder::default());
        let ms = Duration::from_millis;
        for n in 0..10_u16 {
            let packet = packet(65_532_u16.wrapping_add(n), 100);
            sent.record(&packet, ms(100 * u64::from(n)));
            // The first one and another one are lost; the others arrive in another order.
            if n != 0 && n != 6 {
                received.record(&packet, ms(100 * u64::from(n) + if n == 2 { 250 } else { 50 }));
            }
        }
        let Comparison { delays, sent: count, lost } = sent.compare(&received, 7, ms(1000));
        assert_eq!((count, lost, delays.len()), (10, 2, 8));
        assert_eq!(delays[..3], [(ms(100), ms(50)), (ms(200), ms(250)), (ms(300), ms(50))]);
        assert_eq!(sent.compare(&received, 7, ms(400)).sent, 5, "later ones may be on their way");
        assert_eq!(sent.compare(&received, 8, ms(400)), Comparison::default());
        assert_eq!(sent.compare(&Recorder::default(), 7, ms(1000)).lost, 10);
    }

    #[test]
    fn bins_are_seconds() {
        let mut recorder = Recorder::default();
        for (ms, bytes) in [(0, 100), (999, 200), (2000, 300)] {
            recorder.record(&packet(0, bytes), Duration::from_millis(ms));
        }
        recorder.record(b"no packet", Duration::ZERO);
        let bins: Vec<(u64, u64)> = recorder.bins().iter().map(|bin| (bin.packets, bin.bytes)).collect();
        assert_eq!(bins, [(2, 324), (0, 0), (1, 312)]);
        assert_eq!(recorder.total(), Bin { packets: 3, bytes: 636, payload_bytes: 600 });
    }

    #[test]
    fn absurd_times_take_no_memory() {
        let mut recorder = Recorder::default();
        recorder.record(&packet(0, 10), Duration::MAX);
        assert_eq!(recorder.total(), Bin::default());
    }
}
