use crate::{
    http::Response,
    polling::Poll,
    transports::{stream::Stream, websocket::Upgrade},
};

/// Result of a request: a complete response, or the head of a response and the handover that continues it.
pub type Routed = (Response, Option<Handover>);

/// How a connection continues after the head of the response.
pub enum Handover {
    WebSocket(Upgrade),
    /// A WebSocket that carries MQTT.
    Mqtt,
    Stream(Stream),
    /// The head contains only headers that the response to the poll gets in addition to its own.
    LongPoll(Box<Poll>),
}

/// Wraps a complete response.
pub fn plain(response: Response) -> Routed {
    (response, None)
}
