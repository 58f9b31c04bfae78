//! The kit Earl with its LED module: commands in JSON become requests to the module's firmware, which runs on a
//! simulated microcontroller, and the light of its lamps comes back.
//!
//! - [`command`]: the commands that people send
//! - [`palette`]: which of the driver's few brightness levels each lamp gets
//! - [`request`]: the protocol of the serial connection to the module
//! - [`kit`]: the kit, in virtual time

pub mod command;
pub mod kit;
pub mod palette;
pub mod request;

pub use command::{Command, CommandError};
pub use kit::{Kit, KitError, Report};

/// Firmware of the LED module, built from `firmware/led-module` (a test of `millrace-msp430` compares both).
pub const FIRMWARE: &[u8] = include_bytes!("../../fixtures/led-module.elf");
