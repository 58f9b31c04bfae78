//! The server of one shard, and the protocols on its event loop.

use std::rc::Rc;

use millrace_delivery::ConnId;

use crate::{
    connection::{EventLoop, Handler},
    route::Context,
    session,
    transports::{mqtt, websocket},
};

/// A shard's server: its routes, and the event loop of its connections.
pub(crate) struct Server {
    pub(super) context: Rc<Context>,
    pub(super) event_loop: Rc<EventLoop>,
    /// MQTT, if it is enabled.
    pub(super) mqtt: Option<Rc<mqtt::Host>>,
}

/// Passes what arrives on a connection to its protocol.
pub(super) struct Protocols(pub(super) Rc<Server>);

impl Handler for Protocols {
    fn received(&self, id: ConnId, bytes: &mut [u8]) {
        let is_mqtt = |bytes: &mut [u8]| self.0.mqtt.as_ref().is_some_and(|mqtt| mqtt.received(id, bytes));
        if !websocket::received(&self.0.event_loop, id, bytes) && !is_mqtt(bytes) {
            self.0.http_received(id, bytes);
        }
    }

    fn writable(&self, id: ConnId) {
        if let Some(mqtt) = &self.0.mqtt
            && mqtt.writable(id)
        {
            return;
        }
        session::resume_commands(&self.0.event_loop, id);
        self.0.http_sent(id);
    }
}
