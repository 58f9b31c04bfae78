use crate::member_id::MemberId;

/// One track of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    pub member: MemberId,
    pub track: usize,
}

impl Source {
    /// Mixed audio of a room.
    pub const MIX: Self = Self { member: MemberId::MIXER, track: 0 };
    /// Composite video of a room.
    pub const COMPOSITE: Self = Self { member: MemberId::MIXER, track: 1 };
}

/// Video codecs that a member may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VideoCodecs {
    #[default]
    All,
    /// Constrained Baseline of H.264 only, which the compositor decodes and encodes.
    Composite,
}

/// Direction of a member's media.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Sends, and receives the tracks of the others, which are offered by [`super::Event::Offer`].
    Member,
    /// Sends only (WHIP).
    Publisher,
    /// Receives tracks over the lines of its own offer (WHEP).
    Viewer,
}
