/// Identifier of a member. It is not reused for another member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MemberId {
    pub(crate) slot: u32,
    pub(crate) serial: u32,
}

impl MemberId {
    /// Pseudo-member that owns the mixed audio of a room.
    pub(crate) const MIXER: Self = Self { slot: u32::MAX, serial: 0 };

    #[cfg(test)]
    pub(crate) fn of_test(slot: u32) -> Self {
        Self { slot, serial: 1 }
    }
}
