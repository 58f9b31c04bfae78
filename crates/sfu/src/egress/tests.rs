use std::sync::Arc;

use rand_pcg::rand_core::Rng;
use str0m::rtp::{Extension, ExtensionMap};

use crate::{
    congestion::{RATE_MAX, RATE_MIN},
    rtcp::write_arrivals,
};

use super::{
    srtp::{
        ReportIndex,
        tests::{PROFILES, material},
    },
    *,
};

pub const SSRC: u32 = 0x1111_2222;
pub const RTX_SSRC: u32 = 0x3333_4444;
const NUMBER_ID: u8 = 3;
const RTT: Duration = Duration::from_millis(40);

/// An [`Egress`] with one stream, the keys of its client, and a path with a limited capacity. Time is simulated.
pub struct Pair {
    pub egress: Egress,
    other: Keys,
    pub born: Instant,
    pub now: Instant,
    pub capacity: f64,
    pub free: Instant,
    /// Numbers and arrival times of the packets that the path has carried.
    arrived: Vec<(u16, Instant)>,
    /// Bytes sent only for probes.
    probe_bytes: usize,
    pub sequence: u64,
    reports: u32,
}

impl Pair {
    pub fn new(capacity: f64) -> Self {
        Self::with(capacity, Algorithm::default(), true)
    }

    /// `is_numbered`: the client reports arrival times.
    fn with(capacity: f64, algorithm: Algorithm, is_numbered: bool) -> Self {
        let number = (NUMBER_ID, Extension::TransportSequenceNumber);
        Self::with_extension(capacity, algorithm, is_numbered.then_some(number))
    }

    #[expect(clippy::disallowed_methods, reason = "an instant to count from: none can be made up")]
    pub fn with_extension(capacity: f64, algorithm: Algorithm, extension: Option<(u8, Extension)>) -> Self {
        let now = Instant::now();
        let (profile, bytes) = PROFILES[2];
        let to = "127.0.0.1:9".parse().unwrap();
        let mut egress = Egress::new(&material(profile, bytes, true), to, algorithm, now).unwrap();
        let mut extensions = ExtensionMap::empty();
        if let Some((id, extension)) = extension {
            extensions.set(id, extension);
        }
        egress.stream("v".into(), || OutgoingStream::new("v".into(), &extensions, SSRC, Some(RTX_SSRC), now));
        let (other, _) = Keys::pair(&material(profile, bytes, false)).unwrap();
        Self {
            egress,
            other,
            born: now,
            now,
            capacity,
            free: now,
            arrived: Vec::new(),
            probe_bytes: 0,
            sequence: 1000,
            reports: 0,
        }
    }

    pub fn write(&mut self) -> Vec<u8> {
        let packet = Packet {
            payload_type: 96,
            rtx_payload_type: Some(97),
            sequence: self.sequence,
            time: self.sequence as u32 * 3000,
            clock_hz: 90_000,
            marker: true,
            audio_level: None,
            orientation: None,
            patch: None,
            payload: Arc::from([7; 1000]),
        };
        self.sequence += 1;
        self.egress.write(0, &packet, self.now).unwrap()
    }

    /// Puts a datagram on the path. It arrives after the time that the path needs to transmit it.
    fn carry(&mut self, datagram: &[u8]) {
        let took = Duration::from_secs_f64(datagram.len() as f64 * 8.0 / self.capacity);
        self.free = self.free.max(self.now) + took;
        self.arrived.push((number(datagram), self.free));
    }

    pub fn report(&mut self, report: &[u8]) -> (ReportOutcome, Vec<Vec<u8>>) {
        self.reports += 1;
        let mut sealed = report.to_vec();
        let index = ReportIndex::numbered(self.reports);
        self.other.seal_report(&mut sealed, index).unwrap();
        let mut sent = Vec::new();
        let outcome = self.egress.handle_report(&sealed, self.now, |datagram| sent.push(datagram));
        (outcome, sent)
    }

