//! How channels become subjects. Levels become tokens; the one character of channel names that NATS does not allow in a token, `.`, becomes
//! `=`, which no channel name has.
//!
//! ```text
//! PREFIX.log.CLASS.EPOCH.a.b    where `a/b` is appended (stored in the stream of its class)
//! PREFIX.live.CLASS.EPOCH.a.b   where the server republishes what it has stored: who is subscribed hears nothing that was refused
//! PREFIX.tell, PREFIX.tell.NODE messages between nodes
//! PREFIX.lease.NODE             a node lives
//! ```
//!
//! CLASS is a namespace that has bounds of its own, or `@` for all others. EPOCH belongs to the stream: one that was lost is made again with
//! another, so that whoever has not noticed yet writes and reads where nothing is.

use std::fmt::Write;

use millrace_protocol::{ChannelName, Epoch, Pattern, session::Target};

/// The class of the namespaces that have no bounds of their own.
pub const DEFAULT_CLASS: &str = "@";

/// A namespace as a token.
pub fn token(level: &str) -> String {
    level.replace('.', "=")
}

/// The channel's levels as tokens.
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

/// What matches the same: `#` stands for the level before it, too, and `>` does not.
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

/// What to subscribe to under `PREFIX.live`, whatever class and epoch.
pub fn of_target(prefix: &str, target: &Target) -> Vec<String> {
    let subjects = match target {
        Target::Channel(channel) => vec![of_channel(channel)],
        Target::Pattern(pattern) => of_pattern(pattern),
    };
    subjects.into_iter().map(|subject| format!("{prefix}.live.*.*.{subject}")).collect()
}

/// The epoch and the channel in a subject under `PREFIX.live` or `PREFIX.log`. `None` if it is none of ours.
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

/// What names one publication in the stream's memory of the last minutes. Headers are lines, and keys may hold anything.
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
    fn subjects_lead_back_to_their_channel() {
        for name in ["a", "cars/1/telemetry", "v1.2/x:y", "./..", "A-Z_0.9:x", "live/log"] {
            let subject = format!("my.live.@.5f0c12ab.{}", of_channel(&channel(name)));
            assert_eq!(parse("my", &subject), Some((Epoch(0x5f0c_12ab), channel(name))), "{subject}");
        }
        for bad in ["my.live.@.5f0c12ab", "my.live.@.5f.a", "other.live.@.5f0c12ab.a", "my.live.@.5f0c12ab.a b", ""] {
            assert_eq!(parse("my", bad), None, "{bad}");
        }
    }

    #[test]
    fn patterns_match_what_they_did() {
        let subjects = |pattern| of_pattern(&Pattern::parse(pattern).unwrap());
        assert_eq!(subjects("cars/+/x.y"), ["cars.*.x=y"]);
        assert_eq!(subjects("cars/#"), ["cars", "cars.>"]);
        assert_eq!(subjects("+/#"), ["*", "*.>"]);
        assert_eq!(subjects("#"), [">"]);
        let target = Target::Channel(channel("a/b"));
        assert_eq!(of_target("my", &target), ["my.live.*.*.a.b"]);
    }

    #[test]
    fn message_ids_are_one_line_and_differ() {
        let id = |name: &str, key| message_id(Epoch(1), &channel(name), key);
        assert_eq!(id("a", "x\r\ny/ü"), "00000001/a/x%0d%0ay%2f%c3%bc");
        assert_ne!(id("a/b", "c"), id("a", "b/c"));
    }
}
