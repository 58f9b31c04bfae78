use std::f32::consts::TAU;

use opus_pure::OpusDecoder;

use super::*;

const HZ: [f32; 3] = [440.0, 700.0, 1100.0];

/// Members that each send a tone of a different frequency, and the mix that each member receives.
struct Choir {
    mixer: Mixer,
    now: Instant,
    singers: Vec<Singer>,
    ears: BTreeMap<MemberId, (OpusDecoder, Vec<f32>)>,
    packets: u64,
}

struct Singer {
    id: MemberId,
    hz: f32,
    loudness: f32,
    encoder: OpusEncoder,
    sequence: u64,
    phase: f32,
}

fn id(at: usize) -> MemberId {
    MemberId::of_test(at as u32)
}

impl Choir {
    #[expect(clippy::disallowed_methods, reason = "an instant to count from: none can be made up")]
    fn new(singers: usize) -> Self {
        let now = Instant::now();
        let mut choir = Self { mixer: Mixer::new(now), now, singers: Vec::new(), ears: BTreeMap::new(), packets: 0 };
        for (at, hz) in HZ.into_iter().enumerate().take(singers) {
            let encoder = OpusEncoder::new(CLOCK_HZ as i32, 1, Application::Voip).unwrap();
            choir.singers.push(Singer { id: id(at), hz, loudness: 0.3, encoder, sequence: 1000, phase: 0.0 });
            choir.listen(id(at));
        }
        choir
    }

    fn listen(&mut self, id: MemberId) {
        self.mixer.handle(Input::ListenerAdded(id), self.now);
        self.ears.insert(id, (OpusDecoder::new(CLOCK_HZ as i32, 1).unwrap(), Vec::new()));
    }

    /// Sends `frames` frames of 20 ms each. `comes` returns by how many milliseconds a packet is late, or `None` if
    /// it is lost.
    fn sing(&mut self, frames: u64, mut comes: impl FnMut(usize, u64) -> Option<u64>) {
        let mut late: Vec<(Instant, Input)> = Vec::new();
        for frame in 0..frames {
            for (at, singer) in self.singers.iter_mut().enumerate() {
                let sound: Vec<f32> = (0..FRAME)
                    .map(|_| {
                        singer.phase = (singer.phase + TAU * singer.hz / CLOCK_HZ as f32) % TAU;
                        singer.loudness * singer.phase.sin()
                    })
                    .collect();
                let mut packet = [0; PACKET_BYTES_MAX];
                let length = singer.encoder.encode(&sound, FRAME, &mut packet).unwrap();
                singer.sequence += 1;
                if let Some(ms) = comes(at, frame) {
                    let payload = packet[..length].into();
                    let input = Input::Audio { from: singer.id, track: 0, sequence: singer.sequence, payload };
                    late.push((self.now + Duration::from_millis(ms), input));
                }
            }
            for _ in 0..20 {
                for (_, input) in late.extract_if(.., |(at, _)| *at <= self.now) {
                    self.mixer.handle(input, self.now);
                }
                self.now += Duration::from_millis(1);
                while self.mixer.timeout().is_some_and(|due| due <= self.now) {
                    self.receive();
                }
            }
        }
    }

    fn receive(&mut self) {
        let Some(mixed) = self.mixer.handle_timeout(self.now) else { return };
        self.packets += 1;
        for (id, packet) in mixed.to {
            let (decoder, sound) = self.ears.get_mut(&id).unwrap();
            let mut frame = [0.0; FRAME];
            assert_eq!(decoder.decode(&packet, FRAME, &mut frame).unwrap(), FRAME);
            sound.extend(frame);
        }
    }

    /// Returns the amplitude of each tone in the last second that a listener received, and clears its received
    /// audio.
    fn tones(&mut self, of: MemberId) -> [f32; 3] {
        let sound = std::mem::take(&mut self.ears.get_mut(&of).unwrap().1);
        let last = &sound[sound.len().saturating_sub(CLOCK_HZ as usize)..];
        HZ.map(|hz| {
            let part = |wave: fn(f32) -> f32| {
                let sum = last.iter().enumerate().map(|(at, x)| x * wave(TAU * hz * at as f32 / CLOCK_HZ as f32));
                sum.sum::<f32>() / last.len().max(1) as f32
            };
            2.0 * (part(f32::sin).powi(2) + part(f32::cos).powi(2)).sqrt()
        })
    }

    /// Returns which tones a listener receives.
    fn heard(&mut self, of: MemberId) -> [bool; 3] {
        self.tones(of).map(|loudness| loudness > 0.1)
    }
}