    /// Reports the packets that have arrived.
    fn report_arrivals(&mut self) {
        let now = self.now;
        let (arrived, later): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.arrived).into_iter().partition(|(_, at)| *at <= now);
        self.arrived = later;
        let arrived: Vec<_> =
            arrived.iter().map(|(number, at)| (*number, (*at - self.born).as_micros() as i64)).collect();
        let report = write_arrivals((1, SSRC), 0, &arrived);
        let Some(report) = report else { return };
        assert_eq!(self.report(&report).0, ReportOutcome::All);
    }

    /// Sends a packet every 10 ms and a report every 50 ms.
    fn run(&mut self, span: Duration) {
        let end = self.now + span;
        while self.now < end {
            for step in 0..50 {
                self.now += Duration::from_millis(1);
                if step % 10 == 0 {
                    let datagram = self.write();
                    self.carry(&datagram);
                }
                if self.egress.timeout().is_some_and(|at| at <= self.now) {
                    let mut sent = Vec::new();
                    self.egress.handle_timeout(self.now, |datagram| sent.push(datagram));
                    self.probe_bytes += sent.iter().map(Vec::len).sum::<usize>();
                    sent.iter().for_each(|datagram| self.carry(datagram));
                }
            }
            self.report_arrivals();
        }
    }
}

/// Returns the transport-wide sequence number of a packet.
fn number(datagram: &[u8]) -> u16 {
    assert_eq!(datagram[16], NUMBER_ID << 4 | 1);
    u16::from_be_bytes([datagram[17], datagram[18]])
}

fn sequence(datagram: &[u8]) -> u16 {
    u16::from_be_bytes([datagram[2], datagram[3]])
}

pub fn ssrc(datagram: &[u8]) -> u32 {
    u32::from_be_bytes(datagram[8..12].try_into().unwrap())
}

fn nack(first: u16, others: u16) -> Vec<u8> {
    let words = [0x81cd_0003, 1, SSRC, u32::from(first) << 16 | u32::from(others)];
    words.iter().flat_map(|word: &u32| word.to_be_bytes()).collect()
}

#[test]
fn nack_is_answered_once_per_round_trip() {
    let mut pair = Pair::new(1e9);
    let first = pair.write();
    assert_eq!((first[1], sequence(&first), ssrc(&first), number(&first)), (0x80 | 96, 1000, SSRC, 1));
    (0..20).for_each(|_| drop(pair.write()));
    let (outcome, sent) = pair.report(&nack(1002, 0b101));
    assert_eq!(outcome, ReportOutcome::All);
    let named: Vec<_> = sent.iter().map(|datagram| (datagram[1], sequence(datagram), ssrc(datagram))).collect();
    assert_eq!(named, [1, 2, 3].map(|sequence| (0x80 | 97, sequence, RTX_SSRC)));
    assert_eq!(sent.iter().map(|datagram| number(datagram)).collect::<Vec<_>>(), [22, 23, 24]);
    assert_eq!(pair.report(&nack(1002, 0)).1.len(), 0, "it is on its way");
    pair.now += 2 * FIRST_RTT;
    assert_eq!(pair.report(&nack(1002, 0)).1.len(), 1);
    assert_eq!(pair.report(&nack(900, 0xffff)).1.len(), 0, "these packets are not cached");
    pair.now += 2 * HISTORY_TIME;
    pair.write();
    assert_eq!(pair.report(&nack(1002, 0)).1.len(), 0, "too late");
}

#[test]
fn retransmissions_are_limited_to_half() {
    let mut pair = Pair::new(1e9);
    let (mut written, mut bytes) = (0, 0);
    for _ in 0..1000 {
        pair.now += Duration::from_millis(10);
        written += pair.write().len();
        for back in 1..=4 {
            let first = (pair.sequence - 17 * back) as u16;
            bytes += pair.report(&nack(first, 0xffff)).1.iter().map(Vec::len).sum::<usize>();
        }
    }
    let share = RETRANSMIT_BURST_BYTES_MAX + RETRANSMIT_SHARE * written as f64;
    assert!((0.8 * share..1.1 * share).contains(&(bytes as f64)), "{bytes} of {share}");
}

