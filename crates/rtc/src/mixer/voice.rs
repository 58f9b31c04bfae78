use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use opus_pure::{MAX_PACKET_SAMPLES, OpusDecoder};

use super::{CLOCK_HZ, FRAME, FRAME_TIME, HANGOVER};
use crate::contain::contain;

/// What comes waits so long before it is heard, at first and at least; whoever comes later than that makes it longer.
const DELAY_MIN: Duration = Duration::from_millis(40);
const DELAY_MAX: Duration = Duration::from_millis(200);
/// After so long without anything late it gets shorter again.
const CALM: Duration = Duration::from_secs(10);
/// More than the delay and this has waited for so many packets in a row: the sender's clock is faster than ours, and one packet is left out.
const SURPLUS: usize = 3 * FRAME;
const SURPLUS_FRAMES: u32 = 50;
/// Packets that wait, at most; beyond, the oldest are left out.
const WAITING_MAX: usize = 50;
/// What a codec gives is a little louder than 1 at times; more is nonsense.
const LOUDEST: f32 = 1.5;
/// Mean square of samples from -1 to 1: -50 dB.
const SPEECH: f32 = 1e-5;
/// So far from the last number it is another stream's.
const RESTART: u64 = 3000;
/// What is lost is made up from what was before, for so long; then it is silence.
const CONCEALED_MAX: u32 = 3;

/// One whose sound comes in.
///
/// ```text
///   Filling ── what waits is long enough ──► Playing ── nothing has come for 60 ms ──► Filling
/// ```
pub struct Voice {
    decoder: Box<OpusDecoder>,
    /// By their numbers.
    waiting: BTreeMap<u64, Arc<[u8]>>,
    /// The number of the next one; `None` while filling.
    next: Option<u64>,
    /// When the first came of those that wait to begin.
    filling_since: Option<Instant>,
    /// Decoded and not played yet.
    sound: Vec<f32>,
    delay: Duration,
    /// When something was late last, or the delay was changed.
    late: Option<Instant>,
    concealed: u32,
    surplus: u32,
    /// When it was loud enough for speech last.
    spoke: Option<Instant>,
}

impl Voice {
    pub fn new() -> Self {
        let decoder = OpusDecoder::new(CLOCK_HZ as i32, 1).expect("a rate and channels of Opus");
        Self {
            decoder: Box::new(decoder),
            waiting: BTreeMap::new(),
            next: None,
            filling_since: None,
            sound: Vec::new(),
            delay: DELAY_MIN,
            late: None,
            concealed: 0,
            surplus: 0,
            spoke: None,
        }
    }

    /// A packet has come.
    pub fn take(&mut self, sequence: u64, payload: Arc<[u8]>, now: Instant) {
        if self.next.is_some_and(|next| sequence.abs_diff(next) > RESTART) {
            // Its sender has begun anew.
            self.waiting.clear();
            self.next = None;
        }
        if self.next.is_some_and(|next| sequence < next) {
            // Its place was made up already: the next ones get more time.
            self.delay = (self.delay + FRAME_TIME).min(DELAY_MAX);
            self.late = Some(now);
            return;
        }
        if self.next.is_none() && self.waiting.is_empty() {
            self.filling_since = Some(now);
        }
        self.waiting.insert(sequence, payload);
        if self.waiting.len() > WAITING_MAX {
            self.waiting.pop_first();
            let first = self.waiting.keys().next().copied();
            self.next = self.next.and(first);
        }
    }

    /// The next frame of it; false: it says nothing, and has said nothing for a while. What is no louder than a quiet room is not heard.
    pub fn speak(&mut self, frame: &mut [f32; FRAME], now: Instant) -> bool {
        if self.play(frame, now) {
            let power = frame.iter().map(|sample| sample * sample).sum::<f32>() / FRAME as f32;
            if power > SPEECH {
                self.spoke = Some(now);
            }
        }
        self.spoke.is_some_and(|spoke| now.saturating_duration_since(spoke) <= HANGOVER)
    }

