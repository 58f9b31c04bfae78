//! Mixer of a room: decodes the audio of all participants, and sends each participant one stream with the audio
//! of all others.
//!
//! - this file: mixes, limits and encodes the audio for each listener
//! - [`frame`]: sample rate and duration of a packet
//! - [`jitter_buffer`]: jitter buffer and decoder of one track, from irregular packets to continuous audio
//!
//! All listeners that are not speaking share one mix, which is encoded once. Each active speaker gets a mix
//! without its own audio, encoded only for that speaker.
//!
//! No connections and no clock: packets and the time are inputs. Encoding takes about 0.1 ms, so the mixer runs
//! on its own thread.
//!
//! ```text
//!   packets of a track ──► JitterBuffer: in order, on time ──► decoded ──┬─► sum ──► limited ──► encoded ──► silent listeners
//!                                                                 └─► sum less own audio ──► .. ────► active speakers
//! ```

mod frame;
mod jitter_buffer;

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::{Duration, Instant},
};

use opus_pure::{Application, OpusEncoder};

use crate::member_id::MemberId;
pub use frame::{CLOCK_HZ, FRAME, FRAME_TIME};
use jitter_buffer::JitterBuffer;

/// Maximum delay of the mixer itself. If the delay is longer, the mixer skips the missed frames.
const BEHIND_MAX: Duration = Duration::from_millis(200);
/// Bit rate for speech on one channel. Source: RFC 7587, section 3.1.1: 28 to 40 kbit/s for fullband speech.
const BITS_PER_S: i32 = 40_000;
/// Encoder complexity from 0 to 10. In a call, values above 5 give no audible improvement.
const COMPLEXITY: i32 = 5;
const PACKET_BYTES_MAX: usize = 1000;
/// Maximum absolute value of a sample after the limiter.
const PEAK_MAX: f32 = 0.98;
/// Gain that the limiter recovers with each packet, until the gain is 1 again.
const RELEASE: f32 = 0.05;

/// Event in the room.
#[derive(Clone, Debug)]
pub enum Input {
    /// An audio packet of a member's track has arrived.
    Audio { from: MemberId, track: usize, sequence: u64, payload: Arc<[u8]> },
    /// A member starts to receive the mix.
    ListenerAdded(MemberId),
    /// A member has left, or no longer receives the mix.
    Left(MemberId),
    /// The tracks of a member send no audio for now.
    Muted(MemberId),
}

/// One packet of the mix for each listener. All listeners receive the same stream numbering, also where a
/// packet is encoded for one listener only.
#[derive(Clone, Debug, PartialEq)]
pub struct Mixed {
    /// Packet number, the same for all listeners at the same time.
    pub sequence: u64,
    /// Media time in samples.
    pub time: u64,
    /// Whether this is the first packet after silence.
    pub begins: bool,
    pub to: Vec<(MemberId, Arc<[u8]>)>,
}

/// Mixer of one room.
pub struct Mixer {
    jitter_buffers: HashMap<(MemberId, usize), JitterBuffer>,
    /// Listeners, and the own encoder of each listener that is an active speaker.
    listeners: BTreeMap<MemberId, Option<Encoder>>,
    /// Encoder for all listeners that are not active speakers.
    shared: Encoder,
    next: Instant,
    sequence: u64,
    time: u64,
    /// Whether any participant is an active speaker. If none is, nothing is sent.
    is_active: bool,
}

struct Encoder {
    opus: Box<OpusEncoder>,
    gain: f32,
}

impl Mixer {
    pub fn new(now: Instant) -> Self {
        Self {
            jitter_buffers: HashMap::new(),
            listeners: BTreeMap::new(),
            shared: Encoder::new(),
            next: now + FRAME_TIME,
            sequence: 0,
            time: 0,
            is_active: false,
        }
    }

    pub fn handle(&mut self, input: Input, now: Instant) {
        match input {
            Input::Audio { from, track, sequence, payload } => {
                self.jitter_buffers.entry((from, track)).or_insert_with(JitterBuffer::new).push(sequence, payload, now);
            }
            Input::ListenerAdded(id) => drop(self.listeners.entry(id).or_default()),
            Input::Muted(id) => self.jitter_buffers.retain(|(from, _), _| *from != id),
            Input::Left(id) => {
                self.listeners.remove(&id);
                self.jitter_buffers.retain(|(from, _), _| *from != id);
            }
        }
    }

