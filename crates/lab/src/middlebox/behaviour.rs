//! Fault of a middlebox.

use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behaviour {
    /// Drops a connection that was idle in both directions for longer than `idle`. After that it discards all bytes,
    /// and also connection ends.
    Nat { idle: Duration },
    /// Answers a `GET` with a stored answer for the same request line, regardless of the headers. Passes streams and
    /// WebSockets through.
    Cache,
    /// Passes complete answers and WebSockets through, but forwards a stream only in pieces of at least `bytes`
    /// bytes.
    Buffer { bytes: usize },
}
