//! Table 8 of the thesis in scaled time: for each network the silence that its connections survive, found by measuring
//! as in an unknown network, and a heartbeat interval with which nothing is lost.

use std::{
    net::Ipv4Addr,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use millrace_client::heartbeat::{Finder, Found, Limits, Measured};
use millrace_link::{Nat, OnIdle};

use super::{
    client::{Client, publish},
    network::{Ends, Networks},
};
use crate::{nearest::nearest, recording::LinkRun, targets::Server};

/// Longest time for a message to arrive over a living connection.
const ARRIVE_MAX: Duration = Duration::from_secs(2);
/// Silences that are probed, in minutes of the thesis: its longest measurement was three hours.
const MIN_MINUTES: f64 = 1.0;
const MAX_MINUTES: f64 = 180.0;
const STEP_MINUTES: f64 = 0.2;
const PRECISION: f64 = 0.04;
const PARALLEL: usize = 8;
/// Time between the openings of two connections in a network. If all opened at once, they would delay each other.
const OPEN_EVERY: Duration = Duration::from_millis(25);
/// Time by which a measured silence may be longer than the one that the NAT sees: the last packet before the silence is
/// the acknowledgement of the last message, and TCP may delay it.
const TOLERANCE: Duration = Duration::from_millis(60);

/// A row of table 8.
struct Network {
    name: &'static str,
    title: &'static str,
    /// Minutes of silence after which connections were dropped: shortest and longest. `None`: not found in three hours.
    minutes: [Option<f64>; 2],
}

/// Source: Somogyi 2014, table 8.
const NETWORKS: [Network; 4] = [
    Network { name: "lte", title: "LTE", minutes: [Some(8.0), Some(15.0)] },
    Network { name: "home-wifi", title: "Wi-Fi at home", minutes: [Some(20.0), Some(40.0)] },
    Network { name: "enterprise-wifi", title: "enterprise Wi-Fi with proxy", minutes: [Some(60.0), Some(80.0)] },
    Network { name: "local", title: "local network", minutes: [None, None] },
];

/// Time of the thesis in the time of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scale {
    pub minutes_per_s: f64,
}

impl Scale {
    pub fn here(self, minutes: f64) -> Duration {
        Duration::from_secs_f64(minutes / self.minutes_per_s)
    }

    pub fn minutes(self, here: Duration) -> f64 {
        here.as_secs_f64() * self.minutes_per_s
    }

    fn limits(self) -> Limits {
        Limits {
            min: self.here(MIN_MINUTES),
            max: self.here(MAX_MINUTES),
            step: self.here(STEP_MINUTES),
            parallel: PARALLEL,
            precision: PRECISION,
        }
    }

    /// Returns the seconds that the longest of these cases takes: three rounds, and the check of the interval.
    pub fn estimate_s(self, cases: &[Case]) -> f64 {
        let of = |case: &Case| match case.minutes {
            Some(minutes) => 5.4 * self.here(minutes).as_secs_f64() + 3.0 * ARRIVE_MAX.as_secs_f64(),
            None => 2.0 * self.here(MAX_MINUTES).as_secs_f64(),
        };
        cases.iter().map(of).fold(0.0, f64::max) + 2.0
    }
}

/// A NAT with one timeout of the thesis.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Case {
    pub title: &'static str,
    /// Timeout in minutes. `None`: a network that drops nothing.
    pub minutes: Option<f64>,
}

/// Returns the cases of these networks. Networks with one figure have one.
///
/// Errors: an unknown network, with the most similar name.
pub fn cases(names: &[String]) -> anyhow::Result<Vec<Case>> {
    let mut cases: Vec<Case> = Vec::new();
    for name in names {
        let all = || NETWORKS.iter().map(|network| network.name);
        let found = NETWORKS.iter().find(|network| network.name == name);
        let network = found.with_context(|| format!("networks: no network {name}{}", nearest(name, all())))?;
        for minutes in network.minutes {
            let case = Case { title: network.title, minutes };
            if !cases.contains(&case) {
                cases.push(case);
            }
        }
    }
    Ok(cases)
}

/// Results of a case.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    pub case: Case,
    /// One per repeat.
    pub repeats: Vec<Repeat>,
    /// Round-trip time of the path. Publishing takes some of them, so silences are known less precisely.
    pub round_trip: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Repeat {
    pub found: Found,
    /// Messages that were lost although the client sent pings in the suggested interval.
    pub lost: u64,
}

impl Outcome {
    /// Returns the silence that connections survived in all repeats.
    pub fn survived(&self) -> Option<Duration> {
        self.repeats.iter().map(|repeat| repeat.found.survived).min().flatten()
    }

