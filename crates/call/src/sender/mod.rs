//! Sender of one video: RTP packets, pacing, repair, and reports of the receiver.
//!
//! - [`pacer`]: packets that wait to be sent, and when they are
//! - [`history`]: packets that were sent: for arrival reports and for retransmissions
//! - [`protection`]: forward error correction, as much as the losses need

mod history;
mod pacer;
mod protection;

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use millrace_sfu::{
    congestion::{CongestionController, Report},
    egress::Probe,
    rtcp::{self, Arrivals, Feedback, ReportBlock, SenderReport},
};

use crate::{
    packet::{FEC, FEC_SSRC, Header, RTX, RTX_SSRC, VIDEO},
    source::{CLOCK_HZ, Frame},
};
use history::History;
use pacer::{Pacer, Queued};
use protection::Protection;

/// Settings of a sender.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// SSRC of the video. Retransmissions and forward error correction have the two next ones.
    pub ssrc: u32,
    /// True if the receiver reports arrival times: packets carry transport-wide numbers.
    pub is_numbered: bool,
    pub retransmits: bool,
    /// True if packets are protected by forward error correction while packets are lost.
    pub protects: bool,
    /// Rate of the video that is worth probing for, in bit/s.
    pub ceiling_bits_per_s: u64,
}

/// Counters of a sender, as `getStats` of a browser has them: bytes of payload, without headers and padding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Packets and payload bytes of the video, of retransmissions, and of forward error correction.
    pub packets: u64,
    pub payload_bytes: u64,
    pub header_bytes: u64,
    pub retransmitted: u64,
    pub retransmitted_bytes: u64,
    pub protection: u64,
    pub protection_bytes: u64,
    pub keyframe_requests: u64,
    /// Frames that were left out because of a backlog.
    pub skipped_frames: u64,
}

/// Largest payload of a packet: with all headers below 1,250 bytes.
pub const PAYLOAD_BYTES_MAX: usize = 1160;
/// First byte of the payload of the first packet of a frame. The other packets have 0. Source: RFC 7741, section 4.2.
pub const FRAME_BEGIN: u8 = 0x10;
/// Round-trip time that is assumed until it is measured, and its maximum.
const RTT_FIRST: Duration = Duration::from_millis(100);
const RTT_MAX: Duration = Duration::from_secs(10);
const SENDER_REPORT_INTERVAL: Duration = Duration::from_secs(1);
/// Number of sender reports that a receiver can refer to.
const REPORTS_KEPT: usize = 8;
/// Interval of the controller's timeouts.
const CONTROLLER_INTERVAL: Duration = Duration::from_millis(250);
/// Share of the target rate that remains for payload, besides headers.
const PAYLOAD_SHARE: f64 = 0.97;
/// The target rate need not exceed this multiple of the ceiling: the rest is for headers and repair.
const MAX_FACTOR: f64 = 1.5;
/// Minimum share of the target rate for the video, whatever repair takes.
const MEDIA_SHARE_MIN: f64 = 0.5;
/// Weight of a new interval in the share of repair.
const REPAIR_WEIGHT: f64 = 0.3;
/// A backlog longer than this makes the encoder leave frames out.
const BACKLOG_MAX: Duration = Duration::from_millis(300);
/// A minimum interval between two retransmissions of a packet; at least the round-trip time.
const RETRANSMIT_INTERVAL_MIN: Duration = Duration::from_millis(10);
/// Retransmissions take at most this share of the bytes sent, with this burst.
const RETRANSMIT_SHARE: f64 = 0.5;
const RETRANSMIT_BURST_BYTES: f64 = 64_000.0;
const PROBE_PAUSE: Duration = Duration::from_secs(1);
const PROBE_PAUSE_MAX: Duration = Duration::from_secs(16);
const PROBE_STEP: f64 = 2.0;
const PROBE_OVERSHOOT: f64 = 1.2;
const PROBE_GAIN_MIN: f64 = 1.05;

