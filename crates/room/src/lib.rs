//! State of a room: its participants, its topology, and the notifications that a change causes. The room does
//! not command its participants; they follow its published state.
//!
//! No connections and no clock: requests and the time are inputs, notifications are outputs.
//!
//! [`ownership`]: which node runs a room whose participants are on several nodes.
//!
//! Source: docs/reference/rooms.md.
//!
//! Read first: [`Room`], [`Topology`], [`Config`].

mod config;
mod error;
pub mod ownership;
mod participant;
mod rate_limiter;
mod room;
mod topology;
mod tree;

pub use config::Config;
pub use error::Refused;
pub use participant::{Muted, NAME_BYTES_MAX, ParticipantId, Role};
pub use room::{Announced, Cell, Composite, Join, Joined, Output, Resume, Room};
pub use topology::{SWITCH, Topology};
