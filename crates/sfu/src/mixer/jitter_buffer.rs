use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use millrace_rtc::contain;
use opus_pure::{MAX_PACKET_SAMPLES, OpusDecoder};

use super::frame::{CLOCK_HZ, FRAME, FRAME_TIME};

/// Time for which a participant stays an active speaker after its last speech, and keeps its own encoder. So a
/// pause between words changes nothing.
const SPEAKER_HOLD_TIME: Duration = Duration::from_secs(2);

/// Initial and minimum delay between the arrival of a packet and its playback. A packet that arrives too late
/// increases the delay.
pub const DELAY_MIN: Duration = Duration::from_millis(40);
const DELAY_MAX: Duration = Duration::from_millis(200);
/// Time without late packets after which the delay is reduced.
const DELAY_DECREASE_INTERVAL: Duration = Duration::from_secs(10);
/// If the backlog exceeds the delay by more than this many samples for [`SURPLUS_FRAMES`] frames in a row, one
/// packet is dropped. The cause is a sender whose clock runs faster than ours.
const BACKLOG_EXCESS_MAX: usize = 3 * FRAME;
const SURPLUS_FRAMES: u32 = 50;
/// Maximum number of packets in the buffer. If there are more, the oldest ones are dropped.
const PACKETS_MAX: usize = 50;
/// Maximum absolute value of a decoded sample. Codecs exceed 1 slightly at times; larger values are invalid.
const SAMPLE_MAX: f32 = 1.5;
/// Minimum power of speech: mean square of samples from -1 to 1, -50 dB.
const SPEECH: f32 = 1e-5;
/// A sequence number that differs from the expected one by more than this belongs to a new stream.
const SEQUENCE_JUMP_MAX: u64 = 3000;
/// Maximum number of lost packets in a row that are concealed from earlier audio. After that the output is
/// silent.
const CONCEALED_PACKETS_MAX: u32 = 3;

/// Jitter buffer and decoder of one audio track.
///
/// ```text
///   Filling ── buffered for `delay` ──► Playing ── no packet for 60 ms ──► Filling
/// ```
pub struct JitterBuffer {
    decoder: Box<OpusDecoder>,
    /// Buffered packets by sequence number.
    packets: BTreeMap<u64, Arc<[u8]>>,
    /// Sequence number of the next packet to decode; `None` while filling.
    next: Option<u64>,
    /// Arrival time of the first packet while filling.
    filling_since: Option<Instant>,
    /// Samples that are decoded but not yet played.
    decoded_samples: Vec<f32>,
    delay: Duration,
    /// Time of the last late packet, or of the last change of the delay.
    last_late: Option<Instant>,
    concealed: u32,
    surplus: u32,
    /// Last time at which the audio was loud enough for speech.
    last_speech: Option<Instant>,
}

impl JitterBuffer {
    pub fn new() -> Self {
        let decoder = OpusDecoder::new(CLOCK_HZ as i32, 1).expect("a rate and channels of Opus");
        Self {
            decoder: Box::new(decoder),
            packets: BTreeMap::new(),
            next: None,
            filling_since: None,
            decoded_samples: Vec::new(),
            delay: DELAY_MIN,
            last_late: None,
            concealed: 0,
            surplus: 0,
            last_speech: None,
        }
    }

    /// Returns the time between the arrival of a packet and its playback.
    pub fn delay(&self) -> Duration {
        self.delay
    }

    /// Buffers a packet that has arrived.
    pub fn push(&mut self, sequence: u64, payload: Arc<[u8]>, now: Instant) {
        if self.next.is_some_and(|next| sequence.abs_diff(next) > SEQUENCE_JUMP_MAX) {
            // The sender has started a new stream.
            self.packets.clear();
            self.next = None;
        }
        if self.next.is_some_and(|next| sequence < next) {
            // The packet is too late, because its audio was already concealed. The next packets get more time.
            self.delay = (self.delay + FRAME_TIME).min(DELAY_MAX);
            self.last_late = Some(now);
            return;
        }
        if self.next.is_none() && self.packets.is_empty() {
            self.filling_since = Some(now);
        }
        self.packets.insert(sequence, payload);
        if self.packets.len() > PACKETS_MAX {
            self.packets.pop_first();
            let first = self.packets.keys().next().copied();
            self.next = self.next.and(first);
        }
    }

    /// Writes the next frame of the track. Returns true while the participant is an active speaker. Audio that is
    /// no louder than a quiet room does not count as speech.
    pub fn next_frame(&mut self, frame: &mut [f32; FRAME], now: Instant) -> bool {
        if self.play(frame, now) {
            let power = frame.iter().map(|sample| sample * sample).sum::<f32>() / FRAME as f32;
            if power > SPEECH {
                self.last_speech = Some(now);
            }
        }
        self.last_speech.is_some_and(|last_speech| now.saturating_duration_since(last_speech) <= SPEAKER_HOLD_TIME)
    }

