//! Receiver of one video: losses, repair, and the reports to its sender.
//!
//! - [`window`]: the newest sequence numbers: received, repaired, missing or lost
//! - [`correction`]: packets of forward error correction, and what they restore

mod correction;
mod window;

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use millrace_sfu::{
    congestion::rrtcc::{Increase, RemoteEstimator},
    rtcp::{self, Feedback, ReportBlock},
};

use crate::{
    packet::{FEC, FEC_SSRC, Header, RTX, RTX_SSRC, VIDEO},
    sender::FRAME_BEGIN,
    source::CLOCK_HZ,
};
use correction::Correction;
use window::{Played, Window};

/// Which reports a receiver sends, besides reception reports each second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reports {
    /// Arrival times of packets, each 50 ms: for algorithms at the sender.
    Arrivals,
    /// An estimate of the receiver each second: REMB, for RRTCC.
    Remb(Increase),
}

/// Settings of a receiver.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// SSRC of the reports.
    pub ssrc: u32,
    /// SSRC of the video that is received.
    pub of: u32,
    pub reports: Reports,
    /// True to request retransmissions.
    pub requests: bool,
    /// True to hand over the packets, for a forwarder.
    pub forwards: bool,
}

/// Counters of a receiver, as `getStats` of a browser has them: bytes of payload, without headers and padding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Packets of the video that arrived without repair, and their bytes.
    pub packets: u64,
    pub payload_bytes: u64,
    pub header_bytes: u64,
    /// Payload of retransmissions and of forward error correction.
    pub repair_bytes: u64,
    /// Packets of the video that the network has lost, as reception reports count them.
    pub lost: u64,
    /// Packets that a retransmission or forward error correction has replaced.
    pub retransmitted: u64,
    pub corrected: u64,
    /// Packets that were lost after repair: residual loss.
    pub residual: u64,
    /// Packets that arrived twice, or after they were given up.
    pub useless: u64,
    /// Frames of which all packets arrived in time, and others.
    pub frames: u64,
    pub broken_frames: u64,
    pub keyframe_requests: u64,
    /// Payload of the video, received or repaired.
    pub media_bytes: u64,
}

/// A packet of the video, for a forwarder.
#[derive(Clone, Debug, PartialEq)]
pub struct Received {
    pub sequence: u16,
    pub time: u32,
    pub marker: bool,
    pub payload: Vec<u8>,
}

const REPORT_INTERVAL: Duration = Duration::from_secs(1);
const ARRIVALS_INTERVAL: Duration = Duration::from_millis(50);
const KEYFRAME_INTERVAL: Duration = Duration::from_millis(500);
/// Interval in which missing packets are checked.
const CHECK_INTERVAL: Duration = Duration::from_millis(10);
/// Maximum number of arrivals in one report. More are reported at once.
const ARRIVALS_MAX: usize = 1000;
const US_PER_S: i64 = 1_000_000;

/// Receiver of one video. Hand it datagrams; call [`Receiver::handle_timeout`] at [`Receiver::timeout`].
#[derive(Debug)]
pub struct Receiver {
    config: Config,
    born: Instant,
    /// Newest time so far: the time never goes backwards here.
    now: Instant,
    window: Window,
    correction: Correction,
    estimator: Option<RemoteEstimator>,
    /// Transport-wide numbers and arrival times in microseconds, since the last report of them.
    arrivals: Vec<(u16, i64)>,
    arrivals_at: Option<Instant>,
    arrival_reports: u8,
    report_at: Instant,
    check_at: Option<Instant>,
    /// Middle 32 bits of the newest sender report, and its arrival time.
    sender_report: Option<(u32, Instant)>,
    /// Expected and received packets at the last reception report.
    before: (u64, u64),
    jitter: f64,
    /// RTP timestamp and arrival time of the newest packet, and the timestamp without wraps.
    newest: Option<(u32, Instant)>,
    media_time: i64,
    needs_keyframe: bool,
    keyframe_at: Instant,
    /// Arrival time of the last keyframe's first packet.
    keyframe_arrived: Option<Instant>,
    out: VecDeque<Vec<u8>>,
    packets: VecDeque<Received>,
    statistics: Statistics,
}

impl Receiver {
    pub fn new(config: Config, now: Instant) -> Self {
        let estimator = match config.reports {
            Reports::Remb(increase) => Some(RemoteEstimator::new(increase)),
            Reports::Arrivals => None,
        };
        Self {
            config,
            born: now,
            now,
            window: Window::default(),
            correction: Correction::default(),
            estimator,
            arrivals: Vec::new(),
            arrivals_at: None,
            arrival_reports: 0,
            report_at: now + REPORT_INTERVAL,
            check_at: None,
            sender_report: None,
            before: (0, 0),
            jitter: 0.0,
            newest: None,
            media_time: 0,
            needs_keyframe: false,
            keyframe_at: now,
            keyframe_arrived: None,
            out: VecDeque::new(),
            packets: VecDeque::new(),
            statistics: Statistics::default(),
        }
    }

