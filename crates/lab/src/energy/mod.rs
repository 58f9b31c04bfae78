//! What a radio costs: packets with their times in, joules out, on a virtual clock.
//!
//! The parameters are in `radios.toml`, each with its source. Read first: [`Radio::spend`], [`Radios::load`].

mod battery;
pub mod day;
mod radio;

pub use battery::{hours, lasts};
pub use radio::{Direction, Packet, Ping, Promotion, Radio, Radios, Small, Spent, State};
