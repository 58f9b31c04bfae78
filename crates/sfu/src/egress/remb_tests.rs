//! A client without transport-wide congestion control: it needs send times, and reports its own estimate (REMB).

use std::collections::VecDeque;

use str0m::rtp::{Extension, ExtensionMap};

use super::{
    tests::{Pair, RTX_SSRC, SSRC, ssrc},
    *,
};
use crate::{
    congestion::gcc::{ReceiverEstimator, SendTime},
    rtcp::{receiver_report, remb},
};

const SEND_TIME_ID: u8 = 5;
/// SSRC of the client in its reports.
const CLIENT: u32 = 1;
const DELAY: Duration = Duration::from_millis(20);
const QUEUE: Duration = Duration::from_millis(300);

/// A [`Pair`] whose client estimates the bandwidth as aiortc does, behind a path with a queue that drops from its tail.
struct Client {
    pair: Pair,
    estimator: ReceiverEstimator,
    in_flight: VecDeque<(Instant, Vec<u8>)>,
    reported: Instant,
    /// Bytes sent since the last call of [`Client::take_kbps`], and those of them that are padding.
    bytes: usize,
    padding: usize,
}

/// Returns the send time of a packet: units of 2^-18 s in 24 bits.
fn send_time(datagram: &[u8]) -> u32 {
    assert_eq!(datagram[16], SEND_TIME_ID << 4 | 2);
    u32::from_be_bytes([0, datagram[17], datagram[18], datagram[19]])
}

impl Client {
    fn new(capacity: f64, algorithm: Algorithm) -> Self {
        let pair = Pair::with_extension(capacity, algorithm, Some((SEND_TIME_ID, Extension::AbsoluteSendTime)));
        let (estimator, reported) = (ReceiverEstimator::new(pair.now), pair.now);
        Self { pair, estimator, in_flight: VecDeque::new(), reported, bytes: 0, padding: 0 }
    }

    fn carry(&mut self, datagram: Vec<u8>) {
        self.bytes += datagram.len();
        self.padding += if ssrc(&datagram) == RTX_SSRC { datagram.len() } else { 0 };
        let starts = self.pair.free.max(self.pair.now);
        if starts - self.pair.now <= QUEUE {
            let took = Duration::from_secs_f64(datagram.len() as f64 * 8.0 / self.pair.capacity);
            self.pair.free = starts + took;
            self.in_flight.push_back((self.pair.free + DELAY, datagram));
        }
    }

    /// Sends media at the rate of the layer that the estimate allows: 150 or 800 kbit/s.
    fn run(&mut self, seconds: u64) {
        let end = self.pair.now + Duration::from_secs(seconds);
        let mut due = self.pair.now;
        while self.pair.now < end {
            self.pair.now += Duration::from_millis(5);
            let now = self.pair.now;
            let estimate = self.pair.egress.bits_per_s().unwrap_or(u64::MAX);
            let media = if estimate > 850_000 { 800_000.0 } else { 150_000.0 };
            while due <= now {
                let datagram = self.pair.write();
                due += Duration::from_secs_f64(datagram.len() as f64 * 8.0 / media);
                self.carry(datagram);
            }
            if self.pair.egress.timeout().is_some_and(|at| at <= now) {
                let mut sent = Vec::new();
                self.pair.egress.handle_timeout(now, |datagram| sent.push(datagram));
                sent.into_iter().for_each(|datagram| self.carry(datagram));
            }
            while let Some((at, datagram)) = self.in_flight.pop_front_if(|(at, _)| *at <= now) {
                let us = (u64::from(send_time(&datagram)) * 1_000_000) >> 18;
                let sent = SendTime::Absolute(self.pair.born + Duration::from_micros(us));
                self.estimator.handle_packet(Some(sent), datagram.len(), at);
            }
            let is_due = now - self.reported >= Duration::from_secs(1);
            if is_due || self.estimator.has_fallen() {
                self.pair.egress.set_desired(1_000_000, now);
                let estimate = self.estimator.report();
                let block = ReportBlock { ssrc: SSRC, highest: self.pair.sequence as u32, ..ReportBlock::default() };
                let remb = estimate.map_or(Vec::new(), |estimate| remb(CLIENT, SSRC, estimate));
                self.pair.report(&[receiver_report(CLIENT, &block), remb].concat());
                self.reported = now;
            }
        }
    }

    /// Returns the rate in kbit/s that was sent in the given seconds, and the padding in it.
    fn kbps(&mut self, seconds: u64) -> (usize, usize) {
        (self.bytes, self.padding) = (0, 0);
        self.run(seconds);
        let kbps = |bytes: usize| bytes * 8 / 1000 / seconds as usize;
        (kbps(self.bytes), kbps(self.padding))
    }
}