    pub fn statistics(&self) -> Statistics {
        let lost = self.window.expected().saturating_sub(self.statistics.packets);
        Statistics { lost, residual: self.window.lost(), ..self.statistics }
    }

    /// Returns when the newest keyframe began to arrive.
    pub fn keyframe_arrived(&self) -> Option<Instant> {
        self.keyframe_arrived
    }

    /// Requests a keyframe, at most twice per second.
    pub fn request_keyframe(&mut self, now: Instant) {
        self.advance(now);
        self.needs_keyframe = true;
        self.send_keyframe_request();
    }

    /// Handles a media packet. Packets of other streams are ignored.
    pub fn handle_packet(&mut self, packet: &[u8], now: Instant) {
        self.advance(now);
        let Some((header, payload)) = Header::read(packet) else { return };
        let of = header.ssrc.wrapping_sub(self.config.of);
        if of > FEC_SSRC {
            return;
        }
        self.record_arrival(&header, packet.len());
        match (header.payload_type, of) {
            (VIDEO, 0) => {
                self.statistics.header_bytes += (packet.len() - payload.len()) as u64;
                self.handle_video(&header, packet, payload);
            }
            (RTX, RTX_SSRC) => {
                self.statistics.header_bytes += (packet.len() - payload.len()) as u64;
                self.statistics.repair_bytes += payload.len() as u64;
                self.handle_retransmission(&header, payload);
            }
            (FEC, FEC_SSRC) => {
                self.statistics.header_bytes += (packet.len() - payload.len()) as u64;
                self.statistics.repair_bytes += payload.len() as u64;
                self.correction.add(payload.to_vec());
                self.correct();
            }
            _ => {}
        }
        if self.check_at.is_none() && self.window.has_missing() {
            self.check_at = Some(self.now + CHECK_INTERVAL);
        }
    }

    /// Handles a compound report of the sender.
    pub fn handle_report(&mut self, compound: &[u8], now: Instant) {
        self.advance(now);
        rtcp::read(compound, |feedback| match feedback {
            Feedback::SenderReport(report) if report.ssrc == self.config.of => {
                self.sender_report = Some((report.middle(), self.now));
            }
            _ => {}
        });
    }

    /// Returns when [`Receiver::handle_timeout`] must be called.
    pub fn timeout(&self) -> Instant {
        let keyframe = self.needs_keyframe.then_some(self.keyframe_at);
        let timers = [Some(self.report_at), self.arrivals_at, self.check_at, keyframe];
        timers.into_iter().flatten().min().unwrap_or(self.report_at)
    }

    pub fn handle_timeout(&mut self, now: Instant) {
        self.advance(now);
        if self.arrivals_at.is_some_and(|at| at <= self.now) {
            self.report_arrivals();
        }
        if self.check_at.is_some_and(|at| at <= self.now) {
            self.check();
        }
        if self.report_at <= self.now {
            self.report_at = self.now + REPORT_INTERVAL;
            self.report();
        }
        self.send_keyframe_request();
    }

    /// Returns the next report to send.
    pub fn poll_output(&mut self) -> Option<Vec<u8>> {
        self.out.pop_front()
    }

    /// Returns the next packet of the video, if the receiver hands them over. The order is that of arrival.
    pub fn poll_packet(&mut self) -> Option<Received> {
        self.packets.pop_front()
    }

    fn advance(&mut self, now: Instant) {
        self.now = self.now.max(now);
    }

    fn us(&self, at: Instant) -> i64 {
        at.saturating_duration_since(self.born).as_micros() as i64
    }

    fn record_arrival(&mut self, header: &Header, bytes: usize) {
        let at_us = self.us(self.now);
        if let (Reports::Arrivals, Some(number)) = (self.config.reports, header.number) {
            self.arrivals.push((number, at_us));
            self.arrivals_at.get_or_insert(self.now + ARRIVALS_INTERVAL);
            if self.arrivals.len() >= ARRIVALS_MAX {
                self.report_arrivals();
            }
        }
        if header.ssrc != self.config.of {
            return;
        }
        if let Some((before, at)) = self.newest {
            let step = i64::from(header.time.wrapping_sub(before) as i32);
            self.media_time += step;
            // Source: RFC 3550, appendix A.8.
            let arrived = self.now.saturating_duration_since(at).as_secs_f64() * f64::from(CLOCK_HZ);
            self.jitter += ((arrived - step as f64).abs() - self.jitter) / 16.0;
        }
        self.newest = Some((header.time, self.now));
        if let Some(estimator) = &mut self.estimator {
            let time_us = self.media_time.saturating_mul(US_PER_S) / i64::from(CLOCK_HZ);
            estimator.handle_packet(at_us, time_us, bytes);
        }
    }

