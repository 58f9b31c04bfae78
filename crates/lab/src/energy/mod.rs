//! Energy model of a radio: converts packets with times to joules, on a virtual clock.
//!
//! The parameters and their sources are in `radios.toml`. Read first: [`Radio::spend`], [`Radios::load`].

mod battery;
pub mod day;
pub mod phone_gateway;
mod radio;

pub use battery::{hours, lasts};
pub use radio::{Direction, EnergyUse, Packet, Ping, Promotion, Radio, Radios, Small, State};