    /// The next frame of it; false: there is none.
    fn play(&mut self, frame: &mut [f32; FRAME], now: Instant) -> bool {
        if self.next.is_none() {
            let is_due = self.filling_since.is_some_and(|since| now.saturating_duration_since(since) >= self.delay);
            self.next = self.waiting.keys().next().copied().filter(|_| is_due);
            if self.next.is_none() {
                return false;
            }
            self.late.get_or_insert(now);
        }
        self.keep_pace(now);
        while self.sound.len() < FRAME {
            if !self.decode_next() {
                self.next = None;
                self.filling_since = None;
                break;
            }
        }
        let length = self.sound.len().min(FRAME);
        for (to, from) in frame.iter_mut().zip(self.sound.drain(..length)) {
            *to = if from.is_finite() { from.clamp(-LOUDEST, LOUDEST) } else { 0.0 };
        }
        length > 0
    }

    /// Decodes what is next, or makes it up. False: nothing has come for too long.
    fn decode_next(&mut self) -> bool {
        let Some(next) = self.next else { return false };
        let packet = self.waiting.remove(&next);
        match packet {
            Some(packet) => {
                self.concealed = 0;
                self.decode(&packet, MAX_PACKET_SAMPLES, false);
            }
            // So much is lost that it cannot be made up.
            None if self.waiting.keys().next().is_some_and(|first| *first > next + u64::from(CONCEALED_MAX)) => {
                self.next = self.waiting.keys().next().copied();
                return true;
            }
            // The one after it may carry a copy.
            None if !self.waiting.is_empty() => {
                let after = self.waiting.get(&(next + 1)).cloned();
                self.decode(after.as_deref().unwrap_or(&[]), FRAME, after.is_some());
            }
            None if self.concealed < CONCEALED_MAX => {
                self.concealed += 1;
                self.decode(&[], FRAME, false);
                // It may be late only: its place is kept until it is certain that nothing comes.
                return true;
            }
            None => return false,
        }
        self.next = Some(next + 1);
        true
    }

    /// What cannot be decoded is silence of one frame.
    fn decode(&mut self, packet: &[u8], samples: usize, is_copy: bool) {
        let start = self.sound.len();
        self.sound.resize(start + samples, 0.0);
        let Self { decoder, sound, .. } = self;
        let out = &mut sound[start..];
        let decoded = contain(|| match is_copy {
            true => decoder.decode_fec(packet, samples, out),
            false => decoder.decode(packet, samples, out),
        });
        let decoded = match decoded {
            Some(Ok(decoded)) => decoded.min(samples),
            Some(Err(_)) => FRAME,
            None => {
                *self = Self {
                    waiting: std::mem::take(&mut self.waiting),
                    next: self.next,
                    sound: std::mem::take(&mut self.sound),
                    ..Self::new()
                };
                FRAME
            }
        };
        self.sound.truncate(start + decoded);
    }

    /// What has come too much is left out; what was late long ago is forgotten.
    fn keep_pace(&mut self, now: Instant) {
        if self.late.is_some_and(|late| now.saturating_duration_since(late) > CALM) {
            self.delay = (self.delay.saturating_sub(FRAME_TIME)).max(DELAY_MIN);
            self.late = Some(now);
        }
        let wanted = (self.delay.as_millis() as usize * CLOCK_HZ as usize) / 1000;
        self.surplus = if self.waits() > wanted + SURPLUS { self.surplus + 1 } else { 0 };
        if self.surplus > SURPLUS_FRAMES {
            self.surplus = 0;
            let kept = self.sound.len();
            if self.decode_next() {
                self.sound.truncate(kept);
            }
        }
    }

    /// What has come and is not played yet, in samples.
    fn waits(&self) -> usize {
        let samples = |packet: &Arc<[u8]>| opus_pure::packet::samples_48k(packet).unwrap_or(FRAME);
        self.waiting.values().map(samples).sum::<usize>() + self.sound.len()
    }

    #[cfg(test)]
    pub fn waits_ms(&self) -> usize {
        self.waits() * 1000 / CLOCK_HZ as usize
    }
}
