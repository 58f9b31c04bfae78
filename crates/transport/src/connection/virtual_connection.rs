use std::collections::VecDeque;

use millrace_delivery::ConnId;
use millrace_protocol::{NewPublication, Transport, session::Policy};

/// A connection without a socket of its own: the body of a response over HTTP/2, or a data channel.
///
/// The hub calls these methods while it is borrowed, so they never call the hub.
pub trait VirtualConnection {
    /// Returns the number of bytes accepted. If fewer than all were accepted, the owner of the connection later calls
    /// `Hub::writable`.
    fn write(&self, bytes: &[u8]) -> usize;

    /// Ends the connection. Bytes already written are still sent.
    fn close(&self);

    /// Returns the transport that [`crate::Sockets`] counts this connection for; `None` if the connection counts
    /// itself, or belongs to one that is counted.
    fn transport(&self) -> Option<Transport> {
        None
    }

    /// Returns the transport that carries the bytes of this connection.
    fn carrier(&self) -> Option<Transport> {
        self.transport()
    }

    /// Returns true if the connection receives the commands of a session.
    fn takes_commands(&self) -> bool {
        false
    }

    /// Pauses or resumes the reading of received bytes.
    fn set_reading(&self, _read: bool) {}

    /// Returns the separate connection for subscriptions with this policy, if there is one.
    fn lane(&self, _policy: Policy) -> Option<ConnId> {
        None
    }

    /// Returns true if this is the separate connection of another.
    fn is_side(&self) -> bool {
        false
    }

    /// Returns the connection whose separate connection this is, if it is open.
    fn main(&self) -> Option<ConnId> {
        None
    }

    /// Returns the number of bytes that were received but not processed.
    fn incoming_bytes(&self) -> usize {
        0
    }

    /// Returns the memory of the connection, in bytes, unless its owner reports it.
    fn bytes(&self) -> usize {
        0
    }
}

/// Entry of a [`CommandQueue`].
#[derive(Debug)]
pub enum Queued {
    /// Command of a session.
    Command(String),
    /// Publication of a bare WebSocket.
    Publication(NewPublication),
    /// Close frame of a bare WebSocket behind its publications, with its code.
    Close(u16),
}

/// Queued commands of a session, or publications of a bare WebSocket. They wait for the engine or the app's back end to
/// answer an earlier one, or for the client to read its replies. The connection is not read meanwhile.
#[derive(Debug, Default)]
pub struct CommandQueue {
    entries: VecDeque<Queued>,
    /// True while a task runs the queued commands.
    pub is_running: bool,
}

impl CommandQueue {
    /// Creates an empty queue behind a command that is running.
    pub fn running() -> Self {
        Self { is_running: true, ..Self::default() }
    }

    pub fn push(&mut self, entry: Queued) {
        self.entries.push_back(entry);
    }

    pub fn pop(&mut self) -> Option<Queued> {
        self.entries.pop_front()
    }
}
