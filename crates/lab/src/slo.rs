//! Service level objectives that a run must meet, such as `p99<100ms` or `p99.9<1s,lost=0`.

use std::{fmt, str::FromStr, time::Duration};

use anyhow::{Context, bail, ensure};

use crate::recording::{PhaseName, Run};

/// Service level objective: a list of terms, all of which must hold.
#[derive(Clone, Debug, PartialEq)]
pub struct Slo {
    terms: Vec<Term>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Term {
    /// The `percent` percentile of the latency must be less than `below`. A lost delivery counts as longer than any
    /// other.
    Quantile { percent: f64, below: Duration },
    /// The share of lost deliveries must not exceed `at_most` (0 to 1).
    Lost { at_most: f64 },
}

const HELP: &str = "write p50<10ms, p99.9<1s, lost<1%, or several with commas between them";

impl FromStr for Slo {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Slo> {
        let terms = text.split(',').map(|term| term.trim().parse()).collect::<Result<_, _>>();
        Ok(Slo { terms: terms.with_context(|| format!("{text:?} is no service level: {HELP}"))? })
    }
}

impl FromStr for Term {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Term> {
        let (what, limit) = text.split_once(['<', '=']).context("there is no <")?;
        let limit = limit.trim_start_matches('=').trim();
        match what.trim() {
            "lost" => {
                let (number, unit) = limit.strip_suffix('%').map_or((limit, 1.0), |number| (number, 100.0));
                let at_most = number.trim().parse::<f64>().context("lost is a share, such as 0 or 1%")? / unit;
                ensure!((0.0..=1.0).contains(&at_most), "lost is a share, such as 0 or 1%");
                Ok(Term::Lost { at_most })
            }
            what => {
                let Some(percent) = what.strip_prefix('p') else { bail!("{what} is neither pNN nor lost") };
                let percent: f64 = percent.parse().with_context(|| format!("p{percent} is no percentile"))?;
                ensure!((0.0..100.0).contains(&percent), "a percentile is below 100");
                let below = humantime::parse_duration(limit).with_context(|| format!("{limit} is no time"))?;
                Ok(Term::Quantile { percent, below })
            }
        }
    }
}

impl fmt::Display for Slo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, term) in self.terms.iter().enumerate() {
            f.write_str(if index == 0 { "" } else { "," })?;
            match term {
                Term::Quantile { percent, below } => {
                    write!(f, "p{percent}<{}", humantime::format_duration(*below).to_string().replace(' ', ""))?;
                }
                Term::Lost { at_most } => write!(f, "lost<={}%", at_most * 100.0)?,
            }
        }
        Ok(())
    }
}

impl Slo {
    /// Returns the terms that this run missed, each with its figure. The list is empty if the run met all terms. A
    /// run without a test phase misses the objective.
    pub fn missed(&self, run: &Run) -> Vec<String> {
        let Some(test) = run.phase(PhaseName::Test) else { return vec!["nothing was measured".into()] };
        let due = test.latency_us.count() + test.counts.lost;
        let miss = |term: &Term| match *term {
            Term::Lost { at_most } => {
                let share = test.counts.lost as f64 / due.max(1) as f64;
                (share > at_most).then(|| format!("lost {:.3} %", share * 100.0))
            }
            Term::Quantile { percent, below } => {
                // The rank counts all expected deliveries; the histogram has only those that arrived, so the share is
                // converted.
                let rank = (percent / 100.0 * due as f64).ceil().max(1.0);
                let share = rank / test.latency_us.count().max(1) as f64;
                let us = (share <= 1.0).then(|| test.latency_us.quantile_us(share)).flatten();
                match us {
                    Some(us) if Duration::from_micros(us) < below => None,
                    Some(us) => Some(format!("p{percent} {:.1} ms", us as f64 / 1000.0)),
                    None => Some(format!("p{percent} not delivered")),
                }
            }
        };
        self.terms.iter().filter_map(miss).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{histogram::Histogram, recording::Phase};

    fn run(us: impl IntoIterator<Item = u64>, lost: u64) -> Run {
        let mut test = Phase { name: PhaseName::Test, latency_us: Histogram::default(), ..Phase::default() };
        us.into_iter().for_each(|us| test.latency_us.record_us(us));
        test.counts.lost = lost;
        Run { phases: vec![test], ..Run::default() }
    }

    #[test]
    fn run_keeps_or_misses_the_service_level() {
        let hundred = || 1..=100u64;
        for (slo, kept) in [
            ("p99<100us", true),
            ("p99<99us", false),
            ("p50<51us,p99<1ms", true),
            ("p50<51us,p99<1us", false),
            ("lost=0", true),
        ] {
            assert_eq!(slo.parse::<Slo>().unwrap().missed(&run(hundred(), 0)).is_empty(), kept, "{slo}");
        }
    }

    #[test]
    fn lost_message_counts_as_longest_latency() {
        let run = |lost| run(1..=100, lost);
        let p90: Slo = "p90<1s".parse().unwrap();
        assert!(p90.missed(&run(10)).is_empty());
        assert_eq!(p90.missed(&run(12)), ["p90 not delivered"]);
        let lost: Slo = "lost<1%".parse().unwrap();
        assert_eq!(lost.missed(&run(100)), ["lost 50.000 %"]);
        assert_eq!(lost.missed(&Run::default()).len(), 1);
    }

    #[test]
    fn service_level_round_trips() {
        for text in ["p99<100ms", "p99.9<1s,lost<=1%"] {
            assert_eq!(text.parse::<Slo>().unwrap().to_string(), text);
        }
        for (text, says) in [("p99", "no <"), ("p100<1s", "below 100"), ("mean<1s", "neither"), ("p9<soon", "no time")]
        {
            let error = format!("{:#}", text.parse::<Slo>().unwrap_err());
            assert!(error.contains(says) && error.contains("p99.9<1s"), "{error}");
        }
    }
}
