//! How packets of media leave for one member, packet by packet: the library has no part in it, and so costs nothing for each.
//!
//! ```text
//!   packet ─► line: head, number ─► seal ─► datagram
//!               └─► kept for a while ─► asked for again: head, number of its own ─► seal ─► datagram
//!   report ─► opened: what is missing, what has come when ─► estimate of what the way carries
//! ```
//!
//! - [`line`]: one stream: heads, what is kept, what is told of it
//! - [`patch`]: numbers inside a payload
//! - [`seal`]: SRTP and SRTCP
//! - [`feedback`]: reports, read
//! - [`estimate`]: what the way carries
//! - [`probe`]: whether it carries more
//!
//! The handshake, the description, and what a member sends itself stay the library's. It still writes the reports; here they are corrected,
//! because it has seen no packet.

mod estimate;
mod feedback;
mod line;
mod patch;
mod probe;
mod seal;

#[cfg(test)]
mod tests;

use std::{
    collections::VecDeque,
    net::SocketAddr,
    time::{Duration, Instant},
};

use str0m::media::Mid;

use estimate::{Arrival, Estimator};
use feedback::{Arrivals, Feedback};
use line::Written;
use probe::Probe;

pub use feedback::write_arrivals;
pub use line::{Line, Packet};
pub use patch::Patch;
pub use seal::{Exported, Keys, ReportIndex};

/// What a way is thought to carry until it is known.
const FIRST_ESTIMATE: f64 = 1_000_000.0;
/// Until an answer has told.
const FIRST_RTT: Duration = Duration::from_millis(100);
const RTT_MAX: Duration = Duration::from_secs(2);
/// What is asked for again sooner than this was asked for twice.
const AGAIN_MIN: Duration = Duration::from_millis(10);
/// What is sent again is this share of what is sent, and at most so many bytes at once: whoever asks for everything costs no more.
const AGAIN_SHARE: f64 = 0.5;
const AGAIN_BYTES_MAX: f64 = 64_000.0;
/// What has left and is not heard of, at most.
const SENT_MAX: usize = 4096;
const SENT_FOR: Duration = Duration::from_secs(2);
/// What is too old goes so many at a time.
const SWEEP_EVERY: u64 = 16;
/// One try after the other: after one that has shown more, and after one that has not; then twice as long each time.
const TRY_AGAIN: Duration = Duration::from_secs(1);
const TRY_AGAIN_MAX: Duration = Duration::from_secs(16);
const SHOWS_MORE: f64 = 1.05;
/// A try is for so much more than what is estimated or wanted.
const TRY_STEP: f64 = 2.0;
const TRY_BEYOND: f64 = 1.2;
/// Packets of a try that leave at once because a timer was late.
const TRY_BURST: usize = 32;

/// The way to one member.
pub struct Egress {
    sends: Keys,
    receives: Keys,
    lines: Vec<Line>,
    born: Instant,
    /// Where its datagrams go.
    to: SocketAddr,
    /// Number of the next packet, of whatever line.
    next: u64,
    /// Those that have left, up to the last.
    sent: VecDeque<Sent>,
    newest_heard: Option<u64>,
    estimator: Estimator,
    /// What the other end has estimated itself.
    carries: Option<u64>,
    rtt: Duration,
    again_bytes: f64,
    desired: f64,
    probe: Option<(Probe, f64)>,
    probe_at: Instant,
    probe_pause: Duration,
    /// Lent to each report.
    arrivals: Vec<Arrival>,
}

/// Small, as what is kept of a packet.
#[derive(Clone, Copy)]
struct Sent {
    /// Microseconds since the way began; wraps.
    at_us: u32,
    bytes: u16,
    is_settled: bool,
}

/// What became of a report.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Heard {
    /// It is nobody's.
    Spurious,
    /// All of it was for here.
    All,
    /// The library has to hear it, too.
    More,
}

impl Egress {
    /// `None`: for these keys there is no cipher.
    pub fn new(exported: &Exported, to: SocketAddr, now: Instant) -> Option<Self> {
        let (sends, receives) = exported.keys()?;
        Some(Self {
            sends,
            receives,
            lines: Vec::new(),
            born: now,
            to,
            next: 1,
            sent: VecDeque::new(),
            newest_heard: None,
            estimator: Estimator::new(FIRST_ESTIMATE, now),
            carries: None,
            rtt: FIRST_RTT,
            again_bytes: AGAIN_BYTES_MAX,
            desired: 0.0,
            probe: None,
            probe_at: now,
            probe_pause: TRY_AGAIN,
            arrivals: Vec::new(),
        })
    }

    /// Which of the lines is this one, made if it is not there yet.
    pub fn line(&mut self, mid: Mid, make: impl FnOnce() -> Line) -> usize {
        let known = self.lines.iter().position(|line| line.mid == mid);
        known.unwrap_or_else(|| {
            self.lines.push(make());
            self.lines.len() - 1
        })
    }

