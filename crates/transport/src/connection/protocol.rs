use std::{cell::RefCell, rc::Rc};

use super::{Http1Connection, mqtt::Link};
use crate::admission::PublishTarget;
use millrace_protocol::Transport;

/// Protocol of a connection on the event loop.
pub(crate) enum ConnectionProtocol {
    /// A WebSocket with the bare payloads of one channel. `target` is `None` if the client may not publish. This
    /// permission does not change while the connection is open.
    Bare { target: Option<PublishTarget> },
    /// A WebSocket with a session: commands, replies and pushes.
    Session,
    /// An HTTP response without an end. Bytes from the client are ignored.
    Stream(Transport),
    /// HTTP/1.1: between two requests, or while a long poll waits.
    Http(Box<Http1Connection>),
    /// MQTT, also inside a WebSocket.
    Mqtt(Rc<RefCell<Link>>),
}

impl ConnectionProtocol {
    /// Returns the transport that the connection is counted for while it is open. A long poll counts itself while it
    /// waits.
    pub fn transport(&self) -> Option<Transport> {
        match self {
            ConnectionProtocol::Stream(transport) => Some(*transport),
            ConnectionProtocol::Bare { .. } | ConnectionProtocol::Session => Some(Transport::WebSocket),
            ConnectionProtocol::Mqtt(_) => Some(Transport::Mqtt),
            ConnectionProtocol::Http(_) => None,
        }
    }
}
