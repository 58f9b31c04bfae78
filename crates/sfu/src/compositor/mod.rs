//! Compositor of a room: decodes the videos of all participants, draws them into one frame, and encodes one stream for
//! all viewers.
//!
//! - this file: participants, viewers, and the composite stream
//! - [`participant`]: the video of one participant, from packets to its newest frame
//! - [`depacketizer`]: RTP packets to access units
//! - [`nal`]: NAL units, and their bits
//! - [`sps`]: sequence parameter sets, and the color description in them
//! - [`check`], [`error`]: which streams may reach the decoder
//! - [`codec`]: decoder and encoder
//! - [`grid`]: the cells of the frame
//! - [`color`]: conversion of colors
//! - [`canvas`]: scaled copies of the videos in their cells
//! - [`packetizer`]: encoded frames to RTP payloads
//! - [`format`]: the format of video in SDP
//!
//! H.264 is the only codec. Source of the choice: docs/adr/0033-one-video-of-all-participants.md.
//!
//! No connections and no clock: packets and the time are inputs. A frame takes milliseconds, so the compositor runs on
//! its own thread, apart from the audio mixer.
//!
//! ```text
//!   packets of a track ──► Depacketizer ──► check ──► decoder ──► scaled into a cell ──┬─► encoder ──► packets for all
//!                                                             └─► .. ──────────────────┘
//! ```

mod canvas;
mod check;
mod codec;
mod color;
mod depacketizer;
mod error;
mod format;
mod grid;
mod nal;
mod packetizer;
mod participant;
mod sps;

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeSet, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};

use canvas::Canvas;
use participant::Participant;

use crate::member_id::MemberId;
pub use check::check;
pub use codec::{BITS_PER_S, Encoded, VideoDecoder, VideoEncoder};
pub use color::{Color, Matrix};
pub use depacketizer::{AccessUnit, Depacketizer, UNIT_BYTES_MAX, VideoPacket};
pub use error::Unsupported;
pub use format::enable_format;
pub use grid::Cell;
pub use packetizer::packetize;

/// Size of the composite frame.
pub const SIZE: (usize, usize) = (640, 480);
/// Maximum number of participants with a cell. Later ones are mixed, but not shown.
pub const CELLS_MAX: usize = 16;
/// Source: RFC 6184, section 8.2.1.
pub const CLOCK_HZ: u32 = 90_000;
const FRAMES_PER_S: u32 = 30;
pub const FRAME_TIME: Duration = Duration::from_nanos(1_000_000_000 / FRAMES_PER_S as u64);
/// Minimum interval between two keyframes of the composite stream. It serves all viewers that request one meanwhile.
const KEYFRAME_INTERVAL_MIN: Duration = Duration::from_millis(500);

/// Event in the room.
#[derive(Clone, Debug)]
pub enum Input {
    /// A participant has joined, and gets a cell.
    Joined(MemberId),
    /// A member starts to receive the composite stream.
    ViewerAdded(MemberId),
    /// A packet of a member's video has arrived.
    Video {
        from: MemberId,
        track: usize,
        layer: usize,
        packet: VideoPacket,
    },
    /// The video of a member is muted. Its cell is empty until its next frame.
    Muted(MemberId),
    /// A viewer cannot continue without a keyframe.
    KeyframeWanted,
    /// Time by which the audio mixer delays audio. Video is delayed as long, so that both stay in step.
    AudioDelay(Duration),
    Left(MemberId),
}

#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    Frame(Composite),
    /// The sender of this track must send a keyframe.
    KeyframeWanted {
        from: MemberId,
        track: usize,
    },
}

/// One frame of the composite stream, the same for all viewers.
#[derive(Clone, Debug, PartialEq)]
pub struct Composite {
    /// Sequence number of the first packet.
    pub sequence: u64,
    /// Media time in units of [`CLOCK_HZ`].
    pub time: u64,
    pub is_key: bool,
    /// Payloads of the packets.
    pub packets: Vec<Arc<[u8]>>,
    /// Participants of the frame, and their cells.
    pub cells: Arc<[(MemberId, Cell)]>,
}

/// Counters since they were last taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    pub frames: u64,
    /// Frames that were not composed because the compositor was late.
    pub frames_skipped: u64,
    /// Access units of participants that were not decoded: invalid, unsupported, or too many.
    pub units_dropped: u64,
}

/// Compositor of one room.
pub struct Compositor {
    start: Instant,
    next: Instant,
    /// Participants in the order of joining.
    participants: Vec<Participant>,
    viewers: BTreeSet<MemberId>,
    audio_delay: Duration,
    canvas: Canvas,
    cells: Arc<[(MemberId, Cell)]>,
    encoder: VideoEncoder,
    /// The number of participants has changed since the last frame.
    is_grid_stale: bool,
    wants_key: bool,
    last_key: Option<Instant>,
    sequence: u64,
    statistics: Statistics,
    outputs: VecDeque<Output>,
}

impl Compositor {
    pub fn new(now: Instant) -> Self {
        Self {
            start: now,
            next: now + FRAME_TIME,
            participants: Vec::new(),
            viewers: BTreeSet::new(),
            audio_delay: Duration::ZERO,
            canvas: Canvas::new(SIZE),
            cells: Arc::default(),
            encoder: VideoEncoder::new(SIZE, FRAMES_PER_S),
            is_grid_stale: true,
            wants_key: true,
            last_key: None,
            sequence: 0,
            statistics: Statistics::default(),
            outputs: VecDeque::new(),
        }
    }

