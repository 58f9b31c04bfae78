//! `millrace lab heartbeat`: finds the longest heartbeat interval for the network of this machine.

use std::{process::ExitCode, time::Duration};

use anyhow::bail;
use clap::Args as ClapArgs;
use millrace_client::{
    heartbeat::{Finder, Found, HeartbeatError, Limits, Measured, Progress, granted, search},
    server::Server,
};
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};

use super::exit::{EXIT_INTERRUPTED, EXIT_MISSED};
use crate::{argument::ArgumentError, login::Login, number::number, output, retry::duration, trust::Trust};

/// Heartbeat intervals are whole seconds.
const STEP: Duration = Duration::from_secs(1);
const PRECISION: f64 = 0.05;
/// A server sends a heartbeat up to a second before or after it is due.
const LATE_MAX: Duration = Duration::from_secs(1);
const LONGEST: std::ops::RangeInclusive<Duration> = Duration::from_secs(10)..=Duration::from_secs(12 * 60 * 60);

#[derive(Debug, ClapArgs)]
#[command(
    after_help = "Middleboxes drop connections that are silent for too long, and notify neither end. This command opens WebSockets that ask the server for heartbeats of different intervals, and waits for the first heartbeat of each. If it arrives, the network keeps connections through a silence of this length. The search needs about three times the silence that the network permits, and at most six rounds of --parallel connections. The server must permit the interval: limits.heartbeat_max is 10 min by default.\n\n\
    The suggestion is 80 % of the longest survived silence, less a second. A client requests it with heartbeat=, for example heartbeat=300.\n\n\
    Exit codes: 0 an interval is suggested, 1 no connection survived the shortest silence, 3 error, 130 interrupted.\n\n\
    Example: a phone network, from a computer that uses it\n  millrace lab heartbeat --to https://app.example\n\
    Example: shorter, as JSON\n  millrace lab heartbeat --to http://127.0.0.1:8080 --max 1m --json"
)]
pub struct Args {
    /// URL of a Millrace server on the other side of the network
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8080", value_parser = Server::parse)]
    to: Server,
    /// Longest silence to probe, 10s to 12h
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = longest)]
    max: Duration,
    /// Connections that are probed at the same time
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = number::<usize, _>(2..=32))]
    parallel: usize,
    /// Print JSON: silences in seconds, and the suggested interval
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    login: Login,
    #[command(flatten)]
    trust: Trust,
}

fn longest(text: &str) -> Result<Duration, ArgumentError> {
    let longest = duration(text)?;
    match LONGEST.contains(&longest) && longest.subsec_nanos() == 0 {
        true => Ok(longest),
        false => Err(ArgumentError::expected("whole seconds from 10s to 12h, for example 30m")),
    }
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    args.trust.decide()?;
    let server = args.to.with_token(args.login.token()?);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut interrupted = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        let mut finder = finder(&server, args.max, args.parallel).await?;
        let limits = *finder.limits();
        let mut progress = report;
        let is_complete = tokio::select! {
            searched = search(&server, &mut finder, &mut progress) => {
                if let Err(error) = searched {
                    output::note(describe(&finder.found(), &limits));
                    bail!(error);
                }
                true
            }
            _ = interrupted.0.recv() => false,
            _ = interrupted.1.recv() => false,
        };
        let found = finder.found();
        if args.json {
            output::line(to_json(&found, limits.max, is_complete))?;
        } else {
            output::line(describe(&found, &limits))?;
        }
        Ok(match (is_complete, found.suggested) {
            (false, _) => ExitCode::from(EXIT_INTERRUPTED),
            (true, Some(_)) => ExitCode::SUCCESS,
            (true, None) => ExitCode::from(EXIT_MISSED),
        })
    })
}

/// Returns a finder for the intervals that the server grants.
async fn finder(server: &Server, max: Duration, parallel: usize) -> anyhow::Result<Finder> {
    let least = granted(server, STEP).await?;
    let most = granted(server, max).await?;
    if most < max {
        let (most, max) = (time(most), time(max));
        output::note(format_args!(
            "the server grants no heartbeat interval above {most}, so no silence up to {max} can be probed; to probe it, raise limits.heartbeat_max"
        ));
    }
    let limits = Limits { min: least, max: most, step: STEP, parallel, precision: PRECISION };
    Finder::new(limits).map_err(|error| HeartbeatError::from(error).into())
}

fn report(progress: Progress) {
    match progress {
        Progress::Round(silences) => {
            let all = silences.iter().map(|silence| time(*silence)).collect::<Vec<_>>().join(", ");
            output::note(format_args!("silent connections: {all}"));
        }
        Progress::Measured(Measured { silence, has_survived }) => {
            let outcome = if has_survived { "survived" } else { "did not survive" };
            output::note(format_args!("a connection {outcome} {} of silence", time(silence)));
        }
    }
}

