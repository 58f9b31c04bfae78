use std::{collections::BTreeSet, time::Duration};

/// Rounds after which a search ends, whatever it knows then.
const ROUNDS_MAX: u32 = 6;
/// Share of the longest survived silence that is left for networks that are a little less patient than measured.
/// Source: RFC 5626, section 4.4.1: keep-alives are sent after 80 % to 100 % of the timeout.
const SAFETY: f64 = 0.8;

/// Bounds of a search.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Shortest and longest silence that is probed.
    pub min: Duration,
    pub max: Duration,
    /// Silences are multiples of it. A heartbeat may come late by up to one step.
    pub step: Duration,
    /// Maximum number of connections that are probed at the same time.
    pub parallel: usize,
    /// The search ends when the shortest silence that ends a connection is known with this precision, as a share.
    pub precision: f64,
}

/// Why limits are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LimitsError {
    #[error("the step must be longer than 0")]
    Step,
    #[error("the longest silence must be longer than the shortest, and the shortest at least one step")]
    Order,
    #[error("2 to 32 connections can be probed at the same time")]
    Parallel,
    #[error("the precision must be 0 to 1")]
    Precision,
}

/// Search for the longest silence that a connection survives.
///
/// ```text
///   first round: silences from min to max, each longer by the same factor
///   next rounds: silences between the longest that survived and the shortest that did not
/// ```
///
/// The caller probes all silences of [`Finder::next_round`], each with a connection of its own, and records the results
/// with [`Finder::record`]. When a connection has died, the caller may end the probes with longer silences.
#[derive(Clone, Debug)]
pub struct Finder {
    limits: Limits,
    /// Silences whose probes have ended. The measured silence may be another one.
    probed: BTreeSet<Duration>,
    survived: Vec<Duration>,
    died: Vec<Duration>,
    rounds: u32,
}

/// Result of a search, also of one that is not complete.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Longest silence that a connection survived, below `died`. `None`: no connection survived.
    pub survived: Option<Duration>,
    /// Shortest silence that a connection did not survive. `None`: all survived.
    pub died: Option<Duration>,
    /// Probes that survived a silence at least as long as `died`: the network does not always behave the same.
    pub contradictions: usize,
    /// Number of recorded probes.
    pub probes: usize,
    /// Longest heartbeat interval that keeps a connection alive with a margin: 80 % of `survived`, less one step.
    pub suggested: Option<Duration>,
}

impl Finder {
    /// Errors: limits with which no search is possible.
    pub fn new(limits: Limits) -> Result<Self, LimitsError> {
        match () {
            () if limits.step.is_zero() => Err(LimitsError::Step),
            () if limits.min < limits.step || limits.max <= limits.min => Err(LimitsError::Order),
            () if !(2..=32).contains(&limits.parallel) => Err(LimitsError::Parallel),
            () if !(0.0..=1.0).contains(&limits.precision) => Err(LimitsError::Precision),
            () => Ok(Self { limits, probed: BTreeSet::new(), survived: Vec::new(), died: Vec::new(), rounds: 0 }),
        }
    }

    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Returns the silences to probe next, shortest first. Empty: the search is complete.
    pub fn next_round(&mut self) -> Vec<Duration> {
        let silences = match (self.rounds, self.found()) {
            (ROUNDS_MAX.., _) => Vec::new(),
            (0, _) => self.ladder(),
            (_, Found { survived: Some(survived), died: Some(died), .. }) => self.between(survived, died),
            // The network keeps all silences, or not even the shortest.
            _ => Vec::new(),
        };
        self.rounds += u32::from(!silences.is_empty());
        silences
    }

    /// Records the result of a probe. `probed`: a silence of [`Finder::next_round`]. `silence`: as measured; if the
    /// connection died, the longest time for which the connection can have been silent.
    pub fn record(&mut self, probed: Duration, silence: Duration, has_survived: bool) {
        self.probed.insert(probed);
        if has_survived { self.survived.push(silence) } else { self.died.push(silence) }
    }

    /// Returns what is known now.
    pub fn found(&self) -> Found {
        let died = self.died.iter().min().copied();
        let (below, above): (Vec<Duration>, Vec<Duration>) =
            self.survived.iter().partition(|silence| died.is_none_or(|died| **silence < died));
        let survived = below.into_iter().max();
        Found {
            survived,
            died,
            contradictions: above.len(),
            probes: self.survived.len() + self.died.len(),
            suggested: survived.and_then(|survived| self.suggested(survived)),
        }
    }