    /// Lines that are no more; the others are somewhere else from then on.
    pub fn retain(&mut self, is_there: impl Fn(Mid) -> bool) {
        self.lines.retain(|line| is_there(line.mid));
    }

    /// What the way carries, in bits per second; `None`: nobody tells.
    pub fn bits_per_s(&self) -> Option<u64> {
        if self.newest_heard.is_some() || self.lines.iter().any(Line::is_numbered) {
            return Some(self.estimator.bits_per_s());
        }
        self.carries
    }

    /// What there is to send, in bits per second: whether the way carries it is tried.
    pub fn set_desired(&mut self, bits_per_s: u64, now: Instant) {
        self.desired = bits_per_s as f64;
        self.try_more(now);
    }

    pub fn to(&self) -> SocketAddr {
        self.to
    }

    /// The other end has moved.
    pub fn set_to(&mut self, to: SocketAddr) {
        self.to = to;
    }

    /// The datagram of a packet. `None`: there is no such line, or a packet of this sequence has left already.
    pub fn write(&mut self, line: usize, packet: &Packet, now: Instant) -> Option<Vec<u8>> {
        let line = self.lines.get_mut(line)?;
        let written = line.write(packet, self.next, now)?;
        let is_numbered = line.is_numbered();
        let again_bytes = self.again_bytes + AGAIN_SHARE * written.bytes.len() as f64;
        self.again_bytes = again_bytes.min(AGAIN_BYTES_MAX);
        self.leave(written, is_numbered, now)
    }

    fn leave(
        &mut self,
        Written { mut bytes, head, index }: Written,
        is_numbered: bool,
        now: Instant,
    ) -> Option<Vec<u8>> {
        self.sends.seal_packet(&mut bytes, head, index)?;
        if is_numbered {
            let at_us = self.us(now);
            if self.next.is_multiple_of(SWEEP_EVERY) || self.sent.len() >= SENT_MAX {
                let is_old = |sent: &Sent| at_us.wrapping_sub(sent.at_us) > SENT_FOR.as_micros() as u32;
                while self.sent.len() >= SENT_MAX || self.sent.front().is_some_and(is_old) {
                    self.sent.pop_front();
                }
            }
            self.sent.push_back(Sent { at_us, bytes: bytes.len() as u16, is_settled: false });
            if let Some((probe, _)) = &mut self.probe {
                probe.count(bytes.len(), self.next);
            }
            self.next += 1;
        }
        Some(bytes)
    }

    fn us(&self, now: Instant) -> u32 {
        now.saturating_duration_since(self.born).as_micros() as u32
    }

    /// A report of the other end. `tell`: what leaves because of it.
    pub fn hear(&mut self, report: &[u8], now: Instant, mut tell: impl FnMut(Vec<u8>)) -> Heard {
        let mut opened = report.to_vec();
        if self.receives.open_report(&mut opened).is_none() {
            return Heard::Spurious;
        }
        let mut heard = Heard::All;
        feedback::read(&opened, |feedback| match feedback {
            Feedback::Received { ssrc, last_report, delay } => self.received(ssrc, last_report, delay, now),
            Feedback::Missing { ssrc, first, others } => {
                self.resend(ssrc, first, now, &mut tell);
                let others = (0..16).filter(|bit| others >> bit & 1 == 1);
                others.for_each(|bit| self.resend(ssrc, first.wrapping_add(bit + 1), now, &mut tell));
            }
            Feedback::Arrived(arrivals) => self.arrived(&arrivals, now),
            Feedback::Carries(bits_per_s) => self.carries = Some(bits_per_s),
            Feedback::Other => heard = Heard::More,
        });
        self.try_more(now);
        heard
    }

    fn received(&mut self, ssrc: u32, last_report: u32, delay: u32, now: Instant) {
        let Some(line) = self.lines.iter_mut().find(|line| line.ssrc == ssrc) else { return };
        line.know();
        if let Some((_, at)) = line.reported.filter(|(middle, _)| *middle == last_report) {
            let since = now.saturating_duration_since(at);
            let delay = Duration::from_secs_f64(f64::from(delay) / 65536.0);
            self.rtt = since.saturating_sub(delay).min(RTT_MAX);
        }
    }

    fn resend(&mut self, ssrc: u32, sequence: u16, now: Instant, tell: &mut impl FnMut(Vec<u8>)) {
        if self.again_bytes < 0.0 {
            return;
        }
        let (next, pause) = (self.next, self.rtt.max(AGAIN_MIN));
        let Some(line) = self.lines.iter_mut().find(|line| line.ssrc == ssrc) else { return };
        let is_numbered = line.is_numbered();
        let written = line.write_again(sequence, next, pause, now);
        if let Some(datagram) = written.and_then(|written| self.leave(written, is_numbered, now)) {
            self.again_bytes -= datagram.len() as f64;
            tell(datagram);
        }
    }

