//! Requests of the state machine to the engine, and their answers.

use std::collections::{HashMap, VecDeque};

use millrace_delivery::Page;
use millrace_protocol::{ChannelName, Error, NewPublication, Position, Since};

/// Identifies a request of a [`Writer`](crate::Writer).
pub type RequestId = u64;

/// Request to the engine. Each is answered once by [`Writer::handle_response`](crate::Writer::handle_response).
#[derive(Clone, Debug)]
pub enum Request {
    /// Append a publication; answered by [`Response::Appended`].
    Append { channel: ChannelName, publication: NewPublication },
    /// Read the entry that has this position; answered by [`Response::Entry`].
    ReadEntry { list: ChannelName, key: Box<str>, at: Position },
    /// Read a page of a state; answered by [`Response::Page`].
    ReadPage { channel: ChannelName, since: Since },
    /// Return the names of the live nodes; answered by [`Response::LiveNodes`].
    LiveNodes,
    /// Prepare for the first entry of this node in a list; answered by [`Response::Prepared`].
    Prepare { list: ChannelName },
}

#[derive(Debug)]
pub enum Response {
    Appended(Result<Position, Error>),
    /// The payload of the entry; `None` if the key has another position, or no longer exists.
    Entry(Result<Option<Vec<u8>>, Error>),
    Page(Result<Page, Error>),
    /// `None`: no other node can share the engine.
    LiveNodes(Result<Option<Vec<String>>, Error>),
    Prepared(Result<(), Error>),
}

/// Requests that are not sent yet, and what those in flight are for.
pub(crate) struct Requests<P> {
    last: RequestId,
    queue: VecDeque<(RequestId, Request)>,
    pending: HashMap<RequestId, P>,
}

impl<P> Default for Requests<P> {
    fn default() -> Self {
        Self { last: 0, queue: VecDeque::new(), pending: HashMap::new() }
    }
}

impl<P> Requests<P> {
    pub fn send(&mut self, purpose: P, request: Request) {
        self.last += 1;
        self.queue.push_back((self.last, request));
        self.pending.insert(self.last, purpose);
    }

    pub fn poll(&mut self) -> Option<(RequestId, Request)> {
        self.queue.pop_front()
    }

    pub fn take(&mut self, id: RequestId) -> Option<P> {
        self.pending.remove(&id)
    }
}