    /// Returns the silence that no connection survived in any repeat.
    pub fn died(&self) -> Option<Duration> {
        let all: Option<Vec<Duration>> = self.repeats.iter().map(|repeat| repeat.found.died).collect();
        all?.into_iter().max()
    }

    /// Returns the shortest of the suggested intervals.
    pub fn suggested(&self) -> Option<Duration> {
        self.repeats.iter().map(|repeat| repeat.found.suggested).min().flatten()
    }

    pub fn lost(&self) -> u64 {
        self.repeats.iter().map(|repeat| repeat.lost).sum()
    }

    /// True if the timeout is between the two silences in each repeat, these are close to each other, and nothing was
    /// lost with the suggested interval.
    pub fn passed(&self, scale: Scale) -> bool {
        let is_good = |repeat: &Repeat| {
            let Found { survived, died, suggested, .. } = repeat.found;
            let is_bracket = match (self.case.minutes.map(|minutes| scale.here(minutes)), survived, died) {
                (Some(timeout), Some(survived), Some(died)) => {
                    let is_close = died <= survived + timeout / 10 + (TOLERANCE + self.round_trip) * 3;
                    survived < timeout + TOLERANCE && died >= timeout && is_close
                }
                (None, Some(survived), None) => survived >= scale.here(MAX_MINUTES),
                _ => false,
            };
            is_bracket && suggested.is_some() && repeat.lost == 0
        };
        !self.repeats.is_empty() && self.repeats.iter().all(is_good)
    }
}

/// Searches in a network like this one, several times at once, over one link with one server. `go_on` fails if the run
/// must stop.
pub fn run(
    case: Case,
    networks: &Networks,
    scale: Scale,
    repeats: u32,
    start: impl FnOnce() -> anyhow::Result<Server> + Send,
    go_on: &(dyn Fn() -> anyhow::Result<()> + Sync),
) -> anyhow::Result<(Outcome, Option<LinkRun>)> {
    let nat = case.minutes.map(|minutes| Nat { idle: scale.here(minutes), on_idle: OnIdle::Swallow });
    let (repeats, link) = networks.through(nat, start, |ends| {
        thread::scope(|scope| {
            let one = |repeat: u32| scope.spawn(move || one(ends, scale, repeat, go_on));
            let running: Vec<_> = (0..repeats).map(one).collect();
            running.into_iter().map(|one| one.join().expect("it does not panic")).collect()
        })
    })?;
    Ok((Outcome { case, repeats, round_trip: networks.round_trip() }, link))
}

fn one(
    ends: Ends,
    scale: Scale,
    repeat: u32,
    go_on: &(dyn Fn() -> anyhow::Result<()> + Sync),
) -> anyhow::Result<Repeat> {
    let limits = scale.limits();
    let mut finder = Finder::new(limits)?;
    for round in 0.. {
        let silences = finder.next_round();
        if silences.is_empty() {
            break;
        }
        let shortest_dead_ns = AtomicU64::new(u64::MAX);
        let probe = |silence: Duration| -> anyhow::Result<Option<(Duration, Measured)>> {
            let channel = format!("idle/{repeat}/{round}/{}", silence.as_micros());
            let is_needless = || shortest_dead_ns.load(Relaxed) <= silence.as_nanos() as u64 || go_on().is_err();
            let measured = probe(ends, &channel, silence, &is_needless)?;
            if measured.is_some_and(|measured| !measured.has_survived) {
                shortest_dead_ns.fetch_min(silence.as_nanos() as u64, Relaxed);
            }
            Ok(measured.map(|measured| (silence, measured)))
        };
        thread::scope(|scope| {
            let probe = &probe;
            let spawn = |(index, silence): (u32, Duration)| {
                scope.spawn(move || {
                    thread::sleep(OPEN_EVERY * index + OPEN_EVERY / 4 * (repeat % 4));
                    probe(silence)
                })
            };
            let running: Vec<_> = (0..).zip(silences).map(spawn).collect();
            running.into_iter().try_for_each(|one| -> anyhow::Result<()> {
                if let Some((probed, measured)) = one.join().expect("it does not panic")? {
                    finder.record(probed, measured.silence, measured.has_survived);
                }
                Ok(())
            })
        })?;
        go_on()?;
    }
    let found = finder.found();
    let lost = match found.suggested {
        Some(interval) => {
            let lasts = found.died.map_or(limits.max, |died| died * 2);
            keep_alive(ends, &format!("idle/{repeat}/kept"), interval, lasts, go_on)?
        }
        None => 0,
    };
    Ok(Repeat { found, lost })
}

