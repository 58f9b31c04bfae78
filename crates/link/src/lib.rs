//! One emulated network path without I/O: loss, rate with a queue, delay, jitter, NAT and radio, from a seed.
//!
//! A [`Link`] has one [`Pipe`] per direction. A packet passes the cells of its pipe in this order:
//!
//! 1. what both directions share: outage, NAT, radio promotion ([`Shared`])
//! 2. loss, duplication and corruption ([`loss`])
//! 3. a bottleneck: a rate or a trace, with a queue in front of it ([`bottleneck`])
//! 4. delay, jitter and hand-overs ([`delay`])
//!
//! The time is an input ([`Time`]), so an hour passes in seconds. Each cell has random numbers of its own: a change of
//! the jitter does not change which packets are lost. The same seed and the same packets give the same result.
//!
//! Not supported: more than one queue per direction, ECN, links that drop by signal strength.
//!
//! Read first: [`Link`], [`Config`], [`Counters`].

pub mod bottleneck;
mod codel;
mod config;
mod counters;
pub mod delay;
mod direction;
mod link;
pub mod loss;
mod nat;
mod nat_table;
mod packet;
mod pipe;
mod probability;
mod profile;
mod queue_limit;
mod radio;
mod random;
mod rate;
mod schedule;
mod shared;
pub mod stream;
mod time;
mod trace;

pub use codel::CodelConfig;
pub use config::{Config, ConfigError, Handover, PipeConfig};
pub use counters::{Cause, Counters};
pub use direction::Direction;
pub use link::{Link, Traces};
pub use nat::{Nat, OnIdle};
pub use packet::{Flow, Packet};
pub use pipe::Pipe;
pub use probability::Probability;
pub use profile::{Profile, profiles};
pub use queue_limit::QueueLimit;
pub use radio::{Middle, Radio};
pub use rate::Rate;
pub use schedule::Repeated;
pub use shared::Shared;
pub use time::Time;
pub use trace::{Trace, TraceError};