    /// Writes the next frame of the track. Returns false if no audio is available.
    fn play(&mut self, frame: &mut [f32; FRAME], now: Instant) -> bool {
        if self.next.is_none() {
            let is_due = self.filling_since.is_some_and(|since| now.saturating_duration_since(since) >= self.delay);
            self.next = self.packets.keys().next().copied().filter(|_| is_due);
            if self.next.is_none() {
                return false;
            }
            self.last_late.get_or_insert(now);
        }
        self.keep_pace(now);
        while self.decoded_samples.len() < FRAME {
            if !self.decode_next() {
                self.next = None;
                self.filling_since = None;
                break;
            }
        }
        let length = self.decoded_samples.len().min(FRAME);
        for (to, from) in frame.iter_mut().zip(self.decoded_samples.drain(..length)) {
            *to = if from.is_finite() { from.clamp(-SAMPLE_MAX, SAMPLE_MAX) } else { 0.0 };
        }
        length > 0
    }

    /// Decodes the next packet, or conceals its loss. Returns false if no packet has arrived for too long.
    fn decode_next(&mut self) -> bool {
        let Some(next) = self.next else { return false };
        let packet = self.packets.remove(&next);
        match packet {
            Some(packet) => {
                self.concealed = 0;
                self.decode(&packet, MAX_PACKET_SAMPLES, false);
            }
            // Too many packets are lost to conceal them, so the gap is skipped.
            None if self
                .packets
                .keys()
                .next()
                .is_some_and(|first| *first > next + u64::from(CONCEALED_PACKETS_MAX)) =>
            {
                self.next = self.packets.keys().next().copied();
                return true;
            }
            // The packet after the lost one may carry a copy of it (forward error correction).
            None if !self.packets.is_empty() => {
                let after = self.packets.get(&(next + 1)).cloned();
                self.decode(after.as_deref().unwrap_or(&[]), FRAME, after.is_some());
            }
            None if self.concealed < CONCEALED_PACKETS_MAX => {
                self.concealed += 1;
                self.decode(&[], FRAME, false);
                // The packet may only be late, so its place is kept until the loss is certain.
                return true;
            }
            None => return false,
        }
        self.next = Some(next + 1);
        true
    }

    /// Decodes one packet. A packet that cannot be decoded becomes one frame of silence.
    fn decode(&mut self, packet: &[u8], samples: usize, is_copy: bool) {
        let start = self.decoded_samples.len();
        self.decoded_samples.resize(start + samples, 0.0);
        let Self { decoder, decoded_samples, .. } = self;
        let out = &mut decoded_samples[start..];
        let decoded = contain(|| match is_copy {
            true => decoder.decode_fec(packet, samples, out),
            false => decoder.decode(packet, samples, out),
        });
        let decoded = match decoded {
            Some(Ok(decoded)) => decoded.min(samples),
            Some(Err(_)) => FRAME,
            None => {
                *self = Self {
                    packets: std::mem::take(&mut self.packets),
                    next: self.next,
                    decoded_samples: std::mem::take(&mut self.decoded_samples),
                    ..Self::new()
                };
                FRAME
            }
        };
        self.decoded_samples.truncate(start + decoded);
    }

    /// Drops a packet if the backlog was too long for a while, and reduces the delay after a time without late
    /// packets.
    fn keep_pace(&mut self, now: Instant) {
        if self.last_late.is_some_and(|last_late| now.saturating_duration_since(last_late) > DELAY_DECREASE_INTERVAL) {
            self.delay = (self.delay.saturating_sub(FRAME_TIME)).max(DELAY_MIN);
            self.last_late = Some(now);
        }
        let wanted = (self.delay.as_millis() as usize * CLOCK_HZ as usize) / 1000;
        self.surplus = if self.backlog_samples() > wanted + BACKLOG_EXCESS_MAX { self.surplus + 1 } else { 0 };
        if self.surplus > SURPLUS_FRAMES {
            self.surplus = 0;
            let kept = self.decoded_samples.len();
            if self.decode_next() {
                self.decoded_samples.truncate(kept);
            }
        }
    }

    /// Returns the backlog in samples: buffered packets, and samples that are not yet played.
    fn backlog_samples(&self) -> usize {
        let samples = |packet: &Arc<[u8]>| opus_pure::packet::samples_48k(packet).unwrap_or(FRAME);
        self.packets.values().map(samples).sum::<usize>() + self.decoded_samples.len()
    }

    #[cfg(test)]
    pub fn backlog_ms(&self) -> usize {
        self.backlog_samples() * 1000 / CLOCK_HZ as usize
    }
}
