/// Identifier of a member. It is not reused for another member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MemberId {
    pub(crate) slot: u32,
    pub(crate) serial: u32,
}

/// Marks the slots of members of other nodes.
const REMOTE: u32 = 1 << 31;

impl MemberId {
    /// Pseudo-member that owns the mixed audio of a room.
    pub(crate) const MIXER: Self = Self { slot: u32::MAX, serial: 0 };

    /// Returns the id of a member of another node.
    pub(crate) fn remote(slot: usize, serial: u32) -> Self {
        Self { slot: REMOTE | slot as u32, serial }
    }

    pub(crate) fn is_remote(self) -> bool {
        self.slot & REMOTE != 0 && self != Self::MIXER
    }

    /// Returns the slot of a member of another node; `None` for other members.
    pub(crate) fn remote_slot(self) -> Option<usize> {
        self.is_remote().then_some((self.slot & !REMOTE) as usize)
    }

    #[cfg(test)]
    pub(crate) fn of_test(slot: u32) -> Self {
        Self { slot, serial: 1 }
    }
}
