//! Lists that the servers keep as keyed states: the members of channels, the channels with readers, and the open
//! connections. Only servers write them.
//!
//! Each node writes the numbers of its own connections into the entries, by compare-and-set, so that no number is lost
//! when nodes change one entry at the same time. If a node dies, another node removes it from all entries.
//!
//! [`Writer`] decides; it has no clock and does no I/O, so a seed replays every behavior. [`Presence`] runs it on a
//! thread of its own. This crate never sees a publication of a client.
//!
//! Read first: [`Writer`], [`Entry`], [`Presence`].

mod cleanup;
mod inbox;
mod list;
pub mod lists;
mod nodes;
mod presence;
mod request;
mod writer;

pub use inbox::{GraceOf, Wanted};
pub use millrace_protocol::ListEntry as Entry;
pub use presence::{Consumer, Presence, execute};
pub use request::{Request, RequestId, Response};
pub use writer::{Now, Stats, Writer};