    pub fn handle(&mut self, input: Input, now: Instant) {
        let was_active = self.timeout().is_some();
        match input {
            Input::Joined(id) => {
                let is_known = self.participants.iter().any(|participant| participant.id == id);
                if !is_known && self.participants.len() < CELLS_MAX {
                    self.participants.push(Participant::new(id));
                    self.is_grid_stale = true;
                }
            }
            Input::ViewerAdded(id) => {
                self.viewers.insert(id);
                self.wants_key = true;
            }
            Input::Video { from, track, layer, packet } => {
                if let Some(participant) = self.participant(from) {
                    participant.push((track, layer), packet, now);
                }
            }
            Input::Muted(id) => {
                if let Some(participant) = self.participant(id) {
                    participant.end_video();
                }
            }
            Input::KeyframeWanted => self.wants_key = true,
            Input::AudioDelay(delay) => self.audio_delay = delay,
            Input::Left(id) => {
                self.viewers.remove(&id);
                let before = self.participants.len();
                self.participants.retain(|participant| participant.id != id);
                self.is_grid_stale |= self.participants.len() != before;
            }
        }
        if !was_active {
            self.next = self.next.max(now + FRAME_TIME);
        }
    }

    fn participant(&mut self, id: MemberId) -> Option<&mut Participant> {
        self.participants.iter_mut().find(|participant| participant.id == id)
    }

    /// Returns when [`Compositor::handle_timeout`] must be called, or `None` if nothing changes until the next input.
    pub fn timeout(&self) -> Option<Instant> {
        let has_video = self.participants.iter().any(Participant::has_stream);
        let is_stale = self.wants_key || self.is_grid_stale || self.participants.iter().any(|one| !one.is_drawn);
        (has_video || is_stale && !self.viewers.is_empty()).then_some(self.next)
    }

    /// Decodes what is due, and composes a frame if anything has changed. Does nothing before the timeout.
    pub fn handle_timeout(&mut self, now: Instant) {
        let Some(late) = self.timeout().and_then(|due| now.checked_duration_since(due)) else { return };
        let skipped = (late.as_nanos() / FRAME_TIME.as_nanos()) as u32;
        self.next += FRAME_TIME * (1 + skipped);
        if !self.viewers.is_empty() {
            self.statistics.frames_skipped += u64::from(skipped);
        }
        let Self { participants, audio_delay, statistics, outputs, .. } = self;
        for participant in participants {
            if let Some(track) = participant.advance(*audio_delay, now, statistics) {
                outputs.push_back(Output::KeyframeWanted { from: participant.id, track });
            }
        }
        if !self.viewers.is_empty() {
            self.compose(now);
        }
    }

    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// Returns the counters, and begins to count anew.
    pub fn take_statistics(&mut self) -> Statistics {
        std::mem::take(&mut self.statistics)
    }

    fn compose(&mut self, now: Instant) {
        let is_changed = self.draw();
        let is_key_due = self.last_key.is_none_or(|last| now.saturating_duration_since(last) >= KEYFRAME_INTERVAL_MIN);
        let is_key = self.wants_key && is_key_due;
        if !is_changed && !is_key {
            return;
        }
        let Some(Encoded { is_key, bytes }) = self.encoder.encode(self.canvas.frame(), is_key) else { return };
        if is_key {
            self.wants_key = false;
            self.last_key = Some(now);
        }
        let packets = packetize(&bytes);
        let sequence = self.sequence + 1;
        self.sequence += packets.len() as u64;
        let elapsed = now.saturating_duration_since(self.start);
        let time = (elapsed.as_nanos() * u128::from(CLOCK_HZ) / 1_000_000_000) as u64;
        self.statistics.frames += 1;
        let cells = self.cells.clone();
        self.outputs.push_back(Output::Frame(Composite { sequence, time, is_key, packets, cells }));
    }

    /// Draws the videos that have changed. Returns whether any has.
    fn draw(&mut self) -> bool {
        let Self { participants, canvas, cells, is_grid_stale, .. } = self;
        let mut is_changed = std::mem::take(is_grid_stale);
        if is_changed {
            let ids = participants.iter().map(|participant| participant.id);
            *cells = ids.zip(grid::grid(participants.len(), SIZE)).collect();
            canvas.clear(Cell { x: 0, y: 0, width: SIZE.0, height: SIZE.1 });
            for participant in participants.iter_mut() {
                (participant.is_drawn, participant.drawn_size) = (false, None);
            }
        }
        for (participant, (_, cell)) in participants.iter_mut().zip(cells.iter()) {
            if std::mem::replace(&mut participant.is_drawn, true) {
                continue;
            }
            is_changed = true;
            let size = participant.video().map(|(video, _)| (video.width, video.height));
            // A video of another size leaves other bars.
            if std::mem::replace(&mut participant.drawn_size, size) != size {
                canvas.clear(*cell);
            }
            if let Some((video, color)) = participant.video() {
                canvas.draw(*cell, video, color);
            }
        }
        is_changed
    }
}
