//! Log-and-cursor core of delivery. A channel is a bounded log; a reader is a cursor into that log.
//!
//! This crate does no I/O, reads no clock and starts no thread. Bytes leave through [`Wire`], requests leave
//! through [`Output`], and time is an argument.
//!
//! Read first: [`Hub`] (live delivery of one shard), [`History`] (order and past publications, inside an engine),
//! [`WireLog`].

mod cache;
mod history;
mod hub;
mod idempotency;
mod log;
mod page;
mod state;

pub use cache::{prefetch, prefetch_at};
pub use history::{Appended, Bounds, History, SavedHistory};
pub use hub::{ChannelKey, Config, ConnId, FirstPage, HasRoster, Hub, Lag, Memory, Output, ReadTicket, WaiterId, Wire};
pub use log::{Pool, SEGMENT_BYTES, WireLog};
pub use page::{Page, PageLimit, Part};
pub use state::{State, check_expected, check_fits, current_position, no_room_for_keys, no_state, too_many_keys};