#[test]
fn rate_follows_client_through_bottleneck() {
    let mut client = Client::new(50e6, Algorithm::Gcc);
    client.run(10);
    let (before, padding) = client.kbps(5);
    assert!((780..850).contains(&before), "the better layer fits: {before}");
    assert!(padding < 50, "{padding}");
    client.pair.capacity = 300e3;
    client.run(20);
    let (during, _) = client.kbps(10);
    assert!((140..330).contains(&during), "{during}");
    // Without padding the client would see 150 kbit/s, and would never allow the better layer.
    client.pair.capacity = 50e6;
    client.run(25);
    let (after, _) = client.kbps(5);
    assert!(after > 700, "{after}");
}

#[test]
fn padding_ends_where_it_does_not_help() {
    let mut client = Client::new(400e3, Algorithm::Gcc);
    client.run(60);
    let (rate, padding) = client.kbps(60);
    assert!(rate < 400, "never more than the path carries: {rate}");
    assert!(padding < 150, "pauses grow: {padding} of {rate}");
}

#[test]
fn send_time_wraps_after_64_seconds_and_is_shared() {
    let mut client = Client::new(1e9, Algorithm::Gcc);
    let pair = &mut client.pair;
    let born = pair.born;
    let mut at = |ms: u64| {
        pair.now = born + Duration::from_millis(ms);
        send_time(&pair.write())
    };
    assert_eq!([at(0), at(500), at(1000), at(63_999)], [0, 1 << 17, 1 << 18, (1 << 24) - 263]);
    assert_eq!([at(64_000), at(64_000 * 1000 + 250)], [0, 1 << 16]);
    // A stream that is created later has the same clock, and so have retransmissions.
    let mut extensions = ExtensionMap::empty();
    extensions.set(SEND_TIME_ID, Extension::AbsoluteSendTime);
    let later = pair.now;
    pair.egress.retain(|_| false);
    pair.egress.stream("v".into(), || OutgoingStream::new("v".into(), &extensions, SSRC, Some(RTX_SSRC), later));
    let first = pair.sequence as u16;
    assert_eq!(send_time(&pair.write()), 1 << 16);
    pair.now += Duration::from_millis(500);
    let nack = crate::rtcp::nack(CLIENT, SSRC, &[first]).unwrap();
    let (_, sent) = pair.report(&nack);
    assert_eq!(sent.iter().map(|datagram| send_time(datagram)).collect::<Vec<_>>(), [(1 << 16) + (1 << 17)]);
}

#[test]
fn client_with_arrival_times_gets_no_send_times() {
    let mut pair = Pair::new(1e9);
    let mut extensions = ExtensionMap::empty();
    extensions.set(2, Extension::TransportSequenceNumber);
    extensions.set(SEND_TIME_ID, Extension::AbsoluteSendTime);
    let now = pair.now;
    pair.egress.retain(|_| false);
    pair.egress.stream("v".into(), || OutgoingStream::new("v".into(), &extensions, SSRC, None, now));
    let datagram = pair.write();
    assert_eq!(datagram[12..20], [0xbe, 0xde, 0, 1, 0x21, 0, 1, 0], "only the number");
    // Its own estimate is ignored.
    pair.report(&remb(CLIENT, SSRC, 100_000));
    assert_eq!(pair.egress.bits_per_s(), Some(1_000_000));
}

#[test]
fn estimates_are_limited_and_those_of_other_streams_ignored() {
    for algorithm in Algorithm::ALL {
        let mut client = Client::new(1e9, algorithm);
        let pair = &mut client.pair;
        pair.write();
        pair.report(&remb(CLIENT, 77, 400_000));
        assert_eq!(pair.egress.bits_per_s(), None, "{algorithm}: not a stream of this client");
        let limited = |pair: &mut Pair, ssrc, bits_per_s| {
            pair.report(&remb(CLIENT, ssrc, bits_per_s));
            pair.egress.bits_per_s().unwrap()
        };
        assert_eq!(limited(pair, RTX_SSRC, 400_000), 400_000, "{algorithm}");
        assert_eq!(limited(pair, 77, 0), 400_000, "{algorithm}");
        // An estimate that names no stream is for all of them.
        let mut unnamed = remb(CLIENT, SSRC, 200_000);
        unnamed[16] = 0;
        pair.report(&unnamed);
        assert_eq!(pair.egress.bits_per_s(), Some(200_000), "{algorithm}");
        assert_eq!(limited(pair, SSRC, 0), 30_000, "{algorithm}");
        assert!(limited(pair, SSRC, u64::MAX) <= 1_000_000_000, "{algorithm}");
        // A report of a stranger.
        let forged = remb(CLIENT, SSRC, 100_000);
        let before = pair.egress.bits_per_s();
        assert_eq!(pair.egress.handle_report(&forged, pair.now, |_| panic!("none")), ReportOutcome::Spurious);
        assert_eq!(pair.egress.bits_per_s(), before);
    }
}