    /// Returns when [`Mixer::handle_timeout`] must be called, or `None` if no member sends audio.
    pub fn timeout(&self) -> Option<Instant> {
        (!self.jitter_buffers.is_empty()).then_some(self.next)
    }

    /// Returns the longest time that audio of a member waits in the mixer. Video must be delayed as long.
    pub fn delay(&self) -> Duration {
        self.jitter_buffers.values().map(JitterBuffer::delay).max().unwrap_or(jitter_buffer::DELAY_MIN)
    }

    /// Mixes the next 20 ms. Returns `None` if no member speaks, if no member listens, or if no frame is due.
    pub fn handle_timeout(&mut self, now: Instant) -> Option<Mixed> {
        let late = self.timeout().and_then(|due| now.checked_duration_since(due))?;
        let skipped = if late > BEHIND_MAX { late.as_millis() / FRAME_TIME.as_millis() } else { 0 } as u32;
        self.next += FRAME_TIME * (1 + skipped);
        self.time += FRAME as u64 * u64::from(skipped);
        let mut sum = [0.0; FRAME];
        let mut active: Vec<(MemberId, [f32; FRAME])> = Vec::new();
        for ((from, _), jitter_buffer) in &mut self.jitter_buffers {
            let mut frame = [0.0; FRAME];
            if jitter_buffer.next_frame(&mut frame, now) {
                add(&mut sum, &frame, 1.0);
                active.push((*from, frame));
            }
        }
        self.time += FRAME as u64;
        let begins = !std::mem::replace(&mut self.is_active, !active.is_empty());
        if active.is_empty() || self.listeners.is_empty() {
            return None;
        }
        self.sequence += 1;
        Some(Mixed { sequence: self.sequence, time: self.time, begins, to: self.encode(&sum, &active) })
    }

    fn encode(&mut self, sum: &[f32; FRAME], active: &[(MemberId, [f32; FRAME])]) -> Vec<(MemberId, Arc<[u8]>)> {
        let mut to = Vec::with_capacity(self.listeners.len());
        let mut shared_packet: Option<Arc<[u8]>> = None;
        for (id, own) in &mut self.listeners {
            let mut own_frames = active.iter().filter(|(from, _)| from == id).peekable();
            let packet = if own_frames.peek().is_some() {
                let mut others = *sum;
                own_frames.for_each(|(_, frame)| add(&mut others, frame, -1.0));
                own.get_or_insert_with(Encoder::new).encode(&mut others)
            } else {
                *own = None;
                if shared_packet.is_none() {
                    shared_packet = self.shared.encode(&mut sum.clone());
                }
                shared_packet.clone()
            };
            to.extend(packet.map(|packet| (*id, packet)));
        }
        to
    }
}

impl Encoder {
    fn new() -> Self {
        let mut opus = OpusEncoder::new(CLOCK_HZ as i32, 1, Application::Voip).expect("a rate and channels of Opus");
        opus.bitrate_bps = BITS_PER_S;
        opus.complexity = COMPLEXITY;
        Self { opus: Box::new(opus), gain: 1.0 }
    }

    fn encode(&mut self, sound: &mut [f32; FRAME]) -> Option<Arc<[u8]>> {
        self.limit(sound);
        let mut packet = [0; PACKET_BYTES_MAX];
        let length = self.opus.encode(sound, FRAME, &mut packet).ok()?;
        Some(packet[..length].into())
    }

    /// Limits the sum of several speakers to the loudness of one. The gain falls at once when the sum is too loud,
    /// and rises slowly.
    fn limit(&mut self, sound: &mut [f32; FRAME]) {
        let peak = sound.iter().fold(0.0_f32, |peak, sample| peak.max(sample.abs()));
        let fits = if peak > PEAK_MAX { PEAK_MAX / peak } else { 1.0 };
        let end = fits.min(self.gain + RELEASE);
        let start = self.gain.min(fits);
        for (at, sample) in sound.iter_mut().enumerate() {
            *sample *= start + (end - start) * at as f32 / FRAME as f32;
        }
        self.gain = end;
    }
}

fn add(sum: &mut [f32; FRAME], frame: &[f32; FRAME], factor: f32) {
    sum.iter_mut().zip(frame).for_each(|(sum, sample)| *sum += factor * sample);
}