/// Sender of one video. Hand it frames and reports; call [`Sender::handle_timeout`] at [`Sender::timeout`].
#[derive(Debug)]
pub struct Sender {
    config: Config,
    controller: Box<dyn CongestionController>,
    born: Instant,
    /// Newest time so far: the time never goes backwards here.
    now: Instant,
    pacer: Pacer,
    history: History,
    protection: Protection,
    out: VecDeque<Vec<u8>>,
    next_sequence: u16,
    next_rtx_sequence: u16,
    next_fec_sequence: u16,
    last_rtp: Option<(u32, Instant)>,
    rtt: Option<Duration>,
    /// Newest sender reports: middle 32 bits of the NTP timestamp, and send time.
    reports: VecDeque<(u32, Instant)>,
    report_at: Instant,
    controller_at: Instant,
    /// Highest sequence number of the last reception report.
    highest: Option<u32>,
    loss: f64,
    retransmit_budget: f64,
    /// Bytes of video and of repair in the current interval, and the smoothed share of repair.
    interval_bytes: (usize, usize),
    repair_share: f64,
    probe: Option<(Probe, f64)>,
    probe_at: Instant,
    probe_pause: Duration,
    probe_turn: usize,
    wants_keyframe: bool,
    /// Rate of the video in bit/s that a forwarder allows.
    cap_bits_per_s: Option<u64>,
    statistics: Statistics,
}

impl Sender {
    pub fn new(config: Config, mut controller: Box<dyn CongestionController>, now: Instant) -> Self {
        controller.set_max(config.ceiling_bits_per_s as f64 * MAX_FACTOR);
        Self {
            config,
            controller,
            born: now,
            now,
            pacer: Pacer::new(now),
            history: History::default(),
            protection: Protection::default(),
            out: VecDeque::new(),
            next_sequence: config.ssrc as u16,
            next_rtx_sequence: 1,
            next_fec_sequence: 1,
            last_rtp: None,
            rtt: None,
            reports: VecDeque::new(),
            report_at: now,
            controller_at: now,
            highest: None,
            loss: 0.0,
            retransmit_budget: RETRANSMIT_BURST_BYTES,
            interval_bytes: (0, 0),
            repair_share: 0.0,
            probe: None,
            probe_at: now,
            probe_pause: PROBE_PAUSE,
            probe_turn: 0,
            wants_keyframe: false,
            cap_bits_per_s: None,
            statistics: Statistics::default(),
        }
    }

    /// Returns the target rate of everything that is sent, in bit/s of RTP.
    pub fn bits_per_s(&self) -> u64 {
        self.controller.bits_per_s()
    }

    /// Returns the rate for the encoder: the target rate without headers and repair, in bit/s.
    pub fn media_bits_per_s(&self) -> u64 {
        let media = (1.0 - self.repair_share).max(MEDIA_SHARE_MIN);
        let rate = (self.controller.bits_per_s() as f64 * PAYLOAD_SHARE * media) as u64;
        rate.min(self.cap_bits_per_s.unwrap_or(u64::MAX))
    }

    /// Returns the round-trip time; `None` before it is measured.
    pub fn round_trip_time(&self) -> Option<Duration> {
        self.rtt
    }

    /// Returns the ratio of packets that the last report called lost, from 0 to 1.
    pub fn loss(&self) -> f64 {
        self.loss
    }

    pub fn statistics(&self) -> &Statistics {
        &self.statistics
    }

    pub fn controller(&mut self) -> &mut dyn CongestionController {
        &mut *self.controller
    }

    /// Returns whether the receiver has requested a keyframe since the last call.
    pub fn take_keyframe_request(&mut self) -> bool {
        std::mem::take(&mut self.wants_keyframe)
    }

    /// Returns whether frames wait for too long. The encoder then leaves frames out.
    pub fn has_backlog(&self) -> bool {
        self.pacer.backlog(self.controller.bits_per_s()) > BACKLOG_MAX
    }

    /// Counts a frame that the encoder has left out.
    pub fn skip_frame(&mut self) {
        self.statistics.skipped_frames += 1;
    }

    /// Queues the packets of a frame.
    pub fn push_frame(&mut self, frame: &Frame, now: Instant) {
        self.advance(now);
        let count = frame.payload.len().div_ceil(PAYLOAD_BYTES_MAX).max(1);
        let size = frame.payload.len().div_ceil(count).max(1);
        for (n, part) in frame.payload.chunks(size).enumerate() {
            let descriptor = if n == 0 { FRAME_BEGIN } else { 0 };
            let payload = [&[descriptor][..], part].concat();
            let sequence = self.next_sequence;
            self.push_packet(sequence, frame.time, n + 1 == count, payload, now);
        }
    }

