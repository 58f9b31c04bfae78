//! Figures of the streams of a call: captures of the recorders at both ends, beside `getStats`.

use std::time::Duration;

use millrace_call::{
    IP_UDP_BYTES, Recorder, SRTP_TAG_BYTES,
    recorder::{Comparison, Difference},
};
use millrace_link::Direction;

use super::call::{Clock, End, Measured, Sample};
use crate::{
    histogram::Histogram,
    path::{Report, heads::MediaHead},
    scenarios::lozano::figures::StreamFigures,
};

/// Tag of AES-GCM. Source: RFC 7714, section 13.
const GCM_TAG_BYTES: usize = 16;
/// Time before the end of a call in which packets are not compared: they may still be on their way.
const END: Duration = Duration::from_secs(1);

/// One stream from a participant to another one.
#[derive(Clone, Debug)]
pub struct Stream {
    pub from: usize,
    pub to: usize,
    /// Number of the call among those of the two.
    pub call: usize,
    pub figures: StreamFigures,
    pub sent: Capture,
    pub received: Capture,
    /// Rate by `getStats` of the receiver in each second, in kbit/s.
    pub statistics_rates: Vec<f64>,
    pub frames_per_s: f64,
    pub freezes: u64,
    /// Last size of the video that the sender encodes.
    pub size: (u64, u64),
    /// Time from the creation of the receiver's connection until its first frame.
    pub setup_ms: f64,
    pub codec: String,
    /// Types of the local candidates of sender and receiver.
    pub route: String,
    /// First second of the rates, since the start of the clock.
    pub first_second: usize,
    /// Time at which the statistics began.
    pub began: Duration,
    pub ended: Duration,
}

/// Media packets at one end between the first and the last reading of `getStats`, with retransmissions and padding,
/// beside these statistics.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Capture {
    pub seconds: f64,
    pub packets: u64,
    /// Bytes on the link, and the parts of them that are no payload.
    pub ip_bytes: u64,
    pub ip_udp_bytes: u64,
    pub turn_bytes: u64,
    pub rtp_head_bytes: u64,
    pub tag_bytes: u64,
    /// Padding by `getStats`, which counts heads and padding together: in SRTP, its length is encrypted.
    pub padding_bytes: u64,
    /// Payload of retransmissions, if the statistics of the browser do not count it.
    pub retransmitted_bytes: u64,
    /// Payload and packets by `getStats`.
    pub statistics_bytes: u64,
    pub statistics_packets: u64,
    /// Lost packets: by the sequence numbers at both ends, and by `getStats` of the receiver.
    pub lost: Option<u64>,
    pub statistics_lost: Option<u64>,
}

impl Capture {
    pub fn difference(&self) -> Difference {
        Difference {
            capture_bytes: self.ip_bytes,
            statistics_bytes: self.statistics_bytes + self.retransmitted_bytes,
            head_bytes: self.ip_udp_bytes + self.turn_bytes + self.rtp_head_bytes + self.tag_bytes + self.padding_bytes,
        }
    }

    /// Returns the bytes that are neither heads nor tags.
    fn payload_bytes(&self) -> u64 {
        let others = self.ip_udp_bytes + self.turn_bytes + self.rtp_head_bytes + self.tag_bytes;
        self.ip_bytes.saturating_sub(others)
    }

    fn add(&mut self, head: &MediaHead, tag_bytes: usize) {
        self.packets += 1;
        self.ip_bytes += head.ip_bytes() as u64;
        self.ip_udp_bytes += IP_UDP_BYTES as u64;
        self.turn_bytes += u64::from(head.turn_bytes);
        self.rtp_head_bytes += u64::from(head.head_bytes);
        self.tag_bytes += tag_bytes as u64;
    }
}

/// Returns all streams. A connection without statistics has none.
pub fn streams(measured: &Measured) -> Vec<Stream> {
    let ends = 0..measured.ends.len();
    let pairs = ends.clone().flat_map(|from| ends.clone().map(move |to| (from, to))).filter(|(from, to)| from != to);
    let calls = |(from, to): (usize, usize)| {
        let links = measured.ends[from].links.iter().filter(move |link| link.peer == to);
        links.filter_map(move |link| stream(measured, (from, to), link.call))
    };
    pairs.flat_map(calls).collect()
}

