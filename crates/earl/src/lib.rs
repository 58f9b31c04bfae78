//! The host side of the kit Earl: commands in JSON become requests to the firmware of its LED module, and replies and
//! events of the module become reports in JSON.
//!
//! The same driver serves a module on a serial device (`millrace-gateway`) and a simulated one (`millrace-simulate`).
//! This crate performs no I/O, reads no clock and starts no thread: bytes and the time are inputs.
//!
//! Read first: [`Driver`], [`Command`], [`palette::allocate`].
//!
//! - [`command`]: the commands that people send
//! - [`palette`]: which of the LED driver's few brightness levels each lamp gets
//! - [`request`]: the protocol of the serial connection to the module
//! - [`driver`]: the requests to the module, their retransmission, and errors
//! - [`report`]: the state and the light readings, as JSON
//!
//! Source: `docs/how-to/light-a-kit.md`; `firmware/led-module/README.md`, "Protocol".

pub mod command;
pub mod driver;
pub mod palette;
pub mod report;
pub mod request;

pub use command::{Command, CommandError};
pub use driver::Driver;
pub use report::Report;
