//! Fuzzes positions, places in history, names, patterns, the coverage of grants, and compression offers.
//!
//! Input: text. Each line is parsed as each of these. Each two consecutive lines are used as a pattern and a name
//! that the pattern may match.

#![no_main]

use std::time::{Duration, UNIX_EPOCH};

use libfuzzer_sys::fuzz_target;
use millrace_protocol::{
    ChannelName, Code, Expected, Grant, NAME_BYTES_MAX, Pattern, Permission, Position, Since, is_internal,
    session::Target, websocket::Deflate,
};

/// Maximum number of names that a pattern is tested with.
const NAMES_MAX: usize = 3000;

fuzz_target!(|text: &str| {
    let mut before = None;
    for line in text.split('\n').take(16) {
        position(line);
        since(line);
        expected(line);
        offer(line);
        let target = name(line);
        if let (Some(Target::Pattern(held)), Some(target)) = (&before, &target) {
            covers(held, target);
        }
        before = target;
    }
});

fn position(text: &str) {
    let Ok(position) = text.parse::<Position>() else { return };
    let shown = position.to_string();
    assert_eq!(shown.parse::<Position>().expect("a formatted position can be parsed"), position);
    let mut written = Vec::new();
    position.write(&mut written);
    assert_eq!(written, shown.as_bytes());
    assert!(matches!(text.parse::<Since>(), Ok(Since::Position(same)) if same == position), "{text:?}");
}

fn since(text: &str) {
    match text.parse::<Since>() {
        Err(error) => assert_eq!(error.code, Code::BadPosition),
        Ok(since) => {
            // A range with equal ends is empty; it is an error if the place cannot be an end.
            let is_fine = matches!(since, Since::Position(_) | Since::Time(_));
            assert_eq!(since.check_until(since).is_ok(), is_fine, "{text:?}");
            assert_eq!(since.to_string().parse::<Since>().expect("a shown start can be parsed"), since);
            assert_eq!(since.is_state(), text.starts_with("state"));
        }
    }
    // Every time has a form in RFC 3339, which may include an offset.
    let Ok(Since::Time(ms)) = text.parse::<Since>() else { return };
    assert!(ms.to_string().parse::<Since>().is_ok_and(|same| same == Since::Time(ms)), "{text:?}");
    // RFC 3339 cannot represent the year 10000.
    if ms < 253_402_300_800_000 {
        let shown = format_time(ms);
        assert_eq!(shown.parse::<Since>().expect(&shown), Since::Time(ms));
        let shifted = format_time((ms + 3_600_000).min(253_402_300_799_999)).replace('Z', "+01:00");
        assert!(shifted.parse::<Since>().is_ok(), "{shifted}");
    }
}

fn expected(text: &str) {
    match text.parse::<Expected>() {
        Ok(Expected::At(position)) => assert_eq!(position.to_string().parse(), Ok(Expected::At(position))),
        Ok(Expected::Absent) => assert_eq!(text.trim().trim_matches('"'), "0"),
        Err(error) => assert_eq!(error.code, Code::BadPosition),
    }
}

fn format_time(ms: u64) -> String {
    humantime::format_rfc3339_millis(UNIX_EPOCH + Duration::from_millis(ms)).to_string()
}

fn offer(text: &str) {
    let Some((deflate, answer)) = Deflate::negotiate(text) else { return };
    assert!(!answer.contains(','), "one answer: {answer}");
    let (same, again) = Deflate::negotiate(&answer).expect("an answer is an offer that can be met");
    assert_eq!((same, &again), (deflate, &answer));
}

fn name(text: &str) -> Option<Target> {
    let target = match Target::parse(text) {
        Ok(target) => target,
        Err(error) => {
            assert_eq!(error.code, Code::BadChannel);
            return None;
        }
    };
    assert_eq!(target.as_str(), text);
    assert!((1..=NAME_BYTES_MAX).contains(&text.len()) && text.split('/').all(|level| !level.is_empty()), "{text}");
    match &target {
        Target::Channel(channel) => {
            assert!(!text.contains(['+', '#']));
            assert!(text.starts_with(channel.namespace()));
        }
        Target::Pattern(pattern) => assert!(ChannelName::parse(pattern.as_str()).is_err()),
    }
    Some(target)
}

/// Checks the coverage of a pattern against all names of a small set of words.
fn covers(held: &Pattern, asked: &Target) {
    let (held_levels, asked_levels) = (levels(held.as_str()), levels(asked.as_str()));
    let mut grant = Grant::nothing();
    grant.allow(Permission::History, held.clone());
    let is_covered = held.covers(asked.as_str());
    assert_eq!(grant.check(Permission::History, asked).is_ok(), is_covered);
    assert!(grant.check(Permission::Publish, asked).is_err());
    if is_internal(asked.as_str()) {
        return assert!(!is_covered, "no client may use a channel of the server itself");
    }
    if let Target::Channel(name) = asked {
        assert_eq!(held.matches(name.as_str()), is_covered, "a name is covered if it matches");
    }
    // One word that occurs in neither, and one more level than either has. More words or levels would change no
    // result.
    let mut words = vec!["~"];
    words.extend(held_levels.iter().chain(&asked_levels).filter(|word| !["+", "#"].contains(word)));
    words.sort_unstable();
    words.dedup();
    let depth = held_levels.len().max(asked_levels.len()) + 1;
    if words.len().checked_pow(depth as u32).is_none_or(|names| names > NAMES_MAX) {
        return;
    }
    let mut expected = true;
    let mut names: Vec<Vec<&str>> = vec![vec![]];
    for _ in 0..depth {
        names =
            names.iter().flat_map(|name| words.iter().map(move |word| [name.as_slice(), &[*word]].concat())).collect();
        for name in &names {
            let joined = name.join("/");
            let is_client_name = !is_internal(&joined);
            let by_held = is_client_name && finds(&held_levels, name);
            assert_eq!(held.matches(&joined), by_held, "{held:?} {joined}");
            expected &= by_held || !(is_client_name && finds(&asked_levels, name));
        }
    }
    assert_eq!(is_covered, expected, "{held:?} {asked:?}");
}

fn levels(text: &str) -> Vec<&str> {
    text.split('/').collect()
}

/// Reference implementation of patterns: a roster is found only by a pattern whose last level names it.
fn finds(pattern: &[&str], name: &[&str]) -> bool {
    let is_roster = |levels: &[&str]| matches!(levels, [_, .., ":members"]);
    (!is_roster(name) || is_roster(pattern)) && matches(pattern, name)
}

/// Reference implementation of pattern matching, level by level.
///
/// Source: docs/reference/protocol.md, "Words".
fn matches(pattern: &[&str], name: &[&str]) -> bool {
    match (pattern, name) {
        (["#"], _) => true,
        (["+", pattern @ ..], [_, name @ ..]) => matches(pattern, name),
        ([wanted, pattern @ ..], [level, name @ ..]) => wanted == level && matches(pattern, name),
        (pattern, name) => pattern.is_empty() && name.is_empty(),
    }
}
