//! Bytes on the wire: what the kernel counts for each transport, what a protocol model predicts, and what a capture
//! sees.
//!
//! All byte counts are of IP packets. Read first: [`Bill`], [`measure::measure`], [`model::predict`].

mod bill;
pub mod capture;
pub mod measure;
pub mod model;
pub mod namespace;
mod tap;
pub mod tcp_info;

pub use bill::{Battery, Bill, Both, Bytes, EnergyLine, Line, Path, Published, Side, Unit, difference_percent};
pub use tap::{Heard, Tap};
