#![allow(clippy::unwrap_used, reason = "a test may stop where it is wrong")]
//! Tests of the chip with programs, against mspdebug, and with the firmware of the LED module.

mod chip;
mod differential;
mod elf;
mod firmware;
mod hostile;
mod i2c;
mod program;
mod random;