    fn suggested(&self, survived: Duration) -> Option<Duration> {
        let steps = self.steps(survived.mul_f64(SAFETY)).checked_sub(1)?;
        (steps > 0).then(|| self.limits.step * steps)
    }

    /// Returns silences from the shortest to the longest.
    fn ladder(&self) -> Vec<Duration> {
        let Limits { min, max, parallel, .. } = self.limits;
        let rung = |n: usize| growing(min, max, n as f64 / (parallel - 1) as f64);
        let inner = (1..parallel - 1).map(rung).map(|silence| self.round(silence));
        let all: BTreeSet<Duration> = inner.filter(|silence| (min..=max).contains(silence)).chain([min, max]).collect();
        all.into_iter().collect()
    }

    /// Returns silences between two that are known.
    fn between(&self, survived: Duration, died: Duration) -> Vec<Duration> {
        let Limits { step, parallel, precision, .. } = self.limits;
        let width = died - survived;
        if width <= step || width <= died.mul_f64(precision) {
            return Vec::new();
        }
        let part = |n: usize| {
            let share = n as f64 / (parallel + 1) as f64;
            if died > survived * 2 { growing(survived, died, share) } else { survived + width.mul_f64(share) }
        };
        let silences = (1..=parallel).map(part).map(|silence| self.round(silence));
        let is_new = |silence: &Duration| survived < *silence && *silence < died && !self.probed.contains(silence);
        silences.filter(is_new).collect::<BTreeSet<Duration>>().into_iter().collect()
    }

    /// Rounds to the nearest multiple of the step.
    fn round(&self, silence: Duration) -> Duration {
        self.limits.step * self.steps(silence + self.limits.step / 2)
    }

    /// Returns the number of whole steps in a time.
    fn steps(&self, time: Duration) -> u32 {
        u32::try_from(time.as_nanos() / self.limits.step.as_nanos()).unwrap_or(u32::MAX)
    }
}

/// Returns the value at this share of the way from one to the other, if equal parts have equal factors.
fn growing(from: Duration, to: Duration, share: f64) -> Duration {
    from.mul_f64((to.as_secs_f64() / from.as_secs_f64()).powf(share))
}

#[cfg(test)]
mod tests {
    use millrace_link::{
        Config, Direction, Nat, OnIdle, PipeConfig, Time, Traces,
        stream::{Received, StreamLink},
    };
    use rand::{RngExt, SeedableRng};
    use rand_pcg::Pcg32;

    use super::*;

    fn limits(step_ms: u64) -> Limits {
        let (s, step) = (Duration::from_secs, Duration::from_millis(step_ms));
        Limits { min: s(5), max: s(1800), step, parallel: 8, precision: 0.05 }
    }

    /// Opens a connection over a virtual link, and returns whether a message of the server arrives after a silence.
    fn survives(nat: Option<Nat>, delay: Duration, silence: Duration) -> bool {
        let pipe = PipeConfig { delay, ..PipeConfig::default() };
        let config = Config { up: pipe.clone(), down: pipe, nat, ..Config::default() };
        let mut stream = StreamLink::new(config, &Traces::default(), 1).expect("a link");
        stream.send(Direction::Up, b"open", Time::ZERO);
        let mut now = Time::ZERO;
        let mut receive = |stream: &mut StreamLink, until: Time| {
            let mut has_received = false;
            while let Some(next) = stream.poll_timeout().filter(|next| *next <= until) {
                now = next;
                while let Some(received) = stream.poll_received(now) {
                    has_received |= matches!(received, Received::Data(Direction::Down, ..));
                }
            }
            (has_received, now)
        };
        // The last packet is the acknowledgement of the server, which arrives after a round trip.
        let (_, last) = receive(&mut stream, Time::ZERO + Duration::from_secs(4));
        assert_eq!(stream.unacknowledged(Direction::Up), 0);
        // It entered the link one delay earlier.
        let silent_since = Time::from_ns(last.ns() - delay.as_nanos() as u64);
        let send_at = silent_since + silence;
        stream.send(Direction::Down, b"beat", send_at);
        receive(&mut stream, send_at + Duration::from_secs(10)).0
    }

    /// Probes as a client does: probes that are longer than one that died are not always completed.
    fn search(limits: Limits, random: &mut Pcg32, survives: impl Fn(Duration) -> bool) -> Found {
        let mut finder = Finder::new(limits).expect("limits");
        loop {
            let round = finder.next_round();
            assert!(round.len() <= limits.parallel && round.is_sorted(), "{round:?}");
            if round.is_empty() {
                return finder.found();
            }
            let mut has_died = false;
            for silence in round {
                if !has_died || random.random_bool(0.5) {
                    let has_survived = survives(silence);
                    has_died |= !has_survived;
                    finder.record(silence, silence, has_survived);
                }
            }
        }
    }

