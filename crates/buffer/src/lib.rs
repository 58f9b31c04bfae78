//! Store and forward: a bounded, durable queue of messages that wait for a server. The buffer decides the order of
//! sending, what to drop when it is full, when to retry, and what the journal contains.
//!
//! This crate never opens a file or a socket, never reads a clock and never starts a thread: the journal is a
//! [`Disk`], and the time is an input. So a seed replays a crash at any write (`tests/it`).
//!
//! Read first: [`Buffer`], [`Disk`], [`Config`].
//!
//! - `buffer.rs`: messages in, batches out, answers of the server in
//! - `queue.rs`: the index of waiting messages: order, priority, limits, retries
//! - `check.rs`: which messages the server already has, if it has forgotten their idempotency keys
//! - `record.rs`: records of the journal, their checksums, and recovery of a damaged journal
//! - `message.rs`: a message and its line in a batch
//!
//! Source: docs/adr/0028-store-and-forward-is-a-journal-of-lines.md.

mod buffer;
mod check;
mod message;
mod queue;
mod record;

pub use buffer::{Batch, Buffer, Disk, LineResult, OpenError, Outcome, PutError, Receipt, Step};
pub use check::{Check, HistoryMessage};
pub use message::{Message, MessageError, Urgent, one_line};
pub use queue::{Config, Counters, Stats};
pub use record::{FRAME_BYTES, RECORD_BYTES_MAX};
