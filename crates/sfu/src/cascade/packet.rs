//! Names of nodes and tracks, and one media packet.

use std::sync::Arc;

/// Maximum number of layers of a track.
pub const LAYERS_MAX: usize = 4;

/// Name of a node: that of its engine, which is new at every start.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(Arc<str>);

/// Maximum length of a node's name in bytes.
pub const NODE_BYTES_MAX: usize = 64;

impl NodeId {
    /// Creates a node's name. `None`: it is empty or longer than [`NODE_BYTES_MAX`].
    pub fn new(name: &str) -> Option<Self> {
        (1..=NODE_BYTES_MAX).contains(&name.len()).then(|| Self(name.into()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Number of a local track. A node never uses it for another track, so that it names the track in every table, in wants
/// and in packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Handle(pub u32);

/// One media packet that crosses a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    pub layer: u8,
    pub codec: Codec,
    /// Extended sequence number that the publisher gave the packet.
    pub sequence: u64,
    /// Extended RTP timestamp.
    pub time: u64,
    pub marker: bool,
    /// Audio level in decibels below the maximum, and whether the packet contains speech.
    pub audio_level: Option<(u8, bool)>,
    pub orientation: Option<u8>,
    pub payload: Arc<[u8]>,
}

/// A set of layers, one bit for each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Layers(pub u8);

impl Layers {
    pub const NONE: Self = Self(0);

    pub fn contains(self, layer: usize) -> bool {
        layer < LAYERS_MAX && self.0 >> layer & 1 == 1
    }

    pub fn insert(&mut self, layer: usize) {
        if layer < LAYERS_MAX {
            self.0 |= 1 << layer;
        }
    }

    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    pub fn iter(self) -> impl Iterator<Item = usize> {
        (0..LAYERS_MAX).filter(move |layer| self.contains(*layer))
    }
}

/// Codec of a packet. The number on the link never changes its meaning within one version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Codec(u8);

impl Codec {
    /// Number of different codecs.
    pub const COUNT: u8 = 16;

    /// `None`: the number is not below [`Codec::COUNT`].
    pub fn new(number: u8) -> Option<Self> {
        (number < Self::COUNT).then_some(Self(number))
    }

    pub fn number(self) -> u8 {
        self.0
    }
}