fn stream(measured: &Measured, (from, to): (usize, usize), call: usize) -> Option<Stream> {
    let (sender, receiver, clock) = (&measured.ends[from], &measured.ends[to], &measured.clock);
    let link = |end: &End, peer: usize| end.links.iter().find(|link| (link.peer, link.call) == (peer, call)).cloned();
    let (out, into) = (link(sender, to)?, link(receiver, from)?);
    let mut ciphers = out.samples.iter().chain(&into.samples).filter_map(|sample| sample.cipher.as_deref());
    let tag_bytes = tag_bytes(ciphers.next_back());
    let (first_sent, last_sent) = both(&out.samples, |sample| sample.sent.as_ref())?;
    let (first, last) = both(&into.samples, |sample| sample.received.as_ref())?;
    let (a, b) = (first.1, last.1);
    let sent_heads = heads(&sender.report, Direction::Up, first_sent.1.ssrc)?;
    let received_heads = heads(&receiver.report, Direction::Down, b.ssrc)?;
    let window = [first.0, last.0].map(|sample| clock.of_wall_ms(sample.at));
    let sent_window = [first_sent.0, last_sent.0].map(|sample| clock.of_wall_ms(sample.at));
    let [sent_recorder, received_recorder] = [(&sent_heads, sender), (&received_heads, receiver)]
        .map(|(heads, end)| record(heads, &end.report, clock, tag_bytes));
    let comparison = sent_recorder.compare(&received_recorder, b.ssrc, window[1].saturating_sub(END));
    let mut sent = capture(&sent_heads, &sender.report, clock, sent_window, tag_bytes);
    sent.statistics_bytes = last_sent.1.bytes_sent.saturating_sub(first_sent.1.bytes_sent);
    sent.statistics_packets = last_sent.1.packets_sent.saturating_sub(first_sent.1.packets_sent);
    let mut received = capture(&received_heads, &receiver.report, clock, window, tag_bytes);
    received.statistics_bytes = b.bytes_received.saturating_sub(a.bytes_received);
    received.statistics_packets = b.packets_received.saturating_sub(a.packets_received);
    // Chromium counts retransmissions, which have a stream of their own, with the video; Firefox does not count them.
    if b.retransmitted_packets_received.is_none() {
        let is_retransmission = |head: &&MediaHead| head.header.ssrc != b.ssrc;
        let others: Vec<MediaHead> = received_heads.iter().filter(is_retransmission).copied().collect();
        received.retransmitted_bytes = capture(&others, &receiver.report, clock, window, tag_bytes).payload_bytes();
    }
    let padding = |before: Option<u64>, after: Option<u64>, capture: &Capture| {
        let heads = after.zip(before).map(|(after, before)| after.saturating_sub(before));
        heads.map_or(0, |heads| heads.saturating_sub(capture.rtp_head_bytes))
    };
    sent.padding_bytes = padding(first_sent.1.header_bytes_sent, last_sent.1.header_bytes_sent, &sent);
    received.padding_bytes = padding(a.header_bytes_received, b.header_bytes_received, &received);
    let lost = (b.packets_lost - a.packets_lost).max(0) as u64;
    (received.lost, received.statistics_lost) = (Some(comparison.lost), Some(lost));
    let repaired = b.retransmitted_packets_received.zip(a.retransmitted_packets_received).map(|(b, a)| b - a.min(b));
    let seconds = received.seconds.max(f64::MIN_POSITIVE);
    let (first_second, end_second) = (window[0].as_secs_f64().ceil() as usize, window[1].as_secs() as usize);
    let mut rates: Vec<f64> = received_recorder.bins().iter().map(|bin| bin.bytes as f64 * 8.0 / 1000.0).collect();
    rates.resize(rates.len().max(end_second), 0.0);
    let rates = rates.get(first_second..end_second).unwrap_or_default().to_vec();
    let (delay, delays) = delays(&comparison, first_second, rates.len());
    // A reading may fall into a check of the candidates, in which no pair is selected.
    let route = |samples: &[Sample]| samples.iter().rev().find_map(|sample| sample.route.clone());
    let route = [&out, &into].map(|link| route(&link.samples).unwrap_or_else(|| "unknown".into()));
    Some(Stream {
        from,
        to,
        call,
        figures: StreamFigures {
            rates,
            rtts: into.samples.iter().filter_map(|sample| Some(sample.rtt_s? * 1000.0)).collect(),
            delay,
            delays,
            sent: comparison.sent,
            lost: comparison.lost,
            expected: received.statistics_packets + lost,
            residual: repaired.map_or(lost, |repaired| lost.saturating_sub(repaired)),
            goodput: received.statistics_bytes as f64 * 8.0 / 1000.0 / seconds,
            frames: b.frames_decoded.saturating_sub(a.frames_decoded),
            ..StreamFigures::default()
        },
        sent,
        received,
        statistics_rates: into.samples.windows(2).filter_map(statistics_rate).collect(),
        frames_per_s: b.frames_decoded.saturating_sub(a.frames_decoded) as f64 / seconds,
        freezes: b.freeze_count.saturating_sub(a.freeze_count),
        size: (last_sent.1.frame_width, last_sent.1.frame_height),
        setup_ms: into.setup_ms,
        codec: out.samples.iter().find_map(|sample| sample.codec.clone()).unwrap_or_default(),
        route: route.join("-"),
        first_second,
        began: window[0],
        ended: window[1],
    })
}

/// Returns the bytes that SRTP adds to each packet, by the name of its cipher in `getStats`.
fn tag_bytes(cipher: Option<&str>) -> usize {
    if cipher.is_some_and(|cipher| cipher.contains("GCM")) { GCM_TAG_BYTES } else { SRTP_TAG_BYTES }
}

/// A sample and a value in it.
type Valued<'a, T> = (&'a Sample, &'a T);