    fn arrived(&mut self, reported: &Arrivals<'_>, now: Instant) {
        let now_us = self.us(now);
        let Self { sent, next, newest_heard, arrivals, probe, .. } = self;
        arrivals.clear();
        let (first, mut lost) = (*next - sent.len() as u64, 0);
        reported.for_each(|number, came_us| {
            // Of all numbers that end like this, the newest that has been used.
            let number = (*next - 1).checked_sub(u64::from((*next as u16).wrapping_sub(1).wrapping_sub(number)));
            let Some(number) = number.filter(|number| *number >= first) else { return };
            let Some(sent) = sent.get_mut((number - first) as usize).filter(|sent| !sent.is_settled) else { return };
            sent.is_settled = true;
            *newest_heard = (*newest_heard).max(Some(number));
            match came_us {
                Some(came_us) => {
                    let since = Duration::from_micros(now_us.wrapping_sub(sent.at_us).into());
                    let arrival = Arrival { sent: now - since, came_us, bytes: sent.bytes.into() };
                    arrivals.push(arrival);
                    if let Some((probe, _)) = probe {
                        probe.hear(number, arrival);
                    }
                }
                None => lost += 1,
            }
        });
        self.estimator.hear(&self.arrivals, lost, self.rtt, now);
        self.judge_probe(now);
    }

    fn judge_probe(&mut self, now: Instant) {
        let Some((probe, before)) = &self.probe else { return };
        let Some(result) = probe.result(self.newest_heard, now) else { return };
        let shows_more = result.is_ok_and(|rate| rate > SHOWS_MORE * before);
        if let Ok(rate) = result {
            self.estimator.is_shown(rate);
        }
        self.probe_pause = if shows_more { TRY_AGAIN } else { (2 * self.probe_pause).min(TRY_AGAIN_MAX) };
        self.probe_at = now + if shows_more { Duration::ZERO } else { self.probe_pause };
        self.probe = None;
    }

    /// Begins a try, if there is more to send than the way is known to carry.
    fn try_more(&mut self, now: Instant) {
        let estimate = self.estimator.bits_per_s() as f64;
        let is_wanted = self.desired > estimate && self.estimator.is_calm() && now >= self.probe_at;
        // There is nobody to tell before something has been heard.
        if !is_wanted || self.probe.is_some() || self.newest_heard.is_none() {
            return;
        }
        if self.lines.iter().any(Line::has_fillers) {
            let rate = (TRY_STEP * estimate).min(TRY_BEYOND * self.desired);
            self.probe = Some((Probe::new(rate, self.next, now), estimate));
        }
    }

    /// When [`Egress::handle_timeout`] wants to be called.
    pub fn timeout(&self) -> Option<Instant> {
        self.probe.as_ref().map(|(probe, _)| probe.timeout())
    }

    pub fn handle_timeout(&mut self, now: Instant, mut tell: impl FnMut(Vec<u8>)) {
        self.judge_probe(now);
        for turn in 0..TRY_BURST {
            let is_due = |(probe, _): &(Probe, f64)| !probe.is_sent() && probe.timeout() <= now;
            if !self.probe.as_ref().is_some_and(is_due) {
                return;
            }
            let next = self.next;
            let line = self.lines.iter_mut().find(|line| line.has_fillers());
            let written = line.and_then(|line| line.write_filler(turn, next));
            match written.and_then(|written| self.leave(written, true, now)) {
                Some(datagram) => tell(datagram),
                None => {
                    (self.probe, self.probe_at) = (None, now + self.probe_pause);
                    return;
                }
            }
        }
    }

    /// A report that the library has sealed, with what it cannot know. False: it says nothing, and need not leave.
    ///
    /// It is sealed with the number that it had: the library's own never leaves.
    pub fn correct(&mut self, report: &mut Vec<u8>, now: Instant) -> bool {
        let Some(index) = self.sends.open_report(report) else { return false };
        let mut corrected = Vec::with_capacity(report.len() + 2 * seal::OVERHEAD_BYTES);
        for (kind, _, packet) in feedback::packets(report) {
            let at = corrected.len();
            corrected.extend_from_slice(packet);
            let ssrc = packet.get(4..8).and_then(|ssrc| ssrc.first_chunk()).map(|ssrc| u32::from_be_bytes(*ssrc));
            if kind == feedback::SENDER_REPORT {
                let line = self.lines.iter_mut().find(|line| Some(line.ssrc) == ssrc);
                if !line.is_some_and(|line| line.correct(&mut corrected[at..], now)) {
                    corrected.truncate(at);
                }
            }
        }
        *report = corrected;
        self.sends.seal_report(report, index).is_some()
    }
}

/// Whether a datagram is a report: its second byte has no such values where it is a packet. Source: RFC 5761, section 4; RFC 7983.
pub fn is_report(datagram: &[u8]) -> bool {
    matches!(datagram, [128..=191, 192..=223, ..])
}

/// Whether it is a packet of sound or pictures, and nothing of what is said about them, of STUN or of DTLS. Source: as above.
pub fn is_media(datagram: &[u8]) -> bool {
    matches!(datagram, [128..=191, _, ..]) && !is_report(datagram)
}