#[test]
fn probing_stops_at_demand_or_capacity() {
    for (capacity, enough) in [(2e7, true), (1.3e6, false)] {
        let mut pair = Pair::new(capacity);
        pair.run(Duration::from_secs(1));
        let before = pair.egress.bits_per_s().unwrap();
        assert!((9e5..1.1e6).contains(&(before as f64)), "nobody wants more: {before}");
        assert_eq!(pair.probe_bytes, 0);
        pair.egress.set_desired(3_000_000, pair.now);
        pair.run(Duration::from_secs(4));
        let after = pair.egress.bits_per_s().unwrap() as f64;
        match enough {
            true => assert!(
                after >= 3e6 && (5_000..40_000).contains(&pair.probe_bytes),
                "{after} by {} bytes",
                pair.probe_bytes
            ),
            false => assert!(after < 1.4e6 && pair.probe_bytes < 40_000, "{after} by {} bytes", pair.probe_bytes),
        }
    }
}

#[test]
fn library_sender_report_is_corrected() {
    let mut pair = Pair::new(1e9);
    let report_of = |ssrc: u32| {
        let mut report = vec![0; 28];
        report[..4].copy_from_slice(&[0x80, 200, 0, 6]);
        report[4..8].copy_from_slice(&ssrc.to_be_bytes());
        report[8..16].copy_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8]);
        report
    };
    let picture_lost = [0x81, 206, 0, 2, 0, 0, 0, 1, 0, 0, 0, 9];
    let keys = |is_client| Keys::pair(&material(PROFILES[2].0, PROFILES[2].1, is_client)).unwrap();
    let sealed = |index, report: &[u8]| {
        let mut sealed = report.to_vec();
        keys(true).0.seal_report(&mut sealed, ReportIndex::numbered(index)).unwrap();
        sealed
    };
    // Nothing was sent yet, so there is nothing to report.
    let mut nothing = sealed(1, &report_of(SSRC));
    assert!(!pair.egress.correct(&mut nothing, pair.now));
    pair.write();
    pair.write();
    pair.now += Duration::from_millis(100);
    let mut report = sealed(2, &[&report_of(99)[..], &report_of(SSRC), &picture_lost].concat());
    assert!(pair.egress.correct(&mut report, pair.now));
    assert_eq!(keys(false).1.open_report(&mut report), Some(ReportIndex::numbered(2)));
    let mut expected = report_of(SSRC);
    expected[16..20].copy_from_slice(&(1001_u32 * 3000 + 9000).to_be_bytes());
    expected[20..28].copy_from_slice(&[0, 0, 0, 2, 0, 0, 7, 0xd0]);
    assert_eq!(report, [&expected[..], &picture_lost].concat());
    // The round-trip time is measured by the reception report.
    pair.now += RTT + Duration::from_secs(1);
    let words = [0x81c9_0007, 1, SSRC, 0, 0, 0, 0x0304_0506, 65536];
    let answer: Vec<u8> = words.iter().flat_map(|word: &u32| word.to_be_bytes()).collect();
    assert_eq!(pair.report(&answer).0, ReportOutcome::All);
    assert_eq!(pair.egress.rtt, RTT);
}

#[test]
fn forged_reports_are_ignored_and_others_passed() {
    let mut pair = Pair::new(1e9);
    pair.write();
    let forged = [nack(1000, 0), vec![0; 40]].concat();
    assert_eq!(pair.egress.handle_report(&forged, pair.now, |_| panic!("nothing leaves")), ReportOutcome::Spurious);
    assert!(!pair.egress.correct(&mut forged.clone(), pair.now));
    let picture_lost = [0x81, 206, 0, 2, 0, 0, 0, 1, 0, 0, 0, 9];
    assert_eq!(pair.report(&[&nack(1000, 0)[..], &picture_lost].concat()).0, ReportOutcome::More);
    assert!(is_report(&picture_lost) && !is_report(&pair.write()) && !is_report(&[22, 200]) && !is_report(&[]));
}

