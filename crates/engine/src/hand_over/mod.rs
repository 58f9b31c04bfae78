//! Hand-over of an engine to another process, while the binary is upgraded.
//!
//! ```text
//!   old process                                          new process
//!   ───────────                                          ───────────
//!   every channel of the engine, End       ─────────►    opens its engine with these contents
//!   requests of the remaining clients      ─────────►    answers them ([`Predecessor`])
//!   delivers to the remaining readers      ◄─────────    responses, and every publication
//! ```
//!
//! The old process keeps no history: it uses the engine of the new process ([`Successor`]) until its last client has
//! moved. Each publication has its position from one engine at any time, so nothing is lost or doubled. Publications
//! that arrive during the transfer wait for their answers.
//!
//! Engines with a broker in the network have nothing to hand over: both processes are nodes of the cluster.

mod frames;
mod serve;
mod successor;

use std::{
    io,
    os::unix::net::UnixStream,
    sync::{Arc, Mutex, PoisonError},
};

pub use frames::{Ending, SavedChannel};
pub use serve::Predecessor;
pub use successor::Successor;

use crate::Engine;
use frames::ToSuccessor;

/// Number of the protocol between the two processes. Processes with different numbers cannot hand over.
pub const PROTOCOL: u32 = 3;

/// Destination of a hand-over.
pub struct HandOver {
    stream: Mutex<UnixStream>,
    /// The engine of the new process. Its requests wait until [`HandOver::end`].
    pub successor: Arc<dyn Engine>,
}

impl HandOver {
    pub fn new(stream: UnixStream, successor: Arc<dyn Engine>) -> Self {
        Self { stream: Mutex::new(stream), successor }
    }

    /// Sends a channel with its history.
    ///
    /// Errors: the new process does not read.
    pub fn send(&self, channel: SavedChannel) -> io::Result<()> {
        self.write(&ToSuccessor::Channel(channel))
    }

    /// Ends the transfer. The new process opens its engine.
    ///
    /// Errors: the new process does not read.
    pub fn end(&self, ending: Ending) -> io::Result<()> {
        self.write(&ToSuccessor::End(ending))
    }

    fn write(&self, frame: &ToSuccessor) -> io::Result<()> {
        frames::write(&mut *self.stream.lock().unwrap_or_else(PoisonError::into_inner), frame)
    }
}

/// Contents of the engine of an old process, as the new one receives them.
pub struct Inherited {
    pub channels: Vec<SavedChannel>,
    pub ending: Ending,
}

impl Inherited {
    /// Reads everything up to [`Ending`].
    ///
    /// Errors: the old process ended or sent something else.
    pub fn read(stream: &mut UnixStream) -> io::Result<Self> {
        let mut channels = Vec::new();
        loop {
            match frames::read(stream)? {
                Some(ToSuccessor::Channel(channel)) => channels.push(channel),
                Some(ToSuccessor::End(ending)) => return Ok(Self { channels, ending }),
                Some(ToSuccessor::Request { .. }) => return Err(io::Error::other("a request came before the end")),
                None => return Err(io::ErrorKind::UnexpectedEof.into()),
            }
        }
    }
}