    #[test]
    fn search_brackets_timeout_of_any_nat() {
        for seed in 0..300 {
            let mut random = Pcg32::seed_from_u64(seed);
            let timeout = Duration::from_millis(random.random_range(5_001..1_800_000));
            let delay = Duration::from_millis(random.random_range(0..300));
            let on_idle = if random.random() { OnIdle::Swallow } else { OnIdle::Reset };
            let limits = limits(if random.random() { 1000 } else { 100 });
            let nat = Nat { idle: timeout, on_idle };
            let found = search(limits, &mut random, |silence| survives(Some(nat), delay, silence));
            let (survived, died) = (found.survived.expect("5 s survive"), found.died.expect("30 min do not"));
            assert!(survived < timeout && timeout <= died, "seed {seed}: {found:?}, timeout {timeout:?}");
            assert!(died - survived <= limits.step.max(died.mul_f64(0.05)), "seed {seed}: {found:?}");
            assert!(found.contradictions == 0 && found.probes <= 48, "seed {seed}: {found:?}");
            let late = found.suggested.expect("an interval") + limits.step;
            assert!(survives(Some(nat), delay, late) && late <= survived, "seed {seed}: {found:?}");
        }
    }

    #[test]
    fn network_without_or_below_limits_ends_search_after_first_round() {
        let mut random = Pcg32::seed_from_u64(1);
        let found = search(limits(1000), &mut random, |silence| survives(None, Duration::ZERO, silence));
        assert_eq!((found.survived, found.died), (Some(Duration::from_secs(1800)), None));
        assert_eq!(found.suggested, Some(Duration::from_secs(1439)));
        let nat = Nat { idle: Duration::from_secs(1), on_idle: OnIdle::Swallow };
        let found = search(limits(1000), &mut random, |silence| survives(Some(nat), Duration::ZERO, silence));
        assert_eq!((found.survived, found.died, found.suggested), (None, Some(Duration::from_secs(5)), None));
    }

    #[test]
    fn contradictions_are_counted_and_ignored() {
        let mut finder = Finder::new(limits(1000)).unwrap();
        for (s, has_survived) in [(5, true), (60, true), (30, false), (90, true), (120, false)] {
            finder.record(Duration::from_secs(s), Duration::from_secs(s), has_survived);
        }
        let Found { survived, died, contradictions, probes, suggested } = finder.found();
        assert_eq!((survived, died), (Some(Duration::from_secs(5)), Some(Duration::from_secs(30))));
        assert_eq!((contradictions, probes, suggested), (2, 5, Some(Duration::from_secs(3))));
    }

    #[test]
    fn silence_is_not_probed_twice_because_it_was_measured_otherwise() {
        let mut finder = Finder::new(Limits { max: Duration::from_secs(15), ..limits(1000) }).unwrap();
        let s = Duration::from_secs;
        assert_eq!(finder.next_round(), [5, 6, 7, 8, 9, 11, 13, 15].map(s));
        for (probed_s, measured_ms, has_survived) in [(5, 4600, true), (6, 5600, true), (8, 9000, false)] {
            finder.record(s(probed_s), Duration::from_millis(measured_ms), has_survived);
        }
        assert_eq!(finder.next_round(), [s(7)], "its probe was ended");
        finder.record(s(7), Duration::from_millis(6400), true);
        assert!(finder.next_round().is_empty());
    }

    #[test]
    fn search_ends_although_network_is_random() {
        for seed in 0..100 {
            let random = std::cell::RefCell::new(Pcg32::seed_from_u64(seed));
            let survives = |_| random.borrow_mut().random_bool(0.7);
            let found = search(limits(1000), &mut Pcg32::seed_from_u64(seed), survives);
            assert!(found.probes <= 8 * ROUNDS_MAX as usize, "seed {seed}: {found:?}");
        }
    }

    #[test]
    fn limits_without_a_search_are_refused() {
        let good = limits(1000);
        for (wrong, error) in [
            (Limits { step: Duration::ZERO, ..good }, LimitsError::Step),
            (Limits { max: good.min, ..good }, LimitsError::Order),
            (Limits { min: Duration::from_millis(500), ..good }, LimitsError::Order),
            (Limits { parallel: 1, ..good }, LimitsError::Parallel),
            (Limits { parallel: 33, ..good }, LimitsError::Parallel),
            (Limits { precision: f64::NAN, ..good }, LimitsError::Precision),
        ] {
            assert_eq!(Finder::new(wrong).unwrap_err(), error);
        }
    }
}
