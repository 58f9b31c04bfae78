use std::time::{Duration, Instant};

use millrace_sfu::egress::{is_media, is_report};

use crate::{Receiver, Recorder, Sender, Source};

/// One participant of a call of two: source, sender, receiver, and a recorder of what left and what arrived.
#[derive(Debug)]
pub struct Endpoint {
    /// `None`: this end only receives.
    pub source: Option<Source>,
    pub sender: Sender,
    pub receiver: Receiver,
    pub sent: Recorder,
    pub received: Recorder,
    born: Instant,
    /// Target rate in bit/s and round-trip time of each whole second.
    pub seconds: Vec<Second>,
}

/// State of a sender at the end of a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Second {
    pub target_bits_per_s: u64,
    pub rtt: Option<Duration>,
}

impl Endpoint {
    pub fn new(source: Option<Source>, sender: Sender, receiver: Receiver, now: Instant) -> Self {
        Self {
            source,
            sender,
            receiver,
            sent: Recorder::default(),
            received: Recorder::default(),
            born: now,
            seconds: Vec::new(),
        }
    }

    /// Handles a datagram of the other end: a media packet or a report. Others are ignored.
    pub fn handle_datagram(&mut self, datagram: &[u8], now: Instant) {
        if is_report(datagram) {
            self.receiver.handle_report(datagram, now);
            self.sender.handle_report(datagram, now);
            self.steer();
        } else if is_media(datagram) {
            self.received.record(datagram, now.saturating_duration_since(self.born));
            self.receiver.handle_packet(datagram, now);
        }
    }

    /// Returns when [`Endpoint::handle_timeout`] must be called.
    pub fn timeout(&self) -> Instant {
        let second = self.born + Duration::from_secs(self.seconds.len() as u64 + 1);
        let timers = [Some(self.sender.timeout()), Some(self.receiver.timeout()), Some(second)];
        timers.into_iter().chain([self.source.as_ref().map(Source::timeout)]).flatten().min().unwrap_or(second)
    }

    pub fn handle_timeout(&mut self, now: Instant) {
        self.receiver.handle_timeout(now);
        self.sender.handle_timeout(now);
        self.steer();
        if let Some(source) = &mut self.source {
            while source.timeout() <= now {
                let is_skipped = self.sender.has_backlog();
                match source.poll_frame(now, is_skipped) {
                    Some(frame) => self.sender.push_frame(&frame, now),
                    None => self.sender.skip_frame(),
                }
            }
        }
        if now.saturating_duration_since(self.born) >= Duration::from_secs(self.seconds.len() as u64 + 1) {
            let (target_bits_per_s, rtt) = (self.sender.bits_per_s(), self.sender.round_trip_time());
            self.seconds.push(Second { target_bits_per_s, rtt });
        }
    }

    /// Returns the next datagram to send.
    pub fn poll_output(&mut self, now: Instant) -> Option<Vec<u8>> {
        if let Some(report) = self.receiver.poll_output() {
            return Some(report);
        }
        let datagram = self.sender.poll_output()?;
        if is_media(&datagram) {
            self.sent.record(&datagram, now.saturating_duration_since(self.born));
        }
        Some(datagram)
    }

    /// Passes target rate and keyframe requests on to the source.
    fn steer(&mut self) {
        let Some(source) = &mut self.source else { return };
        source.set_target(self.sender.media_bits_per_s());
        if self.sender.take_keyframe_request() {
            source.request_keyframe();
        }
    }
}
