//! Sends media packets to one member without the WebRTC library, and so without its cost per packet.
//!
//! ```text
//!   packet ─► stream: header, number ─► seal ─► datagram
//!               └─► retransmission cache ─► NACK: header, own number ─► seal ─► datagram
//!   report ─► open: missing packets, arrival times ─► congestion controller
//! ```
//!
//! - [`outgoing_stream`]: one RTP stream: headers, retransmission cache, sender reports
//! - [`patch`]: numbers inside a VP8 payload
//! - [`srtp`]: SRTP and SRTCP
//! - [`probe`]: probing for more bandwidth
//! - [`client_estimates`]: estimates that a client makes itself (REMB)
//! - [`padding`]: padding up to such an estimate, so that the client can raise it
//!
//! The library still does the handshake and the SDP, and receives what the member sends. The library also writes the
//! reports, which are corrected here because the library does not see the packets.

mod client_estimates;
mod outgoing_stream;
mod padding;
mod patch;
mod probe;
mod srtp;

#[cfg(test)]
mod remb_tests;
#[cfg(test)]
mod tests;

use std::{
    collections::VecDeque,
    net::SocketAddr,
    time::{Duration, Instant},
};

use millrace_rtc::crypto::KeyingMaterial;
use str0m::media::Mid;

use crate::{
    congestion::{Algorithm, Arrival, CongestionController, Report},
    rtcp::{self, Arrivals, Feedback, ReportBlock, Ssrcs},
};
use client_estimates::ClientEstimates;
use outgoing_stream::UnsealedPacket;
use padding::Padding;

pub use outgoing_stream::{OutgoingStream, Packet};
pub use patch::Patch;
pub use probe::{Probe, TooFewReported};
pub use srtp::{Keys, ReportIndex};

/// Initial bandwidth estimate in bit/s.
const FIRST_ESTIMATE: f64 = 1_000_000.0;
/// Round-trip time that is assumed until it is measured.
const FIRST_RTT: Duration = Duration::from_millis(100);
const RTT_MAX: Duration = Duration::from_secs(2);
/// Minimum interval between two retransmissions of a packet. A NACK repeated within this interval, or within the
/// round-trip time if that is longer, is a duplicate.
const RETRANSMIT_INTERVAL_MIN: Duration = Duration::from_millis(10);
/// Limits of retransmission: its share of the bytes sent, and its maximum burst in bytes. A client that requests
/// everything cannot cause more.
const RETRANSMIT_SHARE: f64 = 0.5;
const RETRANSMIT_BURST_BYTES_MAX: f64 = 64_000.0;
/// Limits of the history of sent packets, which awaits arrival reports: number of packets, and age.
const HISTORY_MAX: usize = 4096;
const HISTORY_TIME: Duration = Duration::from_secs(2);
/// Expired entries of the history are removed once per this number of packets.
const SWEEP_EVERY: u64 = 16;
/// Pause between probes. Each probe that shows no more bandwidth doubles it, up to `PROBE_PAUSE_MAX`. A probe that
/// shows more resets it, and the next probe can begin at once.
const PROBE_PAUSE: Duration = Duration::from_secs(1);
const PROBE_PAUSE_MAX: Duration = Duration::from_secs(16);
const PROBE_GAIN_MIN: f64 = 1.05;
/// Maximum pause between two phases of padding. It is shorter, because padding never exceeds the client's estimate.
const PADDING_PAUSE_MAX: Duration = Duration::from_secs(8);
/// A probe's rate is `PROBE_RATE_STEP` times the estimate, but at most `PROBE_RATE_OVERSHOOT` times the desired rate.
const PROBE_RATE_STEP: f64 = 2.0;
const PROBE_RATE_OVERSHOOT: f64 = 1.2;
/// After this time without a report, the controller is notified once per second.
const REPORT_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum number of probe packets sent at once after a late timer.
const PROBE_BURST_MAX: usize = 32;

