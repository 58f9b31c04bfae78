use std::time::Duration;

use super::{participant::NAME_BYTES_MAX, topology::Topology};

/// Reason why a room refuses a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("a name has at most {NAME_BYTES_MAX} bytes and no control characters")]
    BadName,
    #[error("the room has the topology `{0}`: join with it, or without one")]
    OtherTopology(Topology),
    #[error("this server has no SFU, so no room can have the topology `switch`")]
    NoSwitch,
    #[error(
        "this server mixes no audio, so no room has the topology `mixer`; `rooms.mixers_max` is 0, or `rtc.listen` is off"
    )]
    NoMixer,
    #[error("the room is full: a room of the topology `{0}` has at most {1} participants")]
    Full(Topology, usize),
    #[error("this client has {0} of the {1} places in this room, and the free ones are kept for others")]
    ClientQuota(usize, usize),
    #[error("there is no such participant in the room, or it has left")]
    NotFound,
    #[error("the secret does not belong to this participant")]
    WrongSecret,
    #[error("only the host may moderate: the participant who has been in the room longest")]
    NotHost,
    #[error("the room is locked: a moderator must unlock it before you can join")]
    Locked,
    #[error("the ticket is not valid any more: it was used, or its participant has left")]
    TicketUsed,
    #[error("the participant sends signals and reports faster than its limit")]
    TooFast(Duration),
}
