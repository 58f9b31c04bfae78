use millrace_protocol::{ChannelName, Pattern};

/// Number of buckets over which channels are spread. All keys of a bucket share one hash tag. So one function call may
/// touch a channel, its index and its pub/sub channels, and a cluster spreads the buckets over its nodes. A changed
/// number loses every channel.
pub const BUCKETS: u32 = 256;

/// Names of all keys and pub/sub channels in Redis. See docs/reference/engines.md, "Keys in Redis".
pub struct Keys(String);

impl Keys {
    pub fn new(prefix: &str) -> Self {
        Self(prefix.into())
    }

    pub fn meta(&self, channel: &ChannelName) -> String {
        self.of('m', channel)
    }

    pub fn log(&self, channel: &ChannelName) -> String {
        self.of('s', channel)
    }

    /// Returns the pub/sub channel for the publications of a channel.
    pub fn publications(&self, channel: &ChannelName) -> String {
        self.of('c', channel)
    }

    pub fn idempotency(&self, channel: &ChannelName, key: &str) -> String {
        format!("{} {key}", self.of('i', channel))
    }

    /// Returns the keys of a state, in the order of `state_of` in `library.lua`: entries, offsets, deletions, and the
    /// sorted set of the bucket with the keys that have a time to live.
    pub fn state(&self, channel: &ChannelName) -> [String; 4] {
        let expiry = self.expiry(bucket(channel));
        [self.of('k', channel), self.of('o', channel), self.of('d', channel), expiry]
    }

    /// Returns the sorted set of a bucket: keys of states with a time to live, ordered by its end.
    pub fn expiry(&self, bucket: u32) -> String {
        format!("{}:{{{bucket}}}:expiry", self.0)
    }

    /// Returns the string that the node holds which deletes expired keys at the moment.
    pub fn sweeper(&self) -> String {
        format!("{}:sweeper", self.0)
    }

    /// Returns the sorted set of a bucket: its channels, ordered by the time when their history ends.
    pub fn index(&self, bucket: u32) -> String {
        format!("{}:{{{bucket}}}:index", self.0)
    }

    /// Returns the pub/sub channel for the publications of all channels of a bucket.
    pub fn all(&self, bucket: u32) -> String {
        format!("{}:{{{bucket}}}:all", self.0)
    }

    /// Returns the sorted set of nodes, ordered by the end of their leases.
    pub fn nodes(&self) -> String {
        format!("{}:nodes", self.0)
    }

    /// Returns the pub/sub channel that one node reads, or with `None` the one that every node reads.
    pub fn node(&self, node: Option<&str>) -> String {
        match node {
            Some(node) => format!("{}:node:{node}", self.0),
            None => format!("{}:node", self.0),
        }
    }

    /// Returns a glob that matches the pub/sub channels of all channels that match the pattern, and possibly of
    /// others.
    pub fn glob(&self, pattern: &Pattern) -> String {
        // No other character of a pattern has a meaning in a glob.
        let glob = match pattern.as_str() {
            "#" => "*".into(),
            pattern => {
                pattern.strip_suffix("/#").map_or(pattern.into(), |before| format!("{before}*")).replace('+', "*")
            }
        };
        format!("{}:{{*}}:c:{glob}", self.0)
    }

    fn of(&self, what: char, channel: &ChannelName) -> String {
        format!("{}:{{{}}}:{what}:{channel}", self.0, bucket(channel))
    }
}

/// Returns the bucket of a channel: its FNV-1a hash, which is the same on every machine and in every version.
pub fn bucket(channel: &ChannelName) -> u32 {
    let mix = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    let hash = channel.as_str().bytes().fold(0x811c_9dc5, mix);
    (hash ^ (hash >> 16)) % BUCKETS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_key_names_are_stable() {
        let channel = ChannelName::parse("cars/1").unwrap();
        let keys = Keys::new("millrace");
        let tag = format!("{{{}}}", bucket(&channel));
        assert_eq!(keys.meta(&channel), format!("millrace:{tag}:m:cars/1"));
        assert_eq!(bucket(&channel), 120);
        let state = ["k:cars/1", "o:cars/1", "d:cars/1", "expiry"].map(|name| format!("millrace:{tag}:{name}"));
        assert_eq!(keys.state(&channel), state);
        let glob = |pattern| keys.glob(&Pattern::parse(pattern).unwrap());
        assert_eq!(glob("#"), "millrace:{*}:c:*");
        assert_eq!(glob("a/#"), "millrace:{*}:c:a*");
        assert_eq!(glob("a/+/b"), "millrace:{*}:c:a/*/b");
    }
}
