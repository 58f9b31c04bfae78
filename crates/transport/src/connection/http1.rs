//! State of an HTTP/1.1 connection on the event loop, without hyper: while a long poll waits, and between two
//! requests.

use std::{cell::Cell, net::IpAddr, rc::Rc, sync::Arc};

use http::{HeaderMap, Request};
use tokio::time::Instant;

use crate::{
    admission::limits::{ForwardedFor, Limit, Limits, RequestConnection},
    http::Response,
    polling::Poll,
    tls,
};

/// Maximum bytes of later requests buffered while one request is answered. Above it, the connection is not read.
pub(crate) const UNREAD_BYTES_MAX: usize = 16 * 1024;

/// An HTTP/1.1 connection on the event loop.
pub(crate) struct Http1Connection {
    pub served: Rc<HttpClient>,
    pub state: Http1State,
    /// True if the connection closes after the response to the current request.
    pub closes: bool,
    /// True if a publication arrived while the poll was reading history.
    pub was_woken: bool,
    /// Headers that are added to those of the response itself.
    pub more: Option<Box<HeaderMap>>,
    /// Bytes received after the request that is being answered.
    pub unread: Vec<u8>,
    /// Deadline of the current state.
    pub until: Instant,
    /// Time at which [`ConnectionTimers`] reports this connection; never later than `until`.
    pub alarm: Option<Instant>,
}

pub(crate) enum Http1State {
    /// The connection waits for a request, for at most `limits.header_timeout`.
    Idle,
    /// A request is being answered.
    Answering,
    /// A long poll waits for a publication.
    Polling(Box<Poll>),
    /// The client has not read the whole response yet. It has `limits.write_timeout` to do so.
    Sending,
}

impl Http1Connection {
    /// Creates a connection whose request is being answered. The response gets the headers of `head` in addition to
    /// its own. `unread` are the bytes received after the request. If `closes` is true, the connection closes after
    /// the response.
    pub(crate) fn new(served: Rc<HttpClient>, head: Response, unread: &[u8], closes: bool) -> Self {
        Self {
            served,
            state: Http1State::Answering,
            closes,
            was_woken: false,
            more: boxed(head.into_parts().0.headers),
            unread: unread.to_vec(),
            until: Instant::now(),
            alarm: None,
        }
    }

    pub(crate) fn is_idle(&self) -> bool {
        matches!(self.state, Http1State::Idle)
    }

    /// Returns true if the connection should not be read until the request is answered.
    pub(crate) fn is_full(&self) -> bool {
        self.unread.len() > UNREAD_BYTES_MAX
    }

    pub(crate) fn unread_bytes(&self) -> usize {
        self.unread.capacity()
    }

    /// Returns the memory of the connection in bytes, without memory that it shares with others.
    pub(crate) fn bytes(&self) -> usize {
        let poll = if let Http1State::Polling(poll) = &self.state { size_of::<Poll>() + poll.bytes() } else { 0 };
        size_of::<Self>() + self.unread.capacity() + poll
    }
}

pub(crate) fn boxed(more: HeaderMap) -> Option<Box<HeaderMap>> {
    (!more.is_empty()).then(|| Box::new(more))
}

/// Client of one HTTP connection, and the number of its requests.
pub(crate) struct HttpClient {
    connection: Arc<RequestConnection>,
    /// Subject of the client's certificate.
    subject: Option<tls::PeerSubject>,
    /// True if the peer is a trusted proxy. Then a header of each request names the client.
    is_proxy: bool,
    pub requests: Cell<u64>,
    requests_max: u64,
}

impl HttpClient {
    pub fn new(address: IpAddr, subject: Option<tls::PeerSubject>, requests_max: u64, limits: &Limits) -> Self {
        let (connection, is_proxy) = (Arc::new(RequestConnection::new(address)), limits.proxies.trusts(address));
        Self { connection, subject, is_proxy, requests: Cell::default(), requests_max }
    }

    /// Counts a request and attaches the client's identity to it. Returns true if it is the last request of the
    /// connection.
    pub(crate) fn take<B>(&self, request: &mut Request<B>, limits: &Limits) -> bool {
        request.extensions_mut().insert(self.connection.clone());
        if self.is_proxy {
            let client = limits.proxies.client_of(self.connection.address, request.headers());
            request.extensions_mut().insert(ForwardedFor(client));
        }
        if let Some(subject) = &self.subject {
            request.extensions_mut().insert(subject.clone());
        }
        self.requests.set(self.requests.get() + 1);
        if self.is_spent() {
            limits.count(Limit::RequestsPerConnection);
        }
        self.is_spent()
    }

    pub fn is_spent(&self) -> bool {
        self.requests_max > 0 && self.requests.get() >= self.requests_max
    }
}
