//! Who gets what, and when. A channel is a bounded log; a reader is a cursor into it.
//!
//! Nothing here does I/O, asks a clock or starts a thread: bytes leave through [`Wire`], wishes through [`Output`], and time is an argument.
//!
//! Read first: [`Hub`] (the live side of one shard), [`History`] (order and the past, inside an engine), [`WireLog`].

mod cache;
mod history;
mod hub;
mod log;

pub use cache::{prefetch, prefetch_at};
pub use history::{Appended, Bounds, History, Page, PageLimit};
pub use hub::{ChannelKey, Config, ConnId, Hub, Memory, Output, ReadTicket, WaiterId, Wire};
pub use log::{Pool, SEGMENT_BYTES, WireLog};
