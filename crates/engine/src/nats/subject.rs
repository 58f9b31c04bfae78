//! Maps channels to subjects. Levels become tokens. The character `.` is valid in channel names but not in a token, so
//! it becomes `=`, which no channel name contains.
//!
//! ```text
//! PREFIX.log.CLASS.EPOCH.a.b    publications of `a/b` are appended here (stored in the stream of its class)
//! PREFIX.live.CLASS.EPOCH.a.b   the server republishes stored messages here; subscribers get no refused messages
//! PREFIX.tell, PREFIX.tell.NODE messages between nodes
//! PREFIX.lease.NODE             lease of a node
//! ```
//!
//! CLASS is a namespace with its own limits, or `@` for all others; `NAMESPACE@members` for the rosters of a namespace
//! (`@members` for those of all others); `:millrace@states` for the states of the server itself, and `rooms@states` for
//! those of rooms. EPOCH belongs to the stream. A stream that was lost is created again with a new epoch. So a node
//! that has not noticed the loss writes and reads on a subject without a stream.

use std::fmt::Write;

use millrace_protocol::{ChannelName, Epoch, Pattern, session::Target};

/// Class of the namespaces without limits of their own.
pub const DEFAULT_CLASS: &str = "@";

/// Returns a level of a channel name as a token.
pub fn token(level: &str) -> String {
    level.replace('.', "=")
}

/// Returns the levels of a channel as tokens.
pub fn of_channel(channel: &ChannelName) -> String {
    tokens(channel.as_str())
}

fn tokens(levels: &str) -> String {
    levels
        .chars()
        .map(|c| {
            if c == '.' {
                '='
            } else if c == '/' {
                '.'
            } else {
                c
            }
        })
        .collect()
}

/// Returns subjects that match the same channels as the pattern. `#` also matches the level before it, but `>` does
/// not, so two subjects may be needed.
pub fn of_pattern(pattern: &Pattern) -> Vec<String> {
    let tokens: Vec<_> = pattern
        .as_str()
        .split('/')
        .map(|level| match level {
            "+" => "*".into(),
            "#" => ">".into(),
            level => token(level),
        })
        .collect();
    let whole = tokens.join(".");
    match tokens.split_last() {
        Some((last, before)) if last == ">" && !before.is_empty() => vec![before.join("."), whole],
        _ => vec![whole],
    }
}

/// Returns the subjects under `PREFIX.live` to subscribe to, for every class and epoch.
pub fn of_target(prefix: &str, target: &Target) -> Vec<String> {
    let subjects = match target {
        Target::Channel(channel) => vec![of_channel(channel)],
        Target::Pattern(pattern) => of_pattern(pattern),
    };
    subjects.into_iter().map(|subject| format!("{prefix}.live.*.*.{subject}")).collect()
}

/// Parses a subject under `PREFIX.live` or `PREFIX.log` into epoch and channel. Returns `None` for any other subject.
pub fn parse(prefix: &str, subject: &str) -> Option<(Epoch, ChannelName)> {
    let rest = subject.strip_prefix(prefix)?.strip_prefix('.')?;
    let (_, rest) = rest.split_once('.')?;
    let (_, rest) = rest.split_once('.')?;
    let (epoch, tokens) = rest.split_once('.')?;
    let name: String = tokens
        .chars()
        .map(|c| {
            if c == '.' {
                '/'
            } else if c == '=' {
                '.'
            } else {
                c
            }
        })
        .collect();
    Some((parse_epoch(epoch)?, ChannelName::parse(&name).ok()?))
}

pub fn epoch(epoch: Epoch) -> String {
    format!("{:08x}", epoch.0)
}

pub fn parse_epoch(token: &str) -> Option<Epoch> {
    let is_hex = token.len() == 8 && token.bytes().all(|b| b.is_ascii_hexdigit());
    is_hex.then(|| u32::from_str_radix(token, 16).ok().map(Epoch)).flatten()
}

/// Returns the message ID by which the stream detects duplicates. A header is one line and a key may contain any
/// character, so the key is escaped.
pub fn message_id(epoch: Epoch, channel: &ChannelName, key: &str) -> String {
    let mut id = format!("{:08x}/{channel}/", epoch.0);
    for byte in key.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_') {
            id.push(byte.into());
        } else {
            write!(id, "%{byte:02x}").expect("strings take all");
        }
    }
    id
}

#[cfg(test)]
mod tests {
    use super::*;

    fn channel(name: &str) -> ChannelName {
        ChannelName::parse(name).unwrap()
    }

    #[test]
    fn subject_round_trips() {
        for name in ["a", "cars/1/telemetry", "v1.2/x:y", "./..", "A-Z_0.9:x", "live/log"] {
            let subject = format!("my.live.@.5f0c12ab.{}", of_channel(&channel(name)));
            assert_eq!(parse("my", &subject), Some((Epoch(0x5f0c_12ab), channel(name))), "{subject}");
        }
        for bad in ["my.live.@.5f0c12ab", "my.live.@.5f.a", "other.live.@.5f0c12ab.a", "my.live.@.5f0c12ab.a b", ""] {
            assert_eq!(parse("my", bad), None, "{bad}");
        }
    }

    #[test]
    fn pattern_subjects_match_same_channels() {
        let subjects = |pattern| of_pattern(&Pattern::parse(pattern).unwrap());
        assert_eq!(subjects("cars/+/x.y"), ["cars.*.x=y"]);
        assert_eq!(subjects("cars/#"), ["cars", "cars.>"]);
        assert_eq!(subjects("+/#"), ["*", "*.>"]);
        assert_eq!(subjects("#"), [">"]);
        let target = Target::Channel(channel("a/b"));
        assert_eq!(of_target("my", &target), ["my.live.*.*.a.b"]);
    }

    #[test]
    fn message_ids_are_distinct_and_without_newline() {
        let id = |name: &str, key| message_id(Epoch(1), &channel(name), key);
        assert_eq!(id("a", "x\r\ny/ü"), "00000001/a/x%0d%0ay%2f%c3%bc");
        assert_ne!(id("a/b", "c"), id("a", "b/c"));
    }
}
