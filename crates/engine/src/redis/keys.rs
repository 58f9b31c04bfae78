use millrace_protocol::{ChannelName, Pattern};

/// Channels are spread over so many buckets. All keys of a bucket have one hash tag, so that one function call may touch a channel, its index
/// and its pub/sub channels, and a cluster spreads the buckets over its nodes. Changing it loses every channel.
pub const BUCKETS: u32 = 256;

/// The names of everything in Redis. docs/engines.md, "Keys in Redis", has the list.
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

    /// Pub/sub channel of a channel.
    pub fn publications(&self, channel: &ChannelName) -> String {
        self.of('c', channel)
    }

    pub fn idempotency(&self, channel: &ChannelName, key: &str) -> String {
        format!("{} {key}", self.of('i', channel))
    }

    /// Channels of a bucket by when their past ends.
    pub fn index(&self, bucket: u32) -> String {
        format!("{}:{{{bucket}}}:index", self.0)
    }

    /// Pub/sub channel of all channels of a bucket.
    pub fn all(&self, bucket: u32) -> String {
        format!("{}:{{{bucket}}}:all", self.0)
    }

    /// Nodes by when their leases end.
    pub fn nodes(&self) -> String {
        format!("{}:nodes", self.0)
    }

    /// Pub/sub channel that one node reads, or every node.
    pub fn node(&self, node: Option<&str>) -> String {
        match node {
            Some(node) => format!("{}:node:{node}", self.0),
            None => format!("{}:node", self.0),
        }
    }

    /// A glob that matches the pub/sub channels of all channels that match, and maybe more.
    pub fn glob(&self, pattern: &Pattern) -> String {
        // No other character of a pattern means anything in a glob.
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

/// FNV-1a: the same on every machine and in every version.
pub fn bucket(channel: &ChannelName) -> u32 {
    let mix = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    let hash = channel.as_str().bytes().fold(0x811c_9dc5, mix);
    (hash ^ (hash >> 16)) % BUCKETS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_never_change() {
        let channel = ChannelName::parse("cars/1").unwrap();
        let keys = Keys::new("millrace");
        let tag = format!("{{{}}}", bucket(&channel));
        assert_eq!(keys.meta(&channel), format!("millrace:{tag}:m:cars/1"));
        assert_eq!(bucket(&channel), 120);
        let glob = |pattern| keys.glob(&Pattern::parse(pattern).unwrap());
        assert_eq!(glob("#"), "millrace:{*}:c:*");
        assert_eq!(glob("a/#"), "millrace:{*}:c:a*");
        assert_eq!(glob("a/+/b"), "millrace:{*}:c:a/*/b");
    }
}