#[test]
fn mix_excludes_own_audio() {
    let mut choir = Choir::new(3);
    choir.listen(id(7));
    choir.sing(100, |_, _| Some(0));
    assert_eq!(choir.heard(id(0)), [false, true, true]);
    assert_eq!(choir.heard(id(1)), [true, false, true]);
    assert_eq!(choir.heard(id(2)), [true, true, false]);
    assert_eq!(choir.heard(id(7)), [true; 3], "who only listens hears all");
}

#[test]
fn lost_or_late_audio_is_concealed() {
    let mut choir = Choir::new(2);
    // Every seventh packet is lost. The others arrive up to 50 ms late, and so out of order.
    choir.sing(200, |_, frame| (frame % 7 != 3).then_some(frame * 37 % 50));
    let [own, other, nobody] = choir.tones(id(0));
    assert!(other > 0.2 && own < 0.05 && nobody < 0.05, "{own} {other} {nobody}");
}

#[test]
fn silent_room_sends_no_mix() {
    let mut choir = Choir::new(2);
    choir.singers.iter_mut().for_each(|singer| singer.loudness = 0.0005);
    choir.sing(50, |_, _| Some(0));
    assert_eq!(choir.packets, 0, "a quiet room");
    choir.singers[1].loudness = 0.3;
    choir.sing(60, |_, _| Some(0));
    assert!(choir.packets > 50 && choir.heard(id(0)) == [false, true, false]);
    choir.sing(200, |_, _| None);
    let packets = choir.packets;
    choir.sing(50, |_, _| None);
    assert_eq!(choir.packets, packets);
    assert_eq!((choir.mixer.sequence, choir.mixer.time / FRAME as u64 > packets), (packets, true));
}

#[test]
fn limiter_bounds_several_speakers() {
    let mut choir = Choir::new(3);
    choir.singers.iter_mut().for_each(|singer| singer.loudness = 0.9);
    choir.listen(id(7));
    choir.sing(100, |_, _| Some(0));
    let sound = &choir.ears[&id(7)].1;
    let peak = sound.iter().fold(0.0_f32, |peak, sample| peak.max(sample.abs()));
    // The codec exceeds the limit only slightly.
    assert!((0.7..1.1).contains(&peak), "{peak}");
    assert_eq!(choir.heard(id(7)), [true; 3]);
}

#[test]
fn fast_sender_clock_adds_no_delay() {
    let mut choir = Choir::new(2);
    // Every second the sender sends one extra packet together with another one.
    for _ in 0..20 {
        choir.sing(50, |_, _| Some(0));
        let [_, singer] = &mut choir.singers[..] else { unreachable!() };
        let mut packet = [0; PACKET_BYTES_MAX];
        let length = singer.encoder.encode(&[0.1; FRAME], FRAME, &mut packet).unwrap();
        singer.sequence += 1;
        let input =
            Input::Audio { from: singer.id, track: 0, sequence: singer.sequence, payload: packet[..length].into() };
        choir.mixer.handle(input, choir.now);
    }
    let voice = &choir.mixer.jitter_buffers[&(id(1), 0)];
    assert!(voice.backlog_ms() <= 160, "{} ms", voice.backlog_ms());
}

#[test]
fn restarted_stream_is_mixed_and_left_one_is_not() {
    let mut choir = Choir::new(2);
    choir.sing(100, |_, _| Some(0));
    choir.singers[1].sequence = 7;
    choir.sing(100, |_, _| Some(0));
    assert_eq!(choir.heard(id(0)), [false, true, false]);
    choir.singers[1].sequence = 5_000_000;
    choir.sing(100, |_, _| Some(0));
    assert_eq!(choir.heard(id(0)), [false, true, false]);
    choir.mixer.handle(Input::Left(id(1)), choir.now);
    choir.sing(100, |at, _| (at == 0).then_some(0));
    choir.tones(id(0));
    choir.sing(60, |at, _| (at == 0).then_some(0));
    assert_eq!(choir.heard(id(0)), [false; 3]);
}

#[test]
fn undecodable_audio_becomes_silence() {
    let mut choir = Choir::new(2);
    let mut seed = 7_u32;
    let mut byte = move || {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (seed >> 24) as u8
    };
    for sequence in 0..2000_u64 {
        let length = usize::from(byte()) * 4;
        let payload: Arc<[u8]> = (0..length).map(|_| byte()).collect();
        let sequence = sequence + u64::from(byte() % 8) * u64::from(byte());
        choir.mixer.handle(Input::Audio { from: id(0), track: 0, sequence, payload }, choir.now);
        choir.now += Duration::from_millis(7);
        while choir.mixer.timeout().is_some_and(|due| due <= choir.now) {
            choir.receive();
        }
    }
    assert!(choir.ears[&id(1)].1.iter().all(|sample| sample.is_finite()));
}
