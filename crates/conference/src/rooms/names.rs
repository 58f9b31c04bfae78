//! Room names, and the channels of a room.

use millrace_protocol::{ChannelName, Code, Error};

/// Name of a room: one level of a channel name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RoomName(String);

impl RoomName {
    /// Parses a room name.
    ///
    /// Errors: [`Code::BadChannel`].
    pub fn parse(name: &str) -> Result<Self, Error> {
        if name.contains('/') {
            return Err(Error::new(Code::BadChannel, "a room's name has no `/`"));
        }
        let name = Self(name.to_owned());
        // Check the longest channel name of a room.
        ChannelName::parse(&format!("rooms/{}/inbox/{}", name.0, "0".repeat(32)))?;
        Ok(name)
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns a hash that selects the room's shard. It is the same on every node and after a restart.
    pub(crate) fn hash(&self) -> u64 {
        // FNV-1a, which is enough for names. Source: http://www.isthe.com/chongo/tech/comp/fnv/
        self.0.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
    }

    pub fn state(&self) -> ChannelName {
        self.channel("state")
    }

    pub fn chat(&self) -> ChannelName {
        self.channel("chat")
    }

    pub fn data(&self) -> ChannelName {
        self.channel("data")
    }

    pub fn reports(&self) -> ChannelName {
        self.channel("reports")
    }

    /// Channel for the permission to mute others: a caller that may publish to it may mute. Nothing is ever published
    /// to it.
    pub fn moderate(&self) -> ChannelName {
        self.channel("moderate")
    }

    pub fn inbox(&self, id: &str) -> ChannelName {
        self.channel(&format!("inbox/{id}"))
    }

    fn channel(&self, rest: &str) -> ChannelName {
        ChannelName::parse(&format!("rooms/{}/{rest}", self.0)).expect("a room's name is a good level")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_name_is_one_level() {
        assert_eq!(RoomName::parse("a").map(|name| name.inbox("7").to_string()), Ok("rooms/a/inbox/7".into()));
        for name in ["", "a/b", "+", "#", "a\nb", &"x".repeat(250)] {
            assert!(RoomName::parse(name).is_err(), "{name}");
        }
    }
}
