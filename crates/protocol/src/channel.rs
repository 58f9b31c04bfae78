use std::{
    borrow::Borrow,
    fmt,
    hash::{Hash, Hasher},
    sync::Arc,
};

use crate::error::{Code, Error};

/// Maximum length of a channel name or pattern, in bytes.
pub const NAME_BYTES_MAX: usize = 255;

/// Validated channel name: 1-255 bytes of `A-Z a-z 0-9 _ - . : /`, without an empty level. Cloning is cheap.
///
/// Source: docs/reference/protocol.md, "Words".
#[derive(Clone, Eq, PartialOrd, Ord)]
pub struct ChannelName(Arc<str>);

/// Names that share memory compare equal without reading their text, which is rarely in the processor cache. (`Arc`
/// has this shortcut only for sized types.)
impl PartialEq for ChannelName {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0 == other.0
    }
}

impl Hash for ChannelName {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl ChannelName {
    /// Validates a channel name.
    ///
    /// Errors: [`Code::BadChannel`], with the reason.
    pub fn parse(name: &str) -> Result<Self, Error> {
        check(name, |_| false)?;
        Ok(Self(name.into()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the first level. Configuration is set per namespace.
    pub fn namespace(&self) -> &str {
        self.0.split('/').next().unwrap_or(&self.0)
    }

    /// Returns the channel that holds the roster of this channel: `{channel}/:members`. `None` if the name is too long
    /// ([`ROSTER_NAME_BYTES_MAX`]), or if this channel is itself a roster or a channel of the server.
    pub fn members(&self) -> Option<Self> {
        let has_roster = self.0.len() <= ROSTER_NAME_BYTES_MAX && !is_internal(&self.0) && roster_of(&self.0).is_none();
        has_roster.then(|| Self([&self.0, MEMBERS].concat().into()))
    }
}

/// Channel name with wildcards as in MQTT: `+` matches one level, and `#` at the end matches any number of levels,
/// including none.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Pattern(Arc<str>);

impl Pattern {
    /// Returns true if `name` contains a wildcard, so that it is a pattern and not a channel.
    pub fn is_pattern(name: &str) -> bool {
        name.contains(['+', '#'])
    }

    /// Validates a pattern.
    ///
    /// Errors: [`Code::BadChannel`] for a bad character, a wildcard that is not a whole level, or `#` before the
    /// end.
    pub fn parse(pattern: &str) -> Result<Self, Error> {
        check(pattern, |level| level == "+" || level == "#")?;
        if pattern.split('/').rev().skip(1).any(|level| level == "#") {
            return Err(Error::new(Code::BadChannel, "`#` may only be the last level of a pattern"));
        }
        Ok(Self(pattern.into()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns true if the channel matches. A roster matches only patterns that end with `/:members`, so that a reader
    /// of `#` does not receive the rosters.
    pub fn matches(&self, channel: &str) -> bool {
        if is_internal(channel) || !self.may_match(channel) {
            return false;
        }
        let mut levels = channel.split('/');
        for wanted in self.0.split('/') {
            if wanted == "#" {
                return true;
            }
            match levels.next() {
                Some(level) if wanted == "+" || wanted == level => {}
                _ => return false,
            }
        }
        levels.next().is_none() || self.0.as_ref() == "#"
    }

    /// Returns false if the channel is a roster and this pattern does not end with `/:members`.
    pub(crate) fn may_match(&self, channel: &str) -> bool {
        roster_of(channel).is_none() || roster_of(&self.0).is_some()
    }

    /// Returns true if this pattern matches every channel that `asked`, a pattern or a name, matches. Channels of the
    /// server itself are never covered.
    pub fn covers(&self, asked: &str) -> bool {
        if is_internal(asked) || !self.may_match(asked) {
            return false;
        }
        // Every name has at least one level, so `#` matches the same names as `+/#`.
        let asked = if asked == "#" { "+/#" } else { asked };
        let mut levels = asked.split('/');
        for held in self.0.split('/') {
            if held == "#" {
                return true;
            }
            match levels.next() {
                Some(level) if held == level || (held == "+" && level != "#") => {}
                _ => return false,
            }
        }
        levels.next().is_none()
    }
}

fn check(name: &str, is_wildcard: fn(&str) -> bool) -> Result<(), Error> {
    let bad = |detail: String| Err(Error::new(Code::BadChannel, detail));
    if name.is_empty() || name.len() > NAME_BYTES_MAX {
        return bad(format!("a channel name has 1 to {NAME_BYTES_MAX} bytes, this one has {}", name.len()));
    }
    for level in name.split('/') {
        if level.is_empty() {
            return bad("a channel name has no empty level: no `/` at its start or end, no `//`".into());
        }
        let good = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.' | b':');
        if !is_wildcard(level) && !level.bytes().all(good) {
            return bad("a channel name is made of A-Z a-z 0-9 _ - . : and / between levels".into());
        }
    }
    Ok(())
}

impl fmt::Display for ChannelName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for ChannelName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Borrow<str> for ChannelName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

/// Namespace of the channels that the server itself uses. No pattern matches them, and no client may use them.
pub const INTERNAL: &str = ":millrace";

/// Namespace of the channels for operators. No pattern matches them, only operators may read them, and only the server
/// publishes to them. They belong to one node and never leave it.
pub const LOCAL: &str = ":admin";

/// Returns true for a channel of the server itself; see [`INTERNAL`] and [`LOCAL`].
pub fn is_internal(channel: &str) -> bool {
    is_in(channel, INTERNAL) || is_local(channel)
}

/// Returns true for a channel of a node for operators; see [`LOCAL`].
pub fn is_local(channel: &str) -> bool {
    is_in(channel, LOCAL)
}

fn is_in(channel: &str, namespace: &str) -> bool {
    channel.strip_prefix(namespace).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// End of the name of a channel that holds a roster.
const MEMBERS: &str = "/:members";

/// Maximum length of the name of a channel that has a roster, in bytes.
pub const ROSTER_NAME_BYTES_MAX: usize = NAME_BYTES_MAX - MEMBERS.len();

/// Returns the channel or pattern whose rosters this channel or pattern stands for: `chat/1` for `chat/1/:members`.
/// `None` for all other names.
pub fn roster_of(name: &str) -> Option<&str> {
    name.strip_suffix(MEMBERS)
}

/// Returns true if this channel holds the state of a room: `rooms/{room}/state`, which is always a keyed state.
pub fn is_room_state(channel: &str) -> bool {
    room_channel(channel) == Some("state")
}

/// Returns which channel of a room this is: `chat` for `rooms/kitchen/chat`. `None` for all other names.
fn room_channel(channel: &str) -> Option<&str> {
    Some(channel.strip_prefix("rooms/")?.split_once('/')?.1)
}

/// Returns true if only the server may publish to this channel: a roster, and the state, the reports and the inboxes of
/// a room.
///
/// Source: docs/reference/protocol.md, "Rooms" and "Presence".
pub fn is_reserved(channel: &str) -> bool {
    if roster_of(channel).is_some() {
        return true;
    }
    let Some(rest) = room_channel(channel) else { return false };
    matches!(rest, "state" | "reports" | "inbox") || rest.starts_with("inbox/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_names_are_refused() {
        for good in ["a", "cars/1/telemetry", "A-Z_0.9:x", &"x".repeat(255)] {
            assert!(ChannelName::parse(good).is_ok(), "{good}");
        }
        for bad in ["", "/", "a/", "/a", "a//b", "a b", "ä", "a/+/b", "a/#", "a?b", &"x".repeat(256)] {
            assert_eq!(ChannelName::parse(bad).unwrap_err().code, Code::BadChannel, "{bad}");
        }
        assert_eq!(ChannelName::parse("cars/1").unwrap().namespace(), "cars");
    }

    #[test]
    fn wildcards_match_like_mqtt() {
        let yes = [
            ("a/+/c", "a/b/c"),
            ("a/#", "a/b/c"),
            ("#", "a/b"),
            ("+", "a"),
            ("+/+", "a/b"),
            ("a/b", "a/b"),
            ("a/#", "a"),
        ];
        let no = [("a/+/c", "a/b/d"), ("a/+", "a"), ("a/+", "a/b/c"), ("+", "a/b"), ("a/b/#", "a/c")];
        for (pattern, name) in yes {
            assert!(Pattern::parse(pattern).unwrap().matches(name), "{pattern} {name}");
        }
        for (pattern, name) in no {
            assert!(!Pattern::parse(pattern).unwrap().matches(name), "{pattern} {name}");
        }
        for bad in ["a/#/b", "a+/b", "", "a//+"] {
            assert!(Pattern::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn no_pattern_matches_internal_channels() {
        for pattern in ["#", "+/#", "+/x", ":millrace/#", ":millrace/+", ":admin/#", ":admin/+"] {
            let pattern = Pattern::parse(pattern).unwrap();
            for channel in [":millrace/x", ":admin/x"] {
                assert!(!pattern.matches(channel) && !pattern.covers(channel), "{pattern:?} {channel}");
            }
            assert!(!pattern.covers(":millrace/#") && !pattern.covers(":admin/#"), "{pattern:?}");
        }
        for (channel, internal) in [
            (":admin", true),
            (":admin/follow/1", true),
            (":administration/x", false),
            (":millrace", true),
            (":millrace/x/y", true),
            (":millracer/x", false),
            ("a/:millrace", false),
            (":", false),
        ] {
            assert_eq!(is_internal(channel), internal, "{channel}");
        }
    }

    #[test]
    fn pattern_covers_only_patterns_inside_it() {
        let covers = |held: &str, asked: &str| Pattern::parse(held).unwrap().covers(asked);
        assert!(covers("cars/#", "cars/+/x") && covers("cars/+", "cars/7") && covers("#", "#") && covers("+/#", "#"));
        assert!(
            !covers("+", "#") && !covers("cars/+", "cars/#") && !covers("cars/7", "cars/+") && !covers("a/+/#", "a/#")
        );
        // Exhaustive check: the names include a level that no pattern contains, and one level more than any
        // pattern.
        let all = |levels: &[&str], depth: usize| {
            let mut all: Vec<String> = Vec::new();
            let mut last = vec![String::new()];
            for _ in 0..depth {
                last = last.iter().flat_map(|head| levels.iter().map(move |level| format!("{head}/{level}"))).collect();
                all.extend(last.iter().map(|path| path[1..].to_owned()));
            }
            all
        };
        let names = all(&["a", "b", "other"], 4);
        let patterns: Vec<_> =
            all(&["a", "b", "+", "#"], 3).iter().filter_map(|text| Pattern::parse(text).ok()).collect();
        assert!(patterns.len() > 50 && names.len() == 120);
        for held in &patterns {
            for asked in &patterns {
                let truth = names.iter().all(|name| held.matches(name) || !asked.matches(name));
                assert_eq!(
                    held.covers(asked.as_str()),
                    truth,
                    "{held} {asked}",
                    held = held.as_str(),
                    asked = asked.as_str()
                );
            }
        }
    }

    #[test]
    fn only_roster_patterns_match_rosters() {
        let roster = ChannelName::parse("chat/1").unwrap().members().unwrap();
        assert_eq!((roster.as_str(), roster_of(roster.as_str())), ("chat/1/:members", Some("chat/1")));
        for (pattern, is_match) in [
            ("#", false),
            ("chat/#", false),
            ("chat/1/+", false),
            ("+/+/+", false),
            ("chat/+/:members", true),
            ("+/1/:members", true),
            ("chat/1/:members", true),
            ("chat/2/:members", false),
        ] {
            let pattern = Pattern::parse(pattern).unwrap();
            assert_eq!(pattern.matches(roster.as_str()), is_match, "{pattern:?}");
            assert_eq!(pattern.covers(roster.as_str()), is_match, "{pattern:?}");
        }
        assert!(!Pattern::parse("chat/#").unwrap().covers("chat/+/:members"));
        assert!(roster.members().is_none() && ChannelName::parse(":millrace/x").unwrap().members().is_none());
        assert!(ChannelName::parse(&"x".repeat(246)).unwrap().members().is_some());
        assert!(ChannelName::parse(&"x".repeat(247)).unwrap().members().is_none());
        assert_eq!(roster_of(":members"), None);
    }

    #[test]
    fn room_channels_and_rosters_are_reserved() {
        for (channel, reserved) in [
            ("chat/:members", true),
            ("chat/:members/x", false),
            ("rooms/a/state", true),
            ("rooms/a/reports", true),
            ("rooms/a/inbox/1", true),
            ("rooms/a/inbox", true),
            ("rooms/a/chat", false),
            ("rooms/a/data", false),
            ("rooms/a/state/x", false),
            ("rooms/state", false),
            ("room/a/state", false),
        ] {
            assert_eq!(is_reserved(channel), reserved, "{channel}");
            assert_eq!(is_room_state(channel), channel == "rooms/a/state", "{channel}");
        }
    }
}