    /// Queues one packet with its own sequence number, for a forwarder that keeps the numbers of its source.
    pub fn push_packet(&mut self, sequence: u16, time: u32, marker: bool, payload: Vec<u8>, now: Instant) {
        self.advance(now);
        self.last_rtp = Some((time, self.now));
        self.next_sequence = sequence.wrapping_add(1);
        self.pacer.push(Queued::Media { sequence, time, marker, payload });
        self.send_due();
    }

    /// Handles a compound report of the receiver. Reports on other streams are ignored.
    pub fn handle_report(&mut self, compound: &[u8], now: Instant) {
        self.advance(now);
        let mut block = None;
        let mut remb = None;
        let ssrc = self.config.ssrc;
        rtcp::read(compound, |feedback| match feedback {
            Feedback::ReceiverReport(of) if of.ssrc == ssrc => block = Some(of),
            Feedback::Remb { bits_per_s, .. } => remb = Some(bits_per_s),
            Feedback::Nack { ssrc: of, first, others } if of == ssrc => self.handle_nack(first, others),
            Feedback::Arrivals(arrivals) => self.handle_arrivals(&arrivals),
            Feedback::KeyframeRequest { ssrc: of } if of == ssrc => {
                self.statistics.keyframe_requests += 1;
                self.wants_keyframe = true;
            }
            _ => {}
        });
        match block {
            Some(block) => self.handle_reception(&block, remb),
            // An estimate without a reception report is that of a forwarder: its receivers cannot take more.
            None => self.cap_bits_per_s = remb.or(self.cap_bits_per_s),
        }
        self.begin_probe();
        self.send_due();
    }

    fn handle_reception(&mut self, block: &ReportBlock, remb_bits_per_s: Option<u64>) {
        // Source: RFC 3550, section 6.4.1: arrival - LSR - DLSR.
        let sent = self.reports.iter().rev().find(|(middle, _)| *middle == block.last_report);
        if let Some((_, at)) = sent {
            let since = self.now.saturating_duration_since(*at);
            let delay = Duration::from_secs_f64(f64::from(block.delay) / 65_536.0);
            self.rtt = Some(since.saturating_sub(delay).min(RTT_MAX));
        }
        // A report that does not grow is late, or wrong, or that of another receiver of the same stream.
        let before = self.highest.replace(block.highest).unwrap_or(block.highest.wrapping_sub(1));
        let grown = block.highest.wrapping_sub(before);
        let covered = if grown <= u32::from(u16::MAX) { grown as usize } else { 0 };
        let lost = (covered * usize::from(block.fraction_lost) + 128) / 256;
        if self.config.is_numbered {
            // The arrival reports have the losses.
            return;
        }
        if covered > 0 {
            self.set_loss(lost, covered);
        }
        let rtt = self.rtt.unwrap_or(RTT_FIRST);
        let report = Report { now: self.now, arrivals: &[], lost, covered, rtt, remb_bits_per_s };
        self.controller.handle_report(&report);
    }

    fn handle_arrivals(&mut self, report: &Arrivals<'_>) {
        let Self { history, probe, .. } = self;
        let (arrivals, lost) = history.settle(report, |number, arrival| {
            if let Some((probe, _)) = probe {
                probe.update(number, arrival);
            }
        });
        let covered = arrivals.len() + lost;
        if covered == 0 {
            return;
        }
        self.set_loss(lost, covered);
        let rtt = self.rtt.unwrap_or(RTT_FIRST);
        let report = Report { now: self.now, arrivals: &arrivals, lost, covered, rtt, remb_bits_per_s: None };
        self.controller.handle_report(&report);
        self.finish_probe();
    }

    /// Smooths the losses: an arrival report covers few packets.
    fn set_loss(&mut self, lost: usize, covered: usize) {
        let weight = (covered as f64 / 100.0).min(1.0);
        self.loss += weight * (lost as f64 / covered as f64 - self.loss);
        self.protection.set_loss(if self.config.protects { self.loss } else { 0.0 });
    }

