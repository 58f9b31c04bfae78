//! Upgrade of the binary of a running server.
//!
//! ```text
//!   old process                                        new process
//!   ───────────                                        ───────────
//!   starts the new binary with its own arguments
//!   sends its listening sockets and secrets  ──────►   reads its configuration, takes the sockets
//!                                            ◄──────   Ready
//!   sends the contents of its engine         ──────►   opens its engine, starts its threads
//!                                            ◄──────   Serving
//!   drains: its clients reconnect            ──────►   accepts them
//!   ends
//! ```
//!
//! Until `Serving`, a failure of the new process ends only the new process: the old one goes on as before.

mod attempt;
mod config;
mod control;
mod messages;
mod new_process;
mod old_process;
mod sockets;
mod systemd;

pub(crate) use attempt::Attempt;
pub use config::Config;
pub use control::{ControlError, Progress, Target, running, upgrade};
pub(crate) use control::{ControlSocket, Order};
pub(crate) use messages::Seed;
pub(crate) use new_process::Takeover;
pub use new_process::refuse;
pub(crate) use old_process::program;
pub(crate) use old_process::{Handed, UpgradeError, hand_over, remember_program};
pub(crate) use sockets::{Opener, SocketSet};
pub(crate) use systemd::notify_serving;

/// Variable in the environment of a new process that takes over from the process at its standard input.
pub const VARIABLE: &str = "MILLRACE_UPGRADE";

/// Returns true if this process was started to take over from another one.
pub fn is_takeover() -> bool {
    std::env::var_os(VARIABLE).is_some()
}