/// Sender of media to one member.
pub struct Egress {
    sends: Keys,
    receives: Keys,
    streams: Vec<OutgoingStream>,
    born: Instant,
    /// Destination of the datagrams.
    to: SocketAddr,
    /// Transport-wide sequence number of the next packet, across all streams.
    next: u64,
    /// History of sent packets, up to the newest.
    sent: VecDeque<Sent>,
    newest_reported: Option<u64>,
    controller: Box<dyn CongestionController>,
    /// Bandwidth estimates made by the client (REMB), and the newest sum of them in bit/s.
    client_estimates: ClientEstimates,
    remb_bits_per_s: Option<u64>,
    /// Packets sent until the newest report, and the time since when later ones await a report.
    packets_reported: u32,
    unreported_since: Option<Instant>,
    rtt: Duration,
    retransmit_budget: f64,
    desired_bits_per_s: f64,
    probe: Option<(Probe, f64)>,
    /// Takes the place of a probe if the client makes the estimate.
    padding: Option<Padding>,
    /// Highest estimate in bit/s that the last padding has reached.
    padding_peak: f64,
    probe_at: Instant,
    probe_pause: Duration,
    /// Reusable buffer for the arrivals of a report.
    arrivals: Vec<Arrival>,
}

/// Entry of the packet history, kept small.
#[derive(Clone, Copy)]
struct Sent {
    /// Send time in microseconds since the sender was created; wraps.
    at_us: u32,
    bytes: u16,
    is_settled: bool,
}

/// Result of reading a report.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ReportOutcome {
    /// The report is not authentic.
    Spurious,
    /// The report was processed completely.
    All,
    /// The library must process the report, too.
    More,
}

impl Egress {
    /// Creates a sender without streams. `None`: no cipher is available for these keys.
    pub fn new(material: &KeyingMaterial, to: SocketAddr, algorithm: Algorithm, now: Instant) -> Option<Self> {
        let (sends, receives) = Keys::pair(material)?;
        Some(Self {
            sends,
            receives,
            streams: Vec::new(),
            born: now,
            to,
            next: 1,
            sent: VecDeque::new(),
            newest_reported: None,
            controller: algorithm.controller(FIRST_ESTIMATE, now),
            client_estimates: ClientEstimates::default(),
            remb_bits_per_s: None,
            packets_reported: 0,
            unreported_since: None,
            rtt: FIRST_RTT,
            retransmit_budget: RETRANSMIT_BURST_BYTES_MAX,
            desired_bits_per_s: 0.0,
            probe: None,
            padding: None,
            padding_peak: 0.0,
            probe_at: now,
            probe_pause: PROBE_PAUSE,
            arrivals: Vec::new(),
        })
    }

    /// Returns the index of the stream with this `mid`. Creates the stream with `make` if it does not exist.
    pub fn stream(&mut self, mid: Mid, make: impl FnOnce() -> OutgoingStream) -> usize {
        let known = self.streams.iter().position(|stream| stream.mid == mid);
        known.unwrap_or_else(|| {
            let mut stream = make();
            stream.set_born(self.born);
            self.streams.push(stream);
            self.streams.len() - 1
        })
    }

    /// Removes the streams for which `is_used` returns false. The indexes of the other streams change.
    pub fn retain(&mut self, is_used: impl Fn(Mid) -> bool) {
        self.streams.retain(|stream| is_used(stream.mid));
        self.client_estimates.clear();
        self.packets_reported = self.packets();
    }

    /// Returns the bandwidth estimate in bit/s. `None`: the client reports neither arrival times nor its own estimate.
    pub fn bits_per_s(&self) -> Option<u64> {
        let is_measured = self.has_arrivals() || self.remb_bits_per_s.is_some();
        is_measured.then(|| self.controller.bits_per_s())
    }