    fn handle_video(&mut self, header: &Header, packet: &[u8], payload: &[u8]) {
        self.statistics.packets += 1;
        self.statistics.payload_bytes += payload.len() as u64;
        match self.window.receive(header.sequence, header.marker, self.now) {
            true => self.accept(header, payload, packet.to_vec()),
            false => self.statistics.useless += 1,
        }
    }

    fn handle_retransmission(&mut self, header: &Header, payload: &[u8]) {
        let Some((sequence, payload)) = payload.split_first_chunk() else { return };
        let sequence = u16::from_be_bytes(*sequence);
        if !self.window.repair(sequence, header.marker, self.now) {
            self.statistics.useless += 1;
            return;
        }
        self.statistics.retransmitted += 1;
        // Forward error correction protects the packet as it was sent, and its transport-wide number is unknown here.
        let original = Header { payload_type: VIDEO, sequence, ssrc: self.config.of, number: None, ..*header };
        self.accept(&original, payload, Vec::new());
    }

    /// Restores packets as long as this is possible.
    fn correct(&mut self) {
        while let Some(packet) = self.correction.restore(self.config.of, |sequence| self.window.is_wanted(sequence)) {
            let Some((header, payload)) = Header::read(&packet) else { continue };
            if header.payload_type != VIDEO || !self.window.repair(header.sequence, header.marker, self.now) {
                continue;
            }
            self.statistics.corrected += 1;
            let payload = payload.to_vec();
            self.accept(&header, &payload, packet);
        }
    }

    /// Handles a packet of the video that is new, received or repaired. `packet`: as it was sent, if that is known.
    fn accept(&mut self, header: &Header, payload: &[u8], packet: Vec<u8>) {
        self.statistics.media_bytes += payload.len() as u64;
        if let [FRAME_BEGIN, 0, ..] = payload {
            self.keyframe_arrived = Some(self.now);
            self.needs_keyframe = false;
        }
        if self.config.forwards {
            let Header { sequence, time, marker, .. } = *header;
            self.packets.push_back(Received { sequence, time, marker, payload: payload.to_vec() });
        }
        if !packet.is_empty() {
            self.correction.keep(header.sequence, packet);
            if self.correction.waits_for_others() {
                self.correct();
            }
        }
    }

    /// Requests missing packets, and gives up old ones.
    fn check(&mut self) {
        let missing = if self.config.requests { self.window.due(self.now) } else { Vec::new() };
        self.out.extend(rtcp::nack(self.config.ssrc, self.config.of, &missing));
        self.play();
        self.check_at = self.window.has_missing().then_some(self.now + CHECK_INTERVAL);
    }

    fn play(&mut self) {
        let Played { frames, broken_frames } = self.window.play(self.now);
        self.statistics.frames += frames;
        self.statistics.broken_frames += broken_frames;
        self.needs_keyframe |= broken_frames > 0;
    }

    fn report_arrivals(&mut self) {
        self.arrivals_at = None;
        // A report covers the numbers from its first one on.
        if let Some((first, _)) = self.arrivals.first().copied() {
            self.arrivals.sort_by_key(|(number, _)| number.wrapping_sub(first) as i16);
        }
        let report = rtcp::write_arrivals((self.config.ssrc, self.config.of), self.arrival_reports, &self.arrivals);
        self.out.extend(report);
        self.arrival_reports = self.arrival_reports.wrapping_add(1);
        self.arrivals.clear();
    }

    fn report(&mut self) {
        // Frames that are complete are played without a check.
        self.play();
        let Some(highest) = self.window.highest() else { return };
        let (expected, received) = (self.window.expected(), self.statistics.packets);
        let (expected_before, received_before) = std::mem::replace(&mut self.before, (expected, received));
        let covered = expected.saturating_sub(expected_before);
        let lost = covered.saturating_sub(received.saturating_sub(received_before));
        let (last_report, delay) = self.sender_report.map_or((0, 0), |(middle, at)| {
            (middle, (self.now.saturating_duration_since(at).as_secs_f64() * 65_536.0) as u32)
        });
        let block = ReportBlock {
            ssrc: self.config.of,
            fraction_lost: (lost * 256).checked_div(covered).unwrap_or(0).min(255) as u8,
            lost: expected as i32 - received as i32,
            highest,
            jitter: self.jitter as u32,
            last_report,
            delay,
        };
        let mut compound = rtcp::receiver_report(self.config.ssrc, &block);
        let estimate = self.estimator.as_mut().and_then(|estimator| estimator.bits_per_s(self.now));
        compound.extend(estimate.into_iter().flat_map(|rate| rtcp::remb(self.config.ssrc, self.config.of, rate)));
        self.out.push_back(compound);
    }

    fn send_keyframe_request(&mut self) {
        if self.needs_keyframe && self.now >= self.keyframe_at {
            self.keyframe_at = self.now + KEYFRAME_INTERVAL;
            self.statistics.keyframe_requests += 1;
            self.out.push_back(rtcp::keyframe_request(self.config.ssrc, self.config.of));
        }
    }
}
