use std::time::{Duration, Instant};

use millrace_link::Time;
use millrace_sfu::congestion::{Arrival, CongestionController, Report as Learned};

use super::simulation::{Content, Report, Sent};

/// Sender and receiver of one video.
pub struct Media {
    flow: usize,
    born: Instant,
    start: Time,
    /// Time in which the source is silent.
    pause: Option<(Time, Time)>,
    controller: Box<dyn CongestionController>,
    next_send: Time,
    sequence: u64,
    timeout: Time,
    /// Contents of the receiver's next report.
    arrivals: Vec<Arrival>,
    newest: Option<(u64, Time, Time)>,
    lost: usize,
    reported: Time,
}

/// Range of the source's rate in bit/s. Source: RFC 8867, section 4.3.
const RATE_MIN: f64 = 150_000.0;
pub const RATE_MAX: f64 = 1_500_000.0;
const PACKET_BYTES: usize = 1200;
const REPORT_BYTES: usize = 80;
const REPORT_INTERVAL: Duration = Duration::from_millis(50);
/// The receiver's clock differs from the sender's.
const CLOCK_DIFFERENCE_US: i64 = 77_000_000;

impl Media {
    pub fn new(
        flow: usize,
        controller: Box<dyn CongestionController>,
        start_s: u64,
        pause_s: Option<(u64, u64)>,
        born: Instant,
    ) -> Self {
        let at = |s: u64| Time::ZERO + Duration::from_secs(s);
        Self {
            flow,
            born,
            start: at(start_s),
            pause: pause_s.map(|(from, to)| (at(from), at(to))),
            controller,
            next_send: at(start_s),
            sequence: 0,
            timeout: at(start_s),
            arrivals: Vec::new(),
            newest: None,
            lost: 0,
            reported: Time::ZERO,
        }
    }

    fn instant(&self, time: Time) -> Instant {
        self.born + time.since(Time::ZERO)
    }

    /// Sends the packets that are due.
    pub fn send(&mut self, now: Time, mut send: impl FnMut(Sent)) {
        if now < self.start || self.pause.is_some_and(|(from, to)| (from..to).contains(&now)) {
            (self.next_send, self.timeout) = (now, now);
            return;
        }
        if now.since(self.timeout) >= 2 * REPORT_INTERVAL {
            self.timeout = now;
            self.controller.handle_timeout(self.instant(now));
        }
        let rate = (self.controller.bits_per_s() as f64).clamp(RATE_MIN, RATE_MAX);
        while self.next_send <= now {
            let content = Content::Video { sequence: self.sequence };
            send(Sent { flow: self.flow, at: self.next_send, bytes: PACKET_BYTES, content });
            self.sequence += 1;
            self.next_send = self.next_send + Duration::from_secs_f64(8.0 * PACKET_BYTES as f64 / rate);
        }
    }

    /// The receiver handles a packet, and returns a report if one is due.
    pub fn handle_packet(&mut self, packet: &Sent, at: Time) -> Option<Sent> {
        let Content::Video { sequence } = packet.content else { return None };
        let expected = self.newest.map_or(0, |(newest, ..)| newest + 1);
        self.lost += (sequence - expected) as usize;
        self.newest = Some((sequence, packet.at, at));
        let arrived_us = (at.ns() / 1000) as i64 + CLOCK_DIFFERENCE_US;
        self.arrivals.push(Arrival { sent: self.instant(packet.at), arrived_us, bytes: packet.bytes });
        if at.since(self.reported) < REPORT_INTERVAL {
            return None;
        }
        self.reported = at;
        let report = Report {
            arrivals: std::mem::take(&mut self.arrivals),
            lost: std::mem::take(&mut self.lost),
            newest: packet.at,
        };
        Some(Sent { flow: self.flow, at, bytes: REPORT_BYTES, content: Content::Report(report) })
    }

    pub fn handle_report(&mut self, packet: &Sent, now: Time) {
        let Content::Report(report) = &packet.content else { return };
        let rtt = now.since(report.newest);
        self.controller.handle_report(&Learned {
            now: self.instant(now),
            arrivals: &report.arrivals,
            lost: report.lost,
            covered: report.arrivals.len() + report.lost,
            rtt,
            remb_bits_per_s: None,
        });
    }
}
