//! The simulated kit Earl: the firmware of its LED module runs on a simulated microcontroller, and the light of its
//! lamps comes back.
//!
//! - [`module`]: the LED module with its serial connection, in virtual time
//! - [`kit`]: the module with its driver ([`millrace_earl::Driver`]), in virtual time
//! - [`terminal`]: the serial connection of a module as a pseudo terminal

pub mod kit;
pub mod module;
pub mod terminal;

pub use kit::Kit;
pub use millrace_earl::Report;
pub use module::{Module, ModuleError};
pub use terminal::Terminal;

/// Firmware of the LED module, built from `firmware/led-module` (a test of `millrace-msp430` compares both).
pub const FIRMWARE: &[u8] = include_bytes!("../../fixtures/led-module.elf");
