//! The mixer: hears everybody in a room, and gives each one stream of sound with all the others in it.
//!
//! - this file: what each is given
//! - [`voice`]: one who is heard: packets that come when they come, made into sound that comes in time
//!
//! Who is not heard gets what everybody gets, encoded once; who is heard, the same without their own sound, encoded for them alone. No
//! connections and no clock: packets and the time are inputs. Encoding takes a tenth of a millisecond, so it has a thread of its own.
//!
//! ```text
//!   packets of each ──► Voice: in order, on time ──► decoded ──┬─► sum ──► limited ──► encoded ──► who is silent
//!                                                              └─► sum less one's own ──► .. ────► who speaks
//! ```

mod voice;

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::{Duration, Instant},
};

use opus_pure::{Application, OpusEncoder};

use crate::switch::MemberId;
use voice::Voice;

/// Samples per second, and of one packet: 20 ms.
pub const CLOCK_HZ: u32 = 48_000;
pub const FRAME: usize = 960;
pub const FRAME_TIME: Duration = Duration::from_millis(20);
/// Whoever has spoken so recently is heard, and has an encoder of their own: between words nothing changes.
const HANGOVER: Duration = Duration::from_secs(2);
/// Behind by more than this, what is missing is left out.
const BEHIND_MAX: Duration = Duration::from_millis(200);
/// Speech, one channel. Source: RFC 7587, section 3.1.1: 28 to 40 kbit/s for fullband speech.
const BITS_PER_S: i32 = 40_000;
/// Of 10: what a call's encoder takes from 5 on, nobody hears.
const COMPLEXITY: i32 = 5;
const PACKET_BYTES_MAX: usize = 1000;
/// No sample is louder than this.
const PEAK_MAX: f32 = 0.98;
/// So much of the way back to full loudness the limiter goes with each packet.
const RELEASE: f32 = 0.05;

/// What happens in the room.
#[derive(Clone, Debug)]
pub enum Input {
    /// A packet of a member's track.
    Sound { from: MemberId, track: usize, sequence: u64, payload: Arc<[u8]> },
    /// Somebody is to be given the mix.
    Listens(MemberId),
    /// Somebody has gone, or takes no mix any more.
    Left(MemberId),
    /// Nothing more comes of a member's tracks for now.
    Silent(MemberId),
}

/// What somebody is given: packets of one stream, whoever it was encoded for.
#[derive(Clone, Debug, PartialEq)]
pub struct Mixed {
    /// Counts packets; the same for all who are given one at the same time.
    pub sequence: u64,
    /// In samples.
    pub time: u64,
    /// It begins after a silence.
    pub begins: bool,
    pub to: Vec<(MemberId, Arc<[u8]>)>,
}

/// Of one room.
pub struct Mixer {
    voices: HashMap<(MemberId, usize), Voice>,
    /// Who is given the mix, and, of who is heard, the encoder of their own.
    listeners: BTreeMap<MemberId, Option<Encoder>>,
    /// What who is silent is given.
    shared: Encoder,
    next: Instant,
    sequence: u64,
    time: u64,
    /// Somebody is heard; else nothing is sent.
    is_heard: bool,
}

struct Encoder {
    opus: Box<OpusEncoder>,
    gain: f32,
}

impl Mixer {
    pub fn new(now: Instant) -> Self {
        Self {
            voices: HashMap::new(),
            listeners: BTreeMap::new(),
            shared: Encoder::new(),
            next: now + FRAME_TIME,
            sequence: 0,
            time: 0,
            is_heard: false,
        }
    }

    pub fn handle(&mut self, input: Input, now: Instant) {
        match input {
            Input::Sound { from, track, sequence, payload } => {
                self.voices.entry((from, track)).or_insert_with(Voice::new).take(sequence, payload, now);
            }
            Input::Listens(id) => drop(self.listeners.entry(id).or_default()),
            Input::Silent(id) => self.voices.retain(|(from, _), _| *from != id),
            Input::Left(id) => {
                self.listeners.remove(&id);
                self.voices.retain(|(from, _), _| *from != id);
            }
        }
    }

    /// When [`Mixer::handle_timeout`] wants to be called; `None`: not before there is somebody to be heard.
    pub fn timeout(&self) -> Option<Instant> {
        (!self.voices.is_empty()).then_some(self.next)
    }

    /// The next 20 ms. `None`: nobody speaks, or nobody listens.
    pub fn handle_timeout(&mut self, now: Instant) -> Option<Mixed> {
        let late = self.timeout().and_then(|due| now.checked_duration_since(due))?;
        let skipped = if late > BEHIND_MAX { late.as_millis() / FRAME_TIME.as_millis() } else { 0 } as u32;
        self.next += FRAME_TIME * (1 + skipped);
        self.time += FRAME as u64 * u64::from(skipped);
        let mut sum = [0.0; FRAME];
        let mut heard: Vec<(MemberId, [f32; FRAME])> = Vec::new();
        for ((from, _), voice) in &mut self.voices {
            let mut frame = [0.0; FRAME];
            if voice.speak(&mut frame, now) {
                add(&mut sum, &frame, 1.0);
                heard.push((*from, frame));
            }
        }
        self.time += FRAME as u64;
        let begins = !std::mem::replace(&mut self.is_heard, !heard.is_empty());
        if heard.is_empty() || self.listeners.is_empty() {
            return None;
        }
        self.sequence += 1;
        Some(Mixed { sequence: self.sequence, time: self.time, begins, to: self.encode(&sum, &heard) })
    }

    fn encode(&mut self, sum: &[f32; FRAME], heard: &[(MemberId, [f32; FRAME])]) -> Vec<(MemberId, Arc<[u8]>)> {
        let mut to = Vec::with_capacity(self.listeners.len());
        let mut of_all: Option<Arc<[u8]>> = None;
        for (id, own) in &mut self.listeners {
            let mut said = heard.iter().filter(|(from, _)| from == id).peekable();
            let packet = if said.peek().is_some() {
                let mut others = *sum;
                said.for_each(|(_, frame)| add(&mut others, frame, -1.0));
                own.get_or_insert_with(Encoder::new).encode(&mut others)
            } else {
                *own = None;
                if of_all.is_none() {
                    of_all = self.shared.encode(&mut sum.clone());
                }
                of_all.clone()
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

    /// Several who speak at once are together as loud as one may be: at once when it gets too loud, and slowly back.
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
