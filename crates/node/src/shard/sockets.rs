//! Interface of a shard to its sockets and to the observer of its connections.

use std::{sync::Arc, time::Duration};

use millrace_delivery::{ConnId, Wire};
use millrace_protocol::Transport;

use crate::{Observer, Router};

/// Sockets of a shard: its hub writes to them, and the shard closes them.
pub trait Sockets: Wire + 'static {
    /// Metrics of the sockets.
    type Metrics;

    fn metrics(&self) -> Arc<Self::Metrics>;

    fn close(&mut self, conn: ConnId);

    /// Begins the writes of a turn.
    fn begin_turn(&mut self) {}

    /// Ends the writes of a turn. `age` is the time since the oldest publication of the turn was accepted.
    fn end_turn(&mut self, _age: Duration) {}

    /// Reports the connections of this shard to the observer from now on.
    fn observe(&mut self, observer: ShardObserver);

    /// Returns the connection whose client receives what is sent to this connection: usually `conn` itself. With the
    /// subject and the information of its client.
    fn client(&self, conn: ConnId) -> Option<Client>;
}

/// Client of a connection.
#[derive(Clone, Debug)]
pub struct Client {
    pub conn: ConnId,
    /// Subject of the client's token, if any.
    pub subject: Option<Arc<str>>,
    /// Information about the client for other members of a channel, as JSON.
    pub info: Option<Arc<str>>,
}

/// Observer of the connections of one shard.
#[derive(Clone)]
pub struct ShardObserver {
    pub(super) router: Arc<Router>,
    pub(super) shard: usize,
    pub(super) observer: Arc<dyn Observer>,
}

impl ShardObserver {
    pub fn opened(&self, conn: ConnId, subject: Option<&Arc<str>>, transport: Transport) {
        self.observer.opened(&self.router.connection_id(self.shard, conn), subject, transport);
    }

    pub fn closed(&self, conn: ConnId) {
        self.observer.closed(&self.router.connection_id(self.shard, conn));
    }
}