    fn handle_nack(&mut self, first: u16, others: u16) {
        if !self.config.retransmits {
            return;
        }
        let others = (0..16).filter(|bit| others >> bit & 1 == 1).map(|bit| first.wrapping_add(bit + 1));
        let pause = self.rtt.unwrap_or(RTT_FIRST).max(RETRANSMIT_INTERVAL_MIN);
        for sequence in std::iter::once(first).chain(others) {
            if self.retransmit_budget >= 0.0 && self.history.may_retransmit(sequence, pause, self.now) {
                self.pacer.push_first(Queued::Retransmission { sequence });
            }
        }
    }

    /// Returns when [`Sender::handle_timeout`] must be called.
    pub fn timeout(&self) -> Instant {
        let probe = self.probe.as_ref().map(|(probe, _)| probe.timeout());
        let timers = [Some(self.report_at), Some(self.controller_at), self.pacer.timeout(), probe];
        timers.into_iter().flatten().min().unwrap_or(self.report_at)
    }

    pub fn handle_timeout(&mut self, now: Instant) {
        self.advance(now);
        if self.now >= self.controller_at {
            self.controller.handle_timeout(self.now);
            self.controller_at = self.now + CONTROLLER_INTERVAL;
            let (media, repair) = std::mem::take(&mut self.interval_bytes);
            if media + repair > 0 {
                let share = repair as f64 / (media + repair) as f64;
                self.repair_share += REPAIR_WEIGHT * (share - self.repair_share);
            }
        }
        if self.now >= self.report_at {
            self.report_at = self.now + SENDER_REPORT_INTERVAL;
            self.send_report();
        }
        self.finish_probe();
        self.send_due();
        self.send_probe();
    }

    /// Returns the next datagram to send: a media packet or a report.
    pub fn poll_output(&mut self) -> Option<Vec<u8>> {
        self.out.pop_front()
    }

    fn advance(&mut self, now: Instant) {
        self.now = self.now.max(now);
    }

    fn send_report(&mut self) {
        let Some((time, at)) = self.last_rtp else { return };
        let seconds = |since: Instant| self.now.saturating_duration_since(since).as_secs_f64();
        let report = SenderReport {
            ssrc: self.config.ssrc,
            // Seconds since the start of the call: receivers only send them back.
            ntp: (seconds(self.born) * 4_294_967_296.0) as u64 + (1 << 32),
            rtp_time: time.wrapping_add((seconds(at) * f64::from(CLOCK_HZ)) as u32),
            packets: self.statistics.packets as u32,
            bytes: self.statistics.payload_bytes as u32,
        };
        self.reports.push_back((report.middle(), self.now));
        if self.reports.len() > REPORTS_KEPT {
            self.reports.pop_front();
        }
        self.out.push_back(rtcp::sender_report(&report));
    }

    fn send_due(&mut self) {
        while let Some(queued) = self.pacer.pop(self.now) {
            match queued {
                Queued::Media { sequence, time, marker, payload } => self.send_media(sequence, time, marker, payload),
                Queued::Retransmission { sequence } => self.retransmit(sequence, false),
                Queued::Protection { payload } => self.send_protection(&payload),
            }
        }
    }

    fn send_media(&mut self, sequence: u16, time: u32, marker: bool, payload: Vec<u8>) {
        let packet = self.write(VIDEO, sequence, (time, marker), 0, &payload);
        self.statistics.packets += 1;
        self.statistics.payload_bytes += payload.len() as u64;
        self.statistics.header_bytes += (packet.len() - payload.len()) as u64;
        self.interval_bytes.0 += packet.len();
        let budget = self.retransmit_budget + RETRANSMIT_SHARE * packet.len() as f64;
        self.retransmit_budget = budget.min(RETRANSMIT_BURST_BYTES);
        if let Some(payload) = self.protection.add(&packet) {
            self.pacer.push_first(Queued::Protection { payload });
        }
        if self.config.retransmits || self.config.is_numbered {
            self.history.keep(sequence, time, marker, payload, self.now);
        }
        self.send(packet);
    }

