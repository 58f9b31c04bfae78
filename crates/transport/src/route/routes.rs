use std::{cell::RefCell, pin::Pin, rc::Rc};

use bytes::Bytes;
use http::request::Parts;
use hyper::body::Incoming;
use millrace_protocol::{ChannelName, Error, Position};
use millrace_rtc::Candidates;

use super::{context::Context, handover::Routed};
use crate::{
    admission::{Publisher, access::Caller},
    data_channel::Peers,
    datagram::Demultiplexer,
};

/// A function that a shard runs on its own thread.
pub type Question = Box<dyn FnOnce(&Rc<Context>) + Send>;

/// Future of the answer to a request.
pub type Answering<'a> = Pin<Box<dyn Future<Output = Result<Routed, Error>> + 'a>>;

/// Future of a publication; returns its position.
pub type Publishing<'a> = Pin<Box<dyn Future<Output = Result<Position, Error>> + 'a>>;

/// Future of a publication that routes take in addition to its channel.
pub type Taking<'a> = Pin<Box<dyn Future<Output = Result<(), Error>> + 'a>>;

/// Datagram port of a shard, as routes see it before it is served.
pub struct ShardPort {
    pub demultiplexer: Rc<Demultiplexer>,
    /// Addresses that clients reach the port at.
    pub candidates: Candidates,
    /// Maximum number of peers of this shard.
    pub peers_max: usize,
    pub peers: Rc<RefCell<Peers>>,
}

/// Routes that another crate adds to a shard with [`Context::add_routes`].
///
/// A path belongs to the first routes that answer it. The paths of this crate itself come first, the pages last. The
/// origin of a request is checked before; its caller is not.
pub trait Routes {
    /// Answers a request; returns `None` if the path is none of these routes.
    fn answer<'a>(
        &'a self,
        context: &'a Rc<Context>,
        parts: &'a Parts,
        body: &'a mut Incoming,
    ) -> Option<Answering<'a>>;

    /// Returns true if a GET of this path reads channels, so that [`Routes::read`] answers it. The event loop can
    /// answer such a request between two long polls of a connection, because the request has no body.
    fn is_read(&self, _path: &str) -> bool {
        false
    }

    /// Answers a GET for which [`Routes::is_read`] is true.
    fn read<'a>(&'a self, _context: &'a Rc<Context>, _parts: &'a Parts) -> Option<Answering<'a>> {
        None
    }

    /// Publishes a datagram of a device that is no line of a batch; returns `None` if this is not the format of these
    /// routes.
    fn publish_datagram<'a>(
        &'a self,
        _context: &'a Context,
        _publisher: &'a dyn Publisher,
        _caller: &'a Caller,
        _datagram: Bytes,
    ) -> Option<Publishing<'a>> {
        None
    }

    /// Returns true if MQTT publications of this channel have a format of these routes, so that
    /// [`Routes::take_mqtt`] takes them.
    fn takes_mqtt(&self, _channel: &ChannelName) -> bool {
        false
    }

    /// Takes an MQTT publication for which [`Routes::takes_mqtt`] is true, before it is published to its channel. The
    /// caller has the permission to publish to the channel.
    ///
    /// Errors: the publication is refused, and the client repeats it. What a repetition would not change is no error.
    fn take_mqtt<'a>(
        &'a self,
        _context: &'a Context,
        _publisher: &'a dyn Publisher,
        _caller: &'a Caller,
        _channel: &'a ChannelName,
        _payload: &'a [u8],
    ) -> Taking<'a> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// Adds protocols to the datagram port of the shard. They come before the data channels.
    fn open_port(&self, _port: &ShardPort) {}

    /// Called once per second.
    fn tick(&self) {}
}