#[test]
fn header_has_exactly_negotiated_extensions() {
    let mut pair = Pair::new(1e9);
    let head_of = |pair: &mut Pair, mid: &str, named: &[(u8, Extension)]| {
        let mut extensions = ExtensionMap::empty();
        named.iter().for_each(|(id, extension)| extensions.set(*id, extension.clone()));
        let now = pair.now;
        let stream = pair.egress.stream(mid.into(), || OutgoingStream::new(mid.into(), &extensions, 5, None, now));
        let (audio_level, orientation, patch, rtx_payload_type) = (Some((10, true)), Some(3), None, None);
        let (payload_type, time, clock_hz, marker, sequence, payload) =
            (96, 7, 90_000, false, 1000, Arc::from([7; 10]));
        let packet = Packet {
            payload_type,
            rtx_payload_type,
            sequence,
            time,
            clock_hz,
            marker,
            audio_level,
            orientation,
            patch,
            payload,
        };
        let datagram = pair.egress.write(stream, &packet, now).unwrap();
        assert_eq!(pair.egress.write(stream, &packet, now), None, "it was sent already");
        datagram[..datagram.len() - 10 - 16].to_vec()
    };
    let plain = [0x80, 96, 3, 232, 0, 0, 0, 7, 0, 0, 0, 5];
    assert_eq!(head_of(&mut pair, "a", &[]), plain);
    let mut expected = [&plain[..], &[0xbe, 0xde, 0, 3, 0x21, 0, 1, 0x40, b'b', 0x10, 0x8a, 0x50, 3, 0, 0, 0]].concat();
    expected[0] = 0x90;
    let named = [
        (1, Extension::AudioLevel),
        (2, Extension::TransportSequenceNumber),
        (4, Extension::RtpMid),
        (5, Extension::VideoOrientation),
    ];
    assert_eq!(head_of(&mut pair, "b", &named), expected);
}

/// No client reports on the stream of retransmissions, so they keep naming their media section.
#[test]
fn retransmissions_always_name_their_media_section() {
    let mut pair = Pair::new(1e9);
    let mut extensions = ExtensionMap::empty();
    extensions.set(4, Extension::RtpMid);
    let now = pair.now;
    pair.egress.retain(|_| false);
    pair.egress.stream("v".into(), || OutgoingStream::new("v".into(), &extensions, SSRC, Some(RTX_SSRC), now));
    let names_mid = |datagram: &[u8]| datagram[12..18] == [0xbe, 0xde, 0, 1, 0x40, b'v'];
    assert!(names_mid(&pair.write()));
    let receiver_report: Vec<u8> =
        [0x81c9_0007_u32, 1, SSRC, 0, 0, 0, 0, 0].iter().flat_map(|word| word.to_be_bytes()).collect();
    pair.report(&receiver_report);
    assert!(!names_mid(&pair.write()));
    let (_, retransmissions) = pair.report(&nack(1000, 1));
    assert_eq!(retransmissions.iter().map(|datagram| names_mid(datagram)).collect::<Vec<_>>(), [true, true]);
}

#[test]
fn media_and_reports_are_distinguished() {
    // VP8 with a common payload type, Opus with a marker; a receiver report, feedback; STUN, DTLS, too short.
    assert!(is_media(&[0x80, 96, 0]) && is_media(&[0x90, 0x80 | 111, 0]));
    assert!(!is_media(&[0x81, 201, 0]) && !is_media(&[0x8f, 205, 0]));
    assert!(!is_media(&[0, 1, 0]) && !is_media(&[22, 254, 253]) && !is_media(&[0x80]) && !is_media(&[]));
}

#[test]
fn removed_streams_are_forgotten() {
    let mut pair = Pair::new(1e9);
    let extensions = ExtensionMap::empty();
    let now = pair.now;
    let made = |name: &str| OutgoingStream::new(name.into(), &extensions, 1, None, now);
    assert_eq!(pair.egress.stream("w".into(), || made("w")), 1);
    assert_eq!(pair.egress.stream("w".into(), || panic!("it is there")), 1);
    pair.egress.retain(|mid| *mid != *"v");
    assert_eq!(pair.egress.stream("w".into(), || panic!("it is there")), 0);
    assert_eq!(pair.egress.bits_per_s(), None, "a stream without sequence numbers has no estimate");
}

