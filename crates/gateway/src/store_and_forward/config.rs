//! Settings of store and forward.

use std::path::PathBuf;

use millrace_buffer::Config as BufferConfig;
use millrace_client::server::Server;

pub struct Config {
    /// Directory of the buffer.
    pub directory: PathBuf,
    pub buffer: BufferConfig,
    /// Server that receives the messages.
    pub server: Server,
    /// Secret required from every local request; `None`: no authentication.
    pub secret: Option<String>,
    /// Called with a line for people, for example about a lost connection.
    pub note: fn(&dyn std::fmt::Display),
}
