use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use rusty_h264::YuvFrame;

use super::{
    Statistics,
    codec::VideoDecoder,
    color::Color,
    depacketizer::{AccessUnit, Depacketizer, VideoPacket},
};
use crate::member_id::MemberId;

/// Maximum number of access units that wait for their time, or for a compositor that is late. If there are more, all
/// are dropped up to the next keyframe.
const UNITS_MAX: usize = 30;
/// Maximum number of access units per second that are decoded, with a burst of one second.
const UNITS_PER_S_MAX: f64 = 60.0;
/// Minimum interval between two keyframe requests.
const REQUEST_INTERVAL_MIN: Duration = Duration::from_secs(1);
/// A video without a new frame for this time is no longer shown.
const STALE_TIME: Duration = Duration::from_secs(5);

/// A participant with a cell of the composite frame.
pub struct Participant {
    pub id: MemberId,
    stream: Option<Stream>,
    /// Access units that may be decoded, and the time of the last refill; `None` before the first one. All streams of a
    /// participant share it, so that a sender that changes the track or layer all the time cannot exceed it.
    budget: Option<(f64, Instant)>,
    video: Option<Video>,
    /// The cell shows the newest frame.
    pub is_drawn: bool,
    /// Size of the frame in the cell.
    pub drawn_size: Option<(usize, usize)>,
}

/// Newest frame of a participant.
struct Video {
    frame: YuvFrame,
    color: Color,
    /// Time since when the frame is shown.
    since: Instant,
}

/// Video of one track in one layer.
struct Stream {
    track: usize,
    layer: usize,
    depacketizer: Depacketizer,
    decoder: VideoDecoder,
    units: VecDeque<AccessUnit>,
    requested: Option<Instant>,
}

impl Participant {
    pub fn new(id: MemberId) -> Self {
        Self { id, stream: None, budget: None, video: None, is_drawn: false, drawn_size: None }
    }

    pub fn has_stream(&self) -> bool {
        self.stream.is_some()
    }

    /// Returns the newest frame, and its colors.
    pub fn video(&self) -> Option<(&YuvFrame, Color)> {
        self.video.as_ref().map(|video| (&video.frame, video.color))
    }

    /// Buffers a packet. Packets of another track or layer begin a new stream.
    pub fn push(&mut self, (track, layer): (usize, usize), packet: VideoPacket, now: Instant) {
        if self.stream.as_ref().is_none_or(|stream| (stream.track, stream.layer) != (track, layer)) {
            self.stream = Some(Stream::new(track, layer));
        }
        if let Some(stream) = &mut self.stream {
            stream.depacketizer.push(packet, now);
        }
    }

    /// Ends the video.
    pub fn end_video(&mut self) {
        self.stream = None;
        self.is_drawn &= self.video.is_none();
        self.video = None;
    }

    /// Decodes the access units that are due: those that arrived `delay` ago. Returns the track whose sender must send
    /// a keyframe.
    pub fn advance(&mut self, delay: Duration, now: Instant, statistics: &mut Statistics) -> Option<usize> {
        let stream = self.stream.as_mut()?;
        let (units, refilled) = self.budget.unwrap_or((UNITS_PER_S_MAX, now));
        let earned = now.saturating_duration_since(refilled).as_secs_f64() * UNITS_PER_S_MAX;
        let (units, _) = self.budget.insert(((units + earned).min(UNITS_PER_S_MAX), now));
        if let Some(frame) = stream.decode(delay, now, units, statistics) {
            self.video = Some(Video { frame, color: stream.decoder.color(), since: now });
            self.is_drawn = false;
        }
        if self.video.as_ref().is_some_and(|video| now.saturating_duration_since(video.since) > STALE_TIME) {
            self.video = None;
            self.is_drawn = false;
        }
        stream.wants_keyframe(now).then_some(stream.track)
    }
}

impl Stream {
    fn new(track: usize, layer: usize) -> Self {
        Self {
            track,
            layer,
            depacketizer: Depacketizer::default(),
            decoder: VideoDecoder::default(),
            units: VecDeque::new(),
            requested: None,
        }
    }

    /// Returns the newest frame that is due. `budget`: number of access units that may be decoded.
    fn decode(
        &mut self,
        delay: Duration,
        now: Instant,
        budget: &mut f64,
        statistics: &mut Statistics,
    ) -> Option<YuvFrame> {
        while let Some(unit) = self.depacketizer.poll(now) {
            self.units.push_back(unit);
        }
        if self.units.len() > UNITS_MAX {
            statistics.units_dropped += self.units.len() as u64;
            self.units.clear();
            self.decoder.skip();
        }
        let mut newest = None;
        while self.units.front().is_some_and(|unit| now.saturating_duration_since(unit.arrived) >= delay) {
            let Some(unit) = self.units.pop_front() else { break };
            if *budget < 1.0 {
                statistics.units_dropped += 1;
                self.decoder.skip();
                continue;
            }
            *budget -= 1.0;
            let frame = self.decoder.decode(&unit);
            statistics.units_dropped += u64::from(frame.is_none());
            newest = frame.or(newest);
        }
        newest
    }

    fn wants_keyframe(&mut self, now: Instant) -> bool {
        let is_coming = self.units.iter().any(|unit| unit.is_key);
        let is_needed = self.depacketizer.is_waiting() || self.decoder.needs_key() && !is_coming;
        let is_due =
            self.requested.is_none_or(|requested| now.saturating_duration_since(requested) >= REQUEST_INTERVAL_MIN);
        if is_needed && is_due {
            self.requested = Some(now);
        }
        is_needed && is_due
    }
}