    /// `is_padding`: the packet belongs to a probe, so it is no repair.
    fn retransmit(&mut self, sequence: u16, is_padding: bool) {
        let Some((time, marker, payload)) = self.history.retransmit(sequence, self.now) else { return };
        let payload = [&sequence.to_be_bytes()[..], payload].concat();
        let rtx_sequence = self.next_rtx_sequence;
        self.next_rtx_sequence = rtx_sequence.wrapping_add(1);
        let packet = self.write(RTX, rtx_sequence, (time, marker), RTX_SSRC, &payload);
        self.statistics.retransmitted += 1;
        self.statistics.retransmitted_bytes += payload.len() as u64;
        self.statistics.header_bytes += (packet.len() - payload.len()) as u64;
        if !is_padding {
            self.interval_bytes.1 += packet.len();
            self.retransmit_budget -= packet.len() as f64;
        }
        self.send(packet);
    }

    fn send_protection(&mut self, payload: &[u8]) {
        let sequence = self.next_fec_sequence;
        self.next_fec_sequence = sequence.wrapping_add(1);
        let time = self.last_rtp.map_or(0, |(time, _)| time);
        let packet = self.write(FEC, sequence, (time, false), FEC_SSRC, payload);
        self.statistics.protection += 1;
        self.statistics.protection_bytes += payload.len() as u64;
        self.statistics.header_bytes += (packet.len() - payload.len()) as u64;
        self.interval_bytes.1 += packet.len();
        self.send(packet);
    }

    fn write(
        &self,
        payload_type: u8,
        sequence: u16,
        (time, marker): (u32, bool),
        ssrc: u32,
        payload: &[u8],
    ) -> Vec<u8> {
        let number = self.config.is_numbered.then(|| self.history.next_number() as u16);
        let ssrc = self.config.ssrc.wrapping_add(ssrc);
        Header { payload_type, marker, sequence, time, ssrc, number }.write(payload)
    }

    fn send(&mut self, packet: Vec<u8>) {
        if self.config.is_numbered {
            let number = self.history.sent(packet.len(), self.now);
            if let Some((probe, _)) = &mut self.probe {
                probe.count(packet.len(), number);
            }
        }
        self.pacer.count(packet.len(), self.controller.bits_per_s(), self.now);
        self.out.push_back(packet);
    }

    /// Begins a probe if the video could use more than the target rate.
    fn begin_probe(&mut self) {
        let target = self.controller.bits_per_s() as f64;
        let desired =
            self.config.ceiling_bits_per_s as f64 / (PAYLOAD_SHARE * (1.0 - self.repair_share).max(MEDIA_SHARE_MIN));
        let is_wanted = desired > target && self.controller.allows_probing() && self.now >= self.probe_at;
        if !is_wanted || self.probe.is_some() || !self.history.has_report() {
            return;
        }
        let rate = (PROBE_STEP * target).min(PROBE_OVERSHOOT * desired);
        self.probe = Some((Probe::new(rate, self.history.next_number(), self.now), target));
    }

    /// Sends packets again, as padding of a probe.
    fn send_probe(&mut self) {
        while self.probe.as_ref().is_some_and(|(probe, _)| !probe.is_sent() && probe.timeout() <= self.now) {
            self.probe_turn = self.probe_turn.wrapping_add(1);
            let Some(sequence) = self.history.newest(self.probe_turn) else {
                (self.probe, self.probe_at) = (None, self.now + self.probe_pause);
                return;
            };
            self.retransmit(sequence, true);
        }
    }

    fn finish_probe(&mut self) {
        let Some((probe, before)) = &self.probe else { return };
        let Some(result) = probe.result(self.history.newest_reported(), self.now) else { return };
        let found_more = result.is_ok_and(|rate| rate > PROBE_GAIN_MIN * before);
        if let Ok(rate) = result {
            self.controller.raise_to(rate);
        }
        self.probe_pause = if found_more { PROBE_PAUSE } else { (2 * self.probe_pause).min(PROBE_PAUSE_MAX) };
        self.probe_at = self.now + if found_more { Duration::ZERO } else { self.probe_pause };
        self.probe = None;
    }
}
