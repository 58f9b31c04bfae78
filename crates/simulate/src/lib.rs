//! Simulated devices: cars that drive through a town, recorded drives that are replayed, a publisher that sends their
//! records to a server, the prices of a ticker, and the kit Earl with its LED module.
//!
//! This crate never links the server: it publishes like any other client. Except for [`publisher`],
//! [`answers`] and [`earl::terminal`], it does no I/O and reads no clock: time is an input, and every choice comes from
//! a seed.
//! Read first: [`fleet::Fleet`], [`town::Town`], [`record::Record`], [`publisher::Publisher`],
//! [`ticker::Market`], [`earl::Kit`].

pub mod answers;
pub mod earl;
pub mod fleet;
pub mod publisher;
pub mod receiver;
pub mod record;
pub mod replay;
pub mod rule;
pub mod ticker;
pub mod town;
