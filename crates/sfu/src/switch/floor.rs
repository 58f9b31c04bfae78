//! Active speaker detection: the loudest member of a room, once it has been the loudest for a moment.

use std::time::{Duration, Instant};

use super::source::Source;

/// Active speaker of a room (holder of the floor).
#[derive(Debug, Default)]
pub struct Floor {
    holder: Option<Source>,
    /// Track that is louder than the holder, and the time since when.
    rival: Option<(Source, Instant)>,
}

/// Minimum loudness of speech (-50 dBov). A quiet room is below it.
const SPEECH: f32 = 77.0;
/// A track takes the floor if it is louder than the holder by `MARGIN` decibels for the time `HOLD`. A cough is too
/// short.
const MARGIN: f32 = 3.0;
const HOLD: Duration = Duration::from_millis(400);

impl Floor {
    /// Returns the active speaker, or the last one if the room is silent.
    pub fn holder(&self) -> Option<Source> {
        self.holder
    }

    /// Updates the active speaker after an audio packet of `source`. `holder`: loudness of the current holder, 0 if
    /// there is no holder or the holder has left.
    pub fn update(&mut self, source: Source, loudness: f32, holder: f32, now: Instant) {
        if self.holder == Some(source) {
            return;
        }
        let is_rival = loudness >= SPEECH && loudness >= holder + MARGIN;
        let since = self.rival.filter(|(rival, _)| *rival == source).map(|(_, since)| since);
        match (is_rival, since) {
            (true, None) => self.rival = Some((source, now)),
            (true, Some(since)) if now.saturating_duration_since(since) >= HOLD => {
                (self.holder, self.rival) = (Some(source), None);
            }
            (false, Some(_)) => self.rival = None,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{loudness::Loudness, member_id::MemberId};

    const PACKET: Duration = Duration::from_millis(20);

    /// A room in which tracks send at given levels; each run returns the active speaker at its end.
    struct Talk {
        tracks: Vec<Loudness>,
        floor: Floor,
        now: Instant,
    }

    impl Talk {
        #[expect(clippy::disallowed_methods, reason = "an instant to count from: none can be made up")]
        fn new(count: usize) -> Self {
            let tracks = (0..count).map(|_| Loudness::default()).collect();
            Self { tracks, floor: Floor::default(), now: Instant::now() }
        }

        fn source(at: usize) -> Source {
            Source { member: MemberId { slot: at as u32, serial: 1 }, track: 0 }
        }

        /// Level `None`: the track sends no packets, which is common in silence.
        fn run(&mut self, ms: u64, levels: &[Option<i8>]) -> Option<usize> {
            let end = self.now + Duration::from_millis(ms);
            while self.now < end {
                self.now += PACKET;
                for (at, level) in levels.iter().enumerate().filter_map(|(at, level)| Some((at, (*level)?))) {
                    self.tracks[at].update(level, self.now);
                    let loudness = self.tracks[at].now(self.now);
                    let holder =
                        self.floor.holder().map(|holder| self.tracks[holder.member.slot as usize].now(self.now));
                    self.floor.update(Self::source(at), loudness, holder.unwrap_or(0.0), self.now);
                }
            }
            self.floor.holder().map(|holder| holder.member.slot as usize)
        }
    }

    #[test]
    fn loudest_member_stays_active_speaker_in_silence() {
        let mut talk = Talk::new(3);
        assert_eq!(talk.run(2000, &[Some(-70), Some(-65), None]), None, "noise is no speech");
        assert_eq!(talk.run(1500, &[Some(-70), Some(-25), None]), Some(1));
        assert_eq!(talk.run(3000, &[Some(-70), Some(-70), None]), Some(1), "no other member speaks");
        assert_eq!(talk.run(1500, &[Some(-30), Some(-70), None]), Some(0));
        assert_eq!(talk.run(1500, &[None, None, Some(-30)]), Some(2), "who is silent need not say so");
    }

    #[test]
    fn short_or_equal_loudness_keeps_active_speaker() {
        let mut talk = Talk::new(2);
        assert_eq!(talk.run(1500, &[Some(-30), Some(-80)]), Some(0));
        assert_eq!(talk.run(300, &[Some(-30), Some(0)]), Some(0));
        assert_eq!(talk.run(5000, &[Some(-30), Some(-29)]), Some(0));
        assert_eq!(talk.run(2500, &[Some(-30), Some(-20)]), Some(1), "but who goes on, and is louder, does");
    }
}
