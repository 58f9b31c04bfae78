//! Rooms: membership and signaling between participants. [`millrace_room`] makes all decisions; this module
//! connects it to HTTP and channels.
//!
//! The room's name determines the shard that holds its state. A request accepted by another shard is forwarded
//! ([`Conference::ask`](crate::Conference)). A room publishes its state and signals to channels, so that every
//! transport delivers them and clients can recover after a disconnect.
//!
//! - [`open`]: the open rooms of one shard
//! - [`shared`]: the numbers of rooms and mixers of the node
//! - [`publish`]: publications of rooms
//! - [`changes`]: the effects of a change of a room
//! - [`http`]: the requests of participants
//! - [`list`]: the rooms of a shard, for lists
//! - [`moderate`]: the requests of moderators
//! - [`report`]: the checks of participants' reports
//! - [`request`], [`perform`]: requests after the checks of permissions, and their effects on the node that owns the
//!   room
//!
//! Source: docs/reference/rooms.md; docs/reference/protocol.md, "Rooms".

mod changes;
mod config;
mod http;
mod list;
mod moderate;
mod names;
mod open;
mod perform;
mod publish;
mod report;
mod request;
mod shared;

pub(crate) use changes::{apply, set_composite, tick};
pub use config::Config;
pub(crate) use http::{ENDPOINTS, Path, answer};
pub use list::{RoomOrder, RoomSelection, RoomSummary};
pub use names::RoomName;
pub use open::Rooms;
pub(crate) use perform::perform;
pub(crate) use publish::{finish_in_background, signal_from_switch};
pub(crate) use request::Request;
pub(crate) use shared::MixerSlot;
pub use shared::Shared;