/// Opens a connection, receives a message, and another one after a silence. Returns `None` if the result is needless
/// meanwhile.
fn probe(
    ends: Ends,
    channel: &str,
    silence: Duration,
    is_needless: &dyn Fn() -> bool,
) -> anyhow::Result<Option<Measured>> {
    let mut client = open(ends, channel)?;
    let silent_since = client.last;
    client.run(silence, |_| is_needless())?;
    if is_needless() {
        return Ok(None);
    }
    // The server sends the message after the request of the publisher, and before its answer to the publisher.
    let at_least = silent_since.elapsed();
    publish(ends.server, channel, 1)?;
    let at_most = silent_since.elapsed();
    client.run(ARRIVE_MAX, |client| client.heard.len() == 2)?;
    let has_survived = client.heard.len() == 2;
    let silence = if has_survived { at_least } else { at_most };
    Ok(Some(Measured { silence, has_survived }))
}

/// Sends pings in this interval for a time, then publishes. Returns the number of lost messages.
fn keep_alive(
    ends: Ends,
    channel: &str,
    interval: Duration,
    lasts: Duration,
    go_on: &(dyn Fn() -> anyhow::Result<()> + Sync),
) -> anyhow::Result<u64> {
    let mut client = open(ends, channel)?;
    let start = Instant::now();
    while start.elapsed() < lasts {
        // The server answers, so both directions have a packet.
        client.ping();
        client.run(interval, |_| go_on().is_err())?;
        go_on()?;
    }
    publish(ends.server, channel, 1)?;
    client.run(ARRIVE_MAX, |client| client.heard.len() == 2)?;
    Ok(client.lost_and_again(2).0)
}

/// Opens a connection that has just received a message.
fn open(ends: Ends, channel: &str) -> anyhow::Result<Client> {
    let mut client = Client::without_heartbeats(channel);
    client.connect(ends.through_nat, Ipv4Addr::UNSPECIFIED)?;
    publish(ends.server, channel, 0)?;
    client.run(ARRIVE_MAX, |client| client.heard.len() == 1)?;
    ensure!(client.heard.len() == 1, "a new connection received no message within {ARRIVE_MAX:?}");
    Ok(client)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCALE: Scale = Scale { minutes_per_s: 2.0 };

    fn outcome(minutes: Option<f64>, brackets: &[(f64, Option<f64>)], lost: u64) -> Outcome {
        let s = Duration::from_secs_f64;
        let repeat = |&(survived, died): &(f64, Option<f64>)| Repeat {
            found: Found {
                survived: Some(s(survived)),
                died: died.map(s),
                suggested: Some(s(1.0)),
                ..Found::default()
            },
            lost,
        };
        let case = Case { title: "LTE", minutes };
        Outcome { case, repeats: brackets.iter().map(repeat).collect(), round_trip: Duration::from_millis(10) }
    }

    #[test]
    fn networks_of_table_8_have_its_bounds() {
        let names = NETWORKS.map(|network| network.name.to_owned());
        let minutes: Vec<_> = cases(&names).unwrap().iter().map(|case| case.minutes).collect();
        let bounds = [8.0, 15.0, 20.0, 40.0, 60.0, 80.0];
        assert_eq!(minutes, bounds.map(Some).into_iter().chain([None]).collect::<Vec<_>>());
        assert!(cases(&["lt".into()]).unwrap_err().to_string().contains("lte"));
    }

    #[test]
    fn scale_converts_both_ways() {
        assert_eq!(SCALE.here(8.0), Duration::from_secs(4));
        assert_eq!(SCALE.minutes(Duration::from_secs(40)), 80.0);
        assert!(Finder::new(SCALE.limits()).is_ok());
    }

    #[test]
    fn results_of_repeats_are_combined_with_caution() {
        let seen = outcome(Some(8.0), &[(3.8, Some(4.0)), (3.9, Some(4.1))], 0);
        assert_eq!(seen.survived(), Some(Duration::from_secs_f64(3.8)));
        assert_eq!(seen.died(), Some(Duration::from_secs_f64(4.1)));
        assert_eq!(outcome(None, &[(90.0, None)], 0).died(), None);
    }

    #[test]
    fn result_passes_if_it_brackets_the_timeout_and_nothing_is_lost() {
        assert!(outcome(Some(8.0), &[(3.9, Some(4.0))], 0).passed(SCALE));
        assert!(outcome(None, &[(90.0, None)], 0).passed(SCALE));
        for wrong in [
            outcome(Some(8.0), &[(3.9, Some(4.0))], 1),
            outcome(Some(8.0), &[(4.2, Some(4.3))], 0),
            outcome(Some(8.0), &[(3.5, Some(3.6))], 0),
            outcome(Some(8.0), &[(2.0, Some(4.1))], 0),
            outcome(Some(8.0), &[(90.0, None)], 0),
            outcome(None, &[(3.9, Some(4.0))], 0),
            outcome(Some(8.0), &[], 0),
        ] {
            assert!(!wrong.passed(SCALE), "{wrong:?}");
        }
    }
}
