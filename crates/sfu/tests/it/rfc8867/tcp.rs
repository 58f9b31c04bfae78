use std::{collections::VecDeque, time::Duration};

use millrace_link::Time;
use rand_pcg::{Pcg32, rand_core::Rng};

use super::packet::{Content, Sent};

/// Sender of a TCP connection: Reno with selective acknowledgments. Source: RFC 5681, RFC 6675. The receiver only
/// acknowledges, without delay.
pub struct Tcp {
    flow: usize,
    window: f64,
    threshold: f64,
    next: u64,
    /// Segments in flight: sequence number, send time.
    flight: VecDeque<(u64, Time)>,
    /// Losses of segments before this number belong to a loss event that has already halved the window.
    recovered_from: u64,
    last_progress: Time,
    /// Segments of the file that were not delivered, if the connection transfers files.
    left: Option<u64>,
    /// Time of the next file.
    begins: Time,
    random: Pcg32,
}

const SEGMENT_BYTES: usize = 1500;
const ACKNOWLEDGMENT_BYTES: usize = 40;
const FIRST_WINDOW: f64 = 10.0;
const FIRST_THRESHOLD: f64 = 64.0;
/// Later segments that arrive before a segment counts as lost.
const REORDERING: u64 = 3;
const TIMEOUT: Duration = Duration::from_secs(1);
/// Short connections: sizes of the files in bytes, evenly distributed, and the mean of the exponential pause between
/// them. Source: RFC 8867, section 5.7.
const FILE_BYTES: (u64, u64) = (100_000, 1_000_000);
const PAUSE_S: f64 = 10.0;

impl Tcp {
    pub fn new(flow: usize, start_s: u64, has_files: bool) -> Self {
        let mut tcp = Self {
            flow,
            window: FIRST_WINDOW,
            threshold: FIRST_THRESHOLD,
            next: 0,
            flight: VecDeque::new(),
            recovered_from: 0,
            last_progress: Time::ZERO,
            left: None,
            begins: Time::ZERO + Duration::from_secs(start_s),
            random: Pcg32::new(8867, flow as u64),
        };
        if has_files {
            tcp.next_file(tcp.begins);
        }
        tcp
    }

    fn next_file(&mut self, now: Time) {
        let mut uniform = || f64::from(self.random.next_u32()) / f64::from(u32::MAX);
        let bytes = FILE_BYTES.0 as f64 + uniform() * (FILE_BYTES.1 - FILE_BYTES.0) as f64;
        self.left = Some((bytes / SEGMENT_BYTES as f64).ceil() as u64);
        self.begins = now + Duration::from_secs_f64(-PAUSE_S * uniform().max(1e-6).ln());
        (self.window, self.threshold) = (FIRST_WINDOW, FIRST_THRESHOLD);
    }

    /// Sends what the window allows.
    pub fn send(&mut self, now: Time, mut send: impl FnMut(Sent)) {
        if now < self.begins {
            self.last_progress = now;
            return;
        }
        if !self.flight.is_empty() && now.since(self.last_progress) >= TIMEOUT {
            self.threshold = (self.window / 2.0).max(2.0);
            self.window = 1.0;
            self.flight.clear();
            (self.recovered_from, self.last_progress) = (self.next, now);
        }
        let wanted = |flight: usize, left: Option<u64>| left.is_none_or(|left| (flight as u64) < left);
        while (self.flight.len() as f64) < self.window.floor() && wanted(self.flight.len(), self.left) {
            let content = Content::Segment { sequence: self.next };
            self.flight.push_back((self.next, now));
            self.next += 1;
            send(Sent { flow: self.flow, at: now, bytes: SEGMENT_BYTES, content });
        }
    }

    /// The receiver acknowledges a segment.
    pub fn acknowledge(packet: &Sent, now: Time) -> Option<Sent> {
        let Content::Segment { sequence } = packet.content else { return None };
        let content = Content::Acknowledgment { sequence };
        Some(Sent { flow: packet.flow, at: now, bytes: ACKNOWLEDGMENT_BYTES, content })
    }

    pub fn handle_acknowledgment(&mut self, packet: &Sent, now: Time) {
        let Content::Acknowledgment { sequence } = packet.content else { return };
        let Some(index) = self.flight.iter().position(|(sent, _)| *sent == sequence) else { return };
        self.flight.remove(index);
        self.last_progress = now;
        self.left = self.left.map(|left| left - 1);
        if self.left == Some(0) {
            self.flight.clear();
            return self.next_file(now);
        }
        self.window += if self.window < self.threshold { 1.0 } else { 1.0 / self.window };
        // Lost segments leave the flight, so that new ones replace them.
        while let Some((lost, _)) = self.flight.front().copied().filter(|(sent, _)| *sent + REORDERING <= sequence) {
            self.flight.pop_front();
            if lost >= self.recovered_from {
                self.threshold = (self.window / 2.0).max(2.0);
                self.window = self.threshold;
                self.recovered_from = self.next;
            }
        }
    }
}
