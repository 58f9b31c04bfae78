use std::{
    cell::RefCell,
    rc::Rc,
    time::{Duration, Instant},
};

use millrace_link::Time;
use millrace_sfu::congestion::{
    Arrival, CongestionController, Report as Learned,
    coupled::{Coupled, FlowId},
};

use super::packet::{Content, Report, Sent};

/// Congestion control of one video: its own, or shared with the other videos of the sender.
pub enum Control {
    Own(Box<dyn CongestionController>),
    Coupled(Rc<RefCell<Coupled>>, FlowId),
}

impl Control {
    fn bits_per_s(&self) -> f64 {
        match self {
            Self::Own(controller) => controller.bits_per_s() as f64,
            Self::Coupled(coupled, flow) => coupled.borrow().bits_per_s(*flow).map_or(0.0, |rate| rate as f64),
        }
    }

    fn handle_report(&mut self, report: &Learned<'_>) {
        match self {
            Self::Own(controller) => controller.handle_report(report),
            Self::Coupled(coupled, flow) => coupled.borrow_mut().handle_report(*flow, report),
        }
    }

    fn handle_timeout(&mut self, now: Instant) {
        match self {
            Self::Own(controller) => controller.handle_timeout(now),
            Self::Coupled(coupled, _) => coupled.borrow_mut().handle_timeout(now),
        }
    }
}

/// Sender and receiver of one video.
pub struct Media {
    flow: usize,
    born: Instant,
    start: Time,
    /// Time in which the source is silent.
    pause: Option<(Time, Time)>,
    /// Created when the video begins.
    control: Option<Control>,
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
    pub fn new(flow: usize, start_s: u64, pause_s: Option<(u64, u64)>, born: Instant) -> Self {
        let at = |s: u64| Time::ZERO + Duration::from_secs(s);
        Self {
            flow,
            born,
            start: at(start_s),
            pause: pause_s.map(|(from, to)| (at(from), at(to))),
            control: None,
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

    /// Sends the packets that are due. `begin` creates the congestion control.
    pub fn send(&mut self, now: Time, begin: impl FnOnce(Instant) -> Control, mut send: impl FnMut(Sent)) {
        if now < self.start || self.pause.is_some_and(|(from, to)| (from..to).contains(&now)) {
            (self.next_send, self.timeout) = (now, now);
            return;
        }
        let instant = self.instant(now);
        let control = self.control.get_or_insert_with(|| begin(instant));
        if now.since(self.timeout) >= 2 * REPORT_INTERVAL {
            self.timeout = now;
            control.handle_timeout(instant);
        }
        let rate = control.bits_per_s().clamp(RATE_MIN, RATE_MAX);
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
        let (rtt, now) = (now.since(report.newest), self.instant(now));
        let Some(control) = &mut self.control else { return };
        control.handle_report(&Learned {
            now,
            arrivals: &report.arrivals,
            lost: report.lost,
            covered: report.arrivals.len() + report.lost,
            rtt,
            remb_bits_per_s: None,
        });
    }
}