    /// Returns the name of the congestion control algorithm.
    pub fn congestion_control(&self) -> &'static str {
        self.controller.name()
    }

    /// Returns whether the client reports the arrival times of packets.
    fn has_arrivals(&self) -> bool {
        self.newest_reported.is_some() || self.streams.iter().any(OutgoingStream::is_numbered)
    }

    /// Number of packets sent, which wraps.
    fn packets(&self) -> u32 {
        self.streams.iter().fold(0, |sum, stream| sum.wrapping_add(stream.packets()))
    }

    /// Sets the desired bit rate. Probing begins if it exceeds the estimate. Callers call it once per second.
    pub fn set_desired(&mut self, bits_per_s: u64, now: Instant) {
        self.desired_bits_per_s = bits_per_s as f64;
        self.controller.set_max(self.desired_bits_per_s);
        self.check_reports(now);
        self.begin_probe(now);
    }

    pub fn to(&self) -> SocketAddr {
        self.to
    }

    /// Changes the destination after the client has moved.
    pub fn set_to(&mut self, to: SocketAddr) {
        self.to = to;
    }

    /// Returns the datagram of a packet. `None`: the stream does not exist, or a packet with this sequence number was
    /// sent already.
    pub fn write(&mut self, stream: usize, packet: &Packet, now: Instant) -> Option<Vec<u8>> {
        let stream = self.streams.get_mut(stream)?;
        let written = stream.write(packet, self.next, now)?;
        let is_numbered = stream.is_numbered();
        let retransmit_budget = self.retransmit_budget + RETRANSMIT_SHARE * written.bytes.len() as f64;
        self.retransmit_budget = retransmit_budget.min(RETRANSMIT_BURST_BYTES_MAX);
        self.seal(written, is_numbered, now)
    }

    fn seal(
        &mut self,
        UnsealedPacket { mut bytes, head, index }: UnsealedPacket,
        is_numbered: bool,
        now: Instant,
    ) -> Option<Vec<u8>> {
        self.sends.seal_packet(&mut bytes, head, index)?;
        if is_numbered {
            let at_us = self.micros(now);
            if self.next.is_multiple_of(SWEEP_EVERY) || self.sent.len() >= HISTORY_MAX {
                let is_old = |sent: &Sent| at_us.wrapping_sub(sent.at_us) > HISTORY_TIME.as_micros() as u32;
                while self.sent.len() >= HISTORY_MAX || self.sent.front().is_some_and(is_old) {
                    self.sent.pop_front();
                }
            }
            self.sent.push_back(Sent { at_us, bytes: bytes.len() as u16, is_settled: false });
            if let Some((probe, _)) = &mut self.probe {
                probe.count(bytes.len(), self.next);
            }
            self.next += 1;
        } else if let Some(padding) = &mut self.padding {
            padding.count(bytes.len());
        }
        Some(bytes)
    }

    fn micros(&self, now: Instant) -> u32 {
        now.saturating_duration_since(self.born).as_micros() as u32
    }

    /// Reads a report of the client. `emit` receives the datagrams to send in response: retransmissions.
    pub fn handle_report(&mut self, report: &[u8], now: Instant, mut emit: impl FnMut(Vec<u8>)) -> ReportOutcome {
        let mut opened = report.to_vec();
        if self.receives.open_report(&mut opened).is_none() {
            return ReportOutcome::Spurious;
        }
        let mut outcome = ReportOutcome::All;
        // Packets that the reception reports cover, and those that were lost; and the client's own estimate.
        let (mut counts, mut remb_bits_per_s) = (None, None);
        rtcp::read(&opened, |feedback| match feedback {
            Feedback::ReceiverReport(report) => {
                let (covered, lost) = self.handle_receiver_report(&report, now);
                let sums = counts.get_or_insert((0, 0));
                *sums = (sums.0 + covered, sums.1 + lost);
            }
            Feedback::Nack { ssrc, first, others } => {
                self.retransmit(ssrc, first, now, &mut emit);
                let others = (0..16).filter(|bit| others >> bit & 1 == 1);
                others.for_each(|bit| self.retransmit(ssrc, first.wrapping_add(bit + 1), now, &mut emit));
            }
            Feedback::Arrivals(arrivals) => self.handle_arrivals(&arrivals, now),
            Feedback::Remb { bits_per_s, ssrcs } => {
                let sum = self.update_client_estimate(bits_per_s, ssrcs, now);
                remb_bits_per_s = sum.or(remb_bits_per_s);
            }
            Feedback::SenderReport(_) | Feedback::KeyframeRequest { .. } | Feedback::Other => {
                outcome = ReportOutcome::More;
            }
        });
        self.remb_bits_per_s = remb_bits_per_s.or(self.remb_bits_per_s);
        if !self.has_arrivals() && (counts.is_some() || remb_bits_per_s.is_some()) {
            let (covered, lost) = counts.unwrap_or_default();
            self.learn(&Report { now, arrivals: &[], lost, covered, rtt: self.rtt, remb_bits_per_s });
        }
        self.begin_probe(now);
        outcome
    }

    /// Returns the round-trip time to the client; `None` before its first report.
    pub fn round_trip_time(&self) -> Option<Duration> {
        (self.rtt != FIRST_RTT).then_some(self.rtt)
    }

    /// Returns the ratio of packets that the client has lost, from 0 to 1; `None` before the first measurement.
    pub fn loss(&self) -> Option<f64> {
        self.controller.loss()
    }

    /// Returns the packets that the report covers, and those that were lost. A report on an unknown stream covers none.
    fn handle_receiver_report(&mut self, report: &ReportBlock, now: Instant) -> (usize, usize) {
        let Some(stream) = self.streams.iter_mut().find(|stream| stream.ssrc == report.ssrc) else { return (0, 0) };
        let counts = stream.handle_report(report);
        if let Some((_, at)) = stream.last_report.filter(|(middle, _)| *middle == report.last_report) {
            let since = now.saturating_duration_since(at);
            let delay = Duration::from_secs_f64(f64::from(report.delay) / 65536.0);
            self.rtt = since.saturating_sub(delay).min(RTT_MAX);
        }
        counts
    }

    /// Records an estimate of the client. Returns the sum of its estimates in bit/s. `None`: the estimate covers only
    /// streams that are not of this client. One that names no streams covers all.
    fn update_client_estimate(&mut self, bits_per_s: u64, ssrcs: Ssrcs<'_>, now: Instant) -> Option<u64> {
        let bit = |ssrc| {
            let at = self.streams.iter().position(|stream| stream.ssrc == ssrc || stream.rtx_ssrc() == Some(ssrc));
            at.map_or(0, |at| 1_u64.checked_shl(at as u32).unwrap_or(0))
        };
        let covered = if ssrcs.is_empty() { u64::MAX } else { ssrcs.iter().map(bit).fold(0, |all, one| all | one) };
        (covered != 0).then(|| self.client_estimates.update(covered, bits_per_s, now))
    }

    fn learn(&mut self, report: &Report<'_>) {
        (self.packets_reported, self.unreported_since) = (self.packets(), None);
        self.controller.handle_report(report);
    }

    /// Notifies the controller if packets were sent and the client has not reported for some time.
    fn check_reports(&mut self, now: Instant) {
        if self.packets() == self.packets_reported {
            self.unreported_since = None;
        } else if now.saturating_duration_since(*self.unreported_since.get_or_insert(now)) >= REPORT_TIMEOUT {
            self.controller.handle_timeout(now);
        }
    }

    fn retransmit(&mut self, ssrc: u32, sequence: u16, now: Instant, emit: &mut impl FnMut(Vec<u8>)) {
        if self.retransmit_budget < 0.0 {
            return;
        }
        let (next, pause) = (self.next, self.rtt.max(RETRANSMIT_INTERVAL_MIN));
        let Some(stream) = self.streams.iter_mut().find(|stream| stream.ssrc == ssrc) else { return };
        let is_numbered = stream.is_numbered();
        let written = stream.write_retransmission(sequence, next, pause, now);
        if let Some(datagram) = written.and_then(|written| self.seal(written, is_numbered, now)) {
            self.retransmit_budget -= datagram.len() as f64;
            emit(datagram);
        }
    }

    fn handle_arrivals(&mut self, report: &Arrivals<'_>, now: Instant) {
        let now_us = self.micros(now);
        let Self { sent, next, newest_reported, arrivals, probe, .. } = self;
        arrivals.clear();
        let (first, mut lost) = (*next - sent.len() as u64, 0);
        report.for_each(|number, arrived_us| {
            // A reported number has 16 bits: take the newest number used that ends with them.
            let number = (*next - 1).checked_sub(u64::from((*next as u16).wrapping_sub(1).wrapping_sub(number)));
            let Some(number) = number.filter(|number| *number >= first) else { return };
            let Some(sent) = sent.get_mut((number - first) as usize).filter(|sent| !sent.is_settled) else { return };
            sent.is_settled = true;
            *newest_reported = (*newest_reported).max(Some(number));
            match arrived_us {
                Some(arrived_us) => {
                    let since = Duration::from_micros(now_us.wrapping_sub(sent.at_us).into());
                    let arrival = Arrival { sent: now - since, arrived_us, bytes: sent.bytes.into() };
                    arrivals.push(arrival);
                    if let Some((probe, _)) = probe {
                        probe.update(number, arrival);
                    }
                }
                None => lost += 1,
            }
        });
        let arrivals = std::mem::take(&mut self.arrivals);
        let covered = arrivals.len() + lost;
        self.learn(&Report { now, arrivals: &arrivals, lost, covered, rtt: self.rtt, remb_bits_per_s: None });
        self.arrivals = arrivals;
        self.finish_probe(now);
    }

    fn finish_probe(&mut self, now: Instant) {
        let Some((probe, before)) = &self.probe else { return };
        let Some(result) = probe.result(self.newest_reported, now) else { return };
        let found_more = result.is_ok_and(|rate| rate > PROBE_GAIN_MIN * before);
        if let Ok(rate) = result {
            self.controller.raise_to(rate);
        }
        self.probe_pause = if found_more { PROBE_PAUSE } else { (2 * self.probe_pause).min(PROBE_PAUSE_MAX) };
        self.probe_at = now + if found_more { Duration::ZERO } else { self.probe_pause };
        self.probe = None;
    }

    /// Begins a probe if the desired rate exceeds the estimate.
    fn begin_probe(&mut self, now: Instant) {
        let estimate = self.controller.bits_per_s() as f64;
        let is_wanted = self.desired_bits_per_s > estimate && self.controller.allows_probing() && now >= self.probe_at;
        // A probe needs a client that reports arrival times, padding one that reports its estimate.
        let can_probe = self.newest_reported.is_some();
        let can_pad = !self.has_arrivals() && self.remb_bits_per_s.is_some();
        if !is_wanted || self.probe.is_some() || self.padding.is_some() || !(can_probe || can_pad) {
            return;
        }
        if self.streams.iter().any(OutgoingStream::has_padding) {
            if can_pad {
                self.padding = Some(Padding::new(estimate, now));
                return;
            }
            let rate = (PROBE_RATE_STEP * estimate).min(PROBE_RATE_OVERSHOOT * self.desired_bits_per_s);
            self.probe = Some((Probe::new(rate, self.next, now), estimate));
        }
    }

    /// Returns when [`Egress::handle_timeout`] must be called.
    pub fn timeout(&self) -> Option<Instant> {
        let probe = self.probe.as_ref().map(|(probe, _)| probe.timeout());
        probe.or_else(|| self.padding.as_ref().map(Padding::timeout))
    }

    pub fn handle_timeout(&mut self, now: Instant, mut emit: impl FnMut(Vec<u8>)) {
        self.finish_probe(now);
        self.advance_padding(now, &mut emit);
        for turn in 0..PROBE_BURST_MAX {
            let is_due = |(probe, _): &(Probe, f64)| !probe.is_sent() && probe.timeout() <= now;
            if !self.probe.as_ref().is_some_and(is_due) {
                return;
            }
            match self.write_padding(turn, now) {
                Some(datagram) => emit(datagram),
                None => {
                    (self.probe, self.probe_at) = (None, now + self.probe_pause);
                    return;
                }
            }
        }
    }

    fn write_padding(&mut self, turn: usize, now: Instant) -> Option<Vec<u8>> {
        let next = self.next;
        let stream = self.streams.iter_mut().find(|stream| stream.has_padding())?;
        let is_numbered = stream.is_numbered();
        let written = stream.write_probe_padding(turn, next, now)?;
        self.seal(written, is_numbered, now)
    }

    /// Sends padding if it is due, and ends it when the client's estimate is high enough, falls or stays.
    fn advance_padding(&mut self, now: Instant, emit: &mut impl FnMut(Vec<u8>)) {
        let estimate = self.controller.bits_per_s() as f64;
        let is_enough = estimate >= self.desired_bits_per_s;
        let is_allowed = self.controller.allows_probing() && !self.has_arrivals();
        let Some(padding) = self.padding.as_mut().filter(|padding| padding.timeout() <= now) else { return };
        let continues = padding.advance(estimate, now);
        if is_enough || !is_allowed || !continues {
            let peak = padding.peak();
            // A path that carries no more ends each padding at about the same estimate.
            let has_gained = is_enough || peak > PROBE_GAIN_MIN * self.padding_peak;
            self.probe_pause = if has_gained { PROBE_PAUSE } else { (2 * self.probe_pause).min(PADDING_PAUSE_MAX) };
            (self.padding, self.padding_peak, self.probe_at) = (None, peak, now + self.probe_pause);
            return;
        }
        for turn in 0..PROBE_BURST_MAX {
            if !self.padding.as_ref().is_some_and(Padding::is_due) {
                return;
            }
            let Some(datagram) = self.write_padding(turn, now) else { return };
            emit(datagram);
        }
    }

    /// Corrects a report that the library has sealed. Returns false if the report is not to be sent, because it is not
    /// valid or because nothing of it remains.
    ///
    /// The report keeps its SRTCP index. This is safe because the library's version of it is never sent.
    pub fn correct(&mut self, report: &mut Vec<u8>, now: Instant) -> bool {
        let Some(index) = self.sends.open_report(report) else { return false };
        let mut corrected = Vec::with_capacity(report.len() + 2 * srtp::OVERHEAD_BYTES);
        for (kind, _, packet) in rtcp::packets(report) {
            let at = corrected.len();
            corrected.extend_from_slice(packet);
            let ssrc = packet.get(4..8).and_then(|ssrc| ssrc.first_chunk()).map(|ssrc| u32::from_be_bytes(*ssrc));
            if kind == rtcp::SENDER_REPORT {
                let stream = self.streams.iter_mut().find(|stream| Some(stream.ssrc) == ssrc);
                if !stream.is_some_and(|stream| stream.correct(&mut corrected[at..], now)) {
                    corrected.truncate(at);
                }
            }
        }
        *report = corrected;
        self.sends.seal_report(report, index).is_some()
    }
}

/// Returns whether a datagram is a report (RTCP). The second byte of an RTP packet never has these values. Source: RFC
/// 5761, section 4; RFC 7983.
pub fn is_report(datagram: &[u8]) -> bool {
    matches!(datagram, [128..=191, 192..=223, ..])
}

/// Returns whether a datagram is a media packet (RTP), and not a report, STUN or DTLS. Source: as for [`is_report`].
pub fn is_media(datagram: &[u8]) -> bool {
    matches!(datagram, [128..=191, _, ..]) && !is_report(datagram)
}