/// Returns the first and the last sample that have a value. `None`: less than two have one.
fn both<T>(samples: &[Sample], of: impl Fn(&Sample) -> Option<&T>) -> Option<(Valued<'_, T>, Valued<'_, T>)> {
    let mut with = samples.iter().filter_map(|sample| Some((sample, of(sample)?)));
    with.next().zip(with.next_back())
}

fn statistics_rate(pair: &[Sample]) -> Option<f64> {
    let [a, b] = pair else { return None };
    let bytes = b.received.as_ref()?.bytes_received.saturating_sub(a.received.as_ref()?.bytes_received);
    Some(bytes as f64 * 8.0 / (b.at - a.at).max(1.0))
}

/// Returns the heads of a stream with its retransmissions: the packets of the same port. Each connection has its own.
fn heads(report: &Report, direction: Direction, ssrc: u32) -> Option<Vec<MediaHead>> {
    let all = report.heads.all()?;
    let of = |head: &&MediaHead| head.direction == direction;
    let port = all.iter().filter(of).find(|head| head.header.ssrc == ssrc)?.port;
    Some(all.iter().filter(of).filter(|head| head.port == port).copied().collect())
}

fn at(head: &MediaHead, report: &Report, clock: &Clock) -> Duration {
    clock.of(report.started) + head.at.since(millrace_link::Time::ZERO)
}

fn record(heads: &[MediaHead], report: &Report, clock: &Clock, tag_bytes: usize) -> Recorder {
    let mut recorder = Recorder::default();
    for head in heads {
        let bytes = usize::from(head.bytes).saturating_sub(tag_bytes);
        let payload_bytes = bytes.saturating_sub(head.head_bytes.into());
        recorder.record_head(&head.header, bytes, payload_bytes, at(head, report, clock));
    }
    recorder
}

fn capture(heads: &[MediaHead], report: &Report, clock: &Clock, window: [Duration; 2], tag_bytes: usize) -> Capture {
    let seconds = window[1].saturating_sub(window[0]).as_secs_f64();
    let mut capture = Capture { seconds, ..Capture::default() };
    for head in heads {
        let at = at(head, report, clock);
        if window[0] < at && at <= window[1] {
            capture.add(head, tag_bytes);
        }
    }
    capture
}

/// Returns the distribution of the delays, and their mean in each second.
fn delays(comparison: &Comparison, first_second: usize, seconds: usize) -> (Histogram, Vec<Option<f64>>) {
    let (mut delay, mut sums) = (Histogram::default(), vec![(0.0, 0_u32); seconds]);
    for (at, took) in &comparison.delays {
        delay.record_us(took.as_micros() as u64);
        let second = (at.as_secs() as usize).checked_sub(first_second);
        if let Some((sum, count)) = second.and_then(|second| sums.get_mut(second)) {
            (*sum, *count) = (*sum + took.as_secs_f64() * 1000.0, *count + 1);
        }
    }
    let means = sums.into_iter().map(|(sum, count)| (count > 0).then(|| sum / f64::from(count))).collect();
    (delay, means)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tag_follows_from_the_cipher() {
        for (cipher, bytes) in [
            (Some("SRTP_AES128_CM_HMAC_SHA1_80"), 10),
            (Some("AES_CM_128_HMAC_SHA1_80"), 10),
            (Some("AEAD_AES_128_GCM"), 16),
            (None, 10),
        ] {
            assert_eq!(tag_bytes(cipher), bytes, "{cipher:?}");
        }
    }

    #[test]
    fn heads_explain_the_difference() {
        let mut capture = Capture::default();
        let header = millrace_call::packet::Header {
            payload_type: 96,
            marker: false,
            sequence: 1,
            time: 0,
            ssrc: 7,
            number: None,
        };
        let head = MediaHead {
            at: millrace_link::Time::ZERO,
            direction: Direction::Up,
            port: 1000,
            turn_bytes: 4,
            bytes: 1022,
            head_bytes: 12,
            header,
        };
        (0..100).for_each(|_| capture.add(&head, 10));
        capture.statistics_bytes = 100_000;
        assert_eq!((capture.packets, capture.ip_bytes), (100, 105_400));
        assert_eq!(capture.difference().unexplained(), 0.0);
        capture.statistics_bytes = 98_000;
        assert!(capture.difference().unexplained() > 0.01);
        capture.retransmitted_bytes = 2_000;
        assert_eq!((capture.payload_bytes(), capture.difference().unexplained()), (100_000, 0.0));
    }

    #[test]
    fn samples_without_statistics_do_not_count() {
        let sample = |at: f64, bytes: Option<u64>| Sample {
            at,
            received: bytes.map(|bytes_received| super::super::call::Received { bytes_received, ..Default::default() }),
            ..Sample::default()
        };
        let samples = [sample(0.0, None), sample(1000.0, Some(1000)), sample(2000.0, Some(126_000))];
        let (first, last) = both(&samples, |sample| sample.received.as_ref()).expect("two");
        assert_eq!((first.0.at, last.0.at), (1000.0, 2000.0));
        assert_eq!(samples.windows(2).filter_map(statistics_rate).collect::<Vec<_>>(), [1000.0]);
        assert!(both(&samples[..2], |sample| sample.received.as_ref()).is_none());
    }
}