/// Describes a result, complete or not. `limits`: the intervals that the server grants.
fn describe(found: &Found, limits: &Limits) -> String {
    let Found { survived, died, contradictions, probes, suggested } = *found;
    let what = match (survived, died) {
        (Some(survived), Some(died)) => format!(
            "This network keeps a connection that is silent for {}, and drops one that is silent for {}.",
            time(survived),
            time(died)
        ),
        (Some(survived), None) if survived >= limits.max - LATE_MAX => {
            format!(
                "This network keeps connections that are silent for {}. No longer silence was probed.",
                time(survived)
            )
        }
        (Some(survived), None) => {
            format!("This network keeps a connection that is silent for {}; the rest is unknown.", time(survived))
        }
        (None, Some(died)) => format!("This network drops even a connection that is silent for {}.", time(died)),
        (None, None) => "Nothing is known: no probe has ended.".into(),
    };
    let doubt = match contradictions {
        0 => String::new(),
        n => format!(" {n} connections survived a longer silence, so the network does not always behave the same."),
    };
    let suggestion = match suggested {
        Some(interval) if interval < limits.min => format!(
            "\nSuggested heartbeat interval: {0}. Clients can request no interval below {1}: set limits.heartbeat=\"{2}s\".",
            time(interval),
            time(limits.min),
            interval.as_secs()
        ),
        Some(interval) => {
            format!("\nSuggested heartbeat interval: {} (heartbeat={})", time(interval), interval.as_secs())
        }
        None => "\nNo interval can be suggested.".into(),
    };
    format!("{what} {probes} connections were probed.{doubt}{suggestion}")
}

fn to_json(found: &Found, max: Duration, is_complete: bool) -> serde_json::Value {
    let s = |time: Option<Duration>| time.map(|time| time.as_secs_f64());
    json!({
        "survived_s": s(found.survived),
        "died_s": s(found.died),
        "suggested_s": found.suggested.map(|interval| interval.as_secs()),
        "probed_max_s": max.as_secs(),
        "probes": found.probes,
        "contradictions": found.contradictions,
        "complete": is_complete,
    })
}

/// Formats a time with a tenth of a second, or with whole seconds from a minute on.
fn time(time: Duration) -> String {
    let tenths = Duration::from_millis(time.as_millis() as u64 / 100 * 100);
    let whole = Duration::from_secs(time.as_secs());
    humantime::format_duration(if time < Duration::from_secs(60) { tenths } else { whole }).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(survived_s: Option<u64>, died_s: Option<u64>, suggested_s: Option<u64>) -> Found {
        let s = |s: Option<u64>| s.map(Duration::from_secs);
        Found { survived: s(survived_s), died: s(died_s), suggested: s(suggested_s), probes: 20, contradictions: 0 }
    }

    #[test]
    fn result_says_what_is_known() {
        let (min, max) = (Duration::from_secs(5), Duration::from_secs(600));
        let limits = Limits { min, max, step: STEP, parallel: 8, precision: PRECISION };
        for (found, says) in [
            (found(Some(478), Some(490), Some(381)), &["for 7m 58s", "for 8m 10s", "6m 21s (heartbeat=381)"][..]),
            (found(Some(600), None, Some(479)), &["for 10m. No longer silence"]),
            (found(Some(60), None, Some(47)), &["for 1m; the rest is unknown"]),
            (found(Some(6), Some(8), Some(4)), &["interval: 4s. Clients", "limits.heartbeat=\"4s\""]),
            (found(None, Some(5), None), &["drops even", "for 5s", "No interval"]),
            (found(None, None, None), &["Nothing is known"]),
        ] {
            let text = describe(&found, &limits);
            assert!(says.iter().all(|part| text.contains(part)), "{text}");
        }
        let unsure = Found { contradictions: 2, ..found(Some(5), Some(30), Some(3)) };
        assert!(describe(&unsure, &limits).contains("2 connections survived a longer silence"));
    }

    #[test]
    fn longest_silence_has_limits() {
        assert_eq!(longest("30m"), Ok(Duration::from_secs(1800)));
        for wrong in ["9s", "13h", "10500ms", "ten"] {
            assert!(longest(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn times_have_no_more_digits_than_needed() {
        assert_eq!(time(Duration::from_millis(5_368)), "5s 300ms");
        assert_eq!(time(Duration::from_millis(90_700)), "1m 30s");
    }
}