/// A client with valid keys may send any content: each report is a valid one with bytes changed, cut or repeated.
#[test]
fn random_reports_cause_bounded_output() {
    let mut pair = Pair::new(1e9);
    let mut dice = rand_pcg::Pcg32::new(7, 7);
    let mut roll = |most: usize| dice.next_u32() as usize % most;
    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_be_bytes()).collect::<Vec<u8>>();
    let good = [
        words(&[0x81c9_0007, 1, SSRC, 0, 0, 0, 5, 6]),
        nack(1000, 0xffff),
        words(&[0x8fcd_0006, 1, SSRC, 0x0001_0014, 0, 0x2005_d555, 0x0102_0304]),
        words(&[0x8fce_0005, 1, 0, u32::from_be_bytes(*b"REMB"), 1 << 24 | 3 << 18 | 125_000, SSRC]),
        words(&[0x80c8_0006, SSRC, 1, 2, 3, 4, 5]),
    ];
    let mut sent_bytes = 0;
    for _ in 0..20_000 {
        pair.now += Duration::from_millis(1);
        if roll(4) == 0 {
            pair.write();
        }
        let mut report: Vec<u8> = (0..=roll(3)).flat_map(|_| good[roll(good.len())].clone()).collect();
        for _ in 0..roll(6) {
            let at = roll(report.len());
            match roll(3) {
                0 => report.truncate(at.max(8)),
                1 => report[at] ^= 1 << roll(8),
                _ => report[at] = roll(256) as u8,
            }
        }
        sent_bytes += pair.report(&report).1.iter().map(Vec::len).sum::<usize>();
        pair.egress.set_desired(roll(10_000_000) as u64, pair.now);
        if pair.egress.timeout().is_some_and(|at| at <= pair.now) {
            pair.egress.handle_timeout(pair.now, |datagram| sent_bytes += datagram.len());
        }
        assert!(pair.egress.sent.len() <= HISTORY_MAX && pair.egress.rtt <= RTT_MAX);
        let estimate = pair.egress.bits_per_s().unwrap() as f64;
        assert!((RATE_MIN..=RATE_MAX).contains(&estimate), "{estimate}");
    }
    assert!(sent_bytes > 0);
}

/// A compound of a reception report and a REMB, as clients without arrival times send it.
fn reception(ssrc: u32, lost_share: u32, highest: u32, remb_kbps: u32) -> Vec<u8> {
    let report = [0x81c9_0007, 1, ssrc, lost_share << 24, highest, 0, 0, 0];
    // Exponent 3: units of 8 bit/s.
    let remb = [0x8fce_0005, 1, 0, u32::from_be_bytes(*b"REMB"), (1 << 24) | (3 << 18) | (remb_kbps * 125), ssrc];
    report.into_iter().chain(remb).flat_map(u32::to_be_bytes).collect()
}

#[test]
fn client_without_arrival_times_is_judged_by_its_estimate_and_losses() {
    let mut pair = Pair::with(1e9, Algorithm::Rrtcc(Default::default()), false);
    pair.write();
    assert_eq!((pair.egress.bits_per_s(), pair.egress.loss()), (None, None));
    let second = Duration::from_secs(1);
    pair.now += second;
    // The first report, and one of an unknown stream, cover no packets.
    pair.report(&reception(SSRC, 255, 1000, 2000));
    pair.report(&reception(77, 255, 9000, 2000));
    assert_eq!((pair.egress.bits_per_s(), pair.egress.loss()), (Some(1_000_000), None));
    pair.now += second;
    pair.report(&reception(SSRC, 51, 1100, 2000));
    let (rate, loss) = (pair.egress.bits_per_s().unwrap(), pair.egress.loss().unwrap());
    assert!((890_000..910_000).contains(&rate) && (0.19..0.21).contains(&loss), "{rate} at a loss of {loss}");
    pair.report(&reception(SSRC, 0, 1100, 400));
    assert_eq!(pair.egress.bits_per_s(), Some(400_000), "the client's estimate is a maximum");
    // A sequence number that jumps covers nothing.
    pair.now += second;
    pair.report(&reception(SSRC, 255, 1 << 31, 400));
    assert_eq!(pair.egress.bits_per_s(), Some(400_000));
}

#[test]
fn rate_halves_while_packets_await_a_report() {
    let mut pair = Pair::with(1e9, Algorithm::Rrtcc(Default::default()), true);
    let seconds = |pair: &mut Pair, count: usize, sends: bool| {
        for _ in 0..count {
            pair.now += Duration::from_secs(1);
            if sends {
                pair.write();
            }
            pair.egress.set_desired(0, pair.now);
        }
        pair.egress.bits_per_s().unwrap()
    };
    assert_eq!(seconds(&mut pair, 60, false), 1_000_000, "nothing was sent, so nothing is missing");
    assert_eq!(seconds(&mut pair, 2, true), 1_000_000);
    assert_eq!(seconds(&mut pair, 1, true), 500_000);
    assert_eq!(seconds(&mut pair, 2, true), 250_000);
}
