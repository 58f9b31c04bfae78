//! Media hosting: connects the SFU of a shard with rooms and HTTP sessions.
//!
//! - [`members`]: the owners of the members of the SFU
//! - [`participants`]: room participants, which signal through the room
//! - [`mixing`]: rooms whose audio is mixed
//! - [`sfu`]: the SFU of a shard
//! - [`links`]: the links of the SFU to those of other nodes
//! - [`protocol`]: the SFU as a protocol of the shard's datagram port, and its events
//! - [`whip`]: publishers and viewers that use HTTP only
//!
//! The state machine of the SFU is [`millrace_sfu::switch`].

mod links;
mod members;
mod mixing;
mod participants;
mod protocol;
mod sfu;
mod whip;

pub(crate) use members::LinkFigures;
pub use members::Media;
pub(crate) use participants::{handle_moved_signal, handle_signal, leave, mute, retain};
pub(crate) use protocol::SfuProtocol;
pub(crate) use sfu::Sfu;
pub(crate) use whip::{ENDPOINTS, Path, answer};
