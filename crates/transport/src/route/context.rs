use std::{
    cell::{Cell, OnceCell, Ref, RefCell},
    net::IpAddr,
    rc::Rc,
    sync::Arc,
    time::Duration,
};

use bytes::BytesMut;
use http::request::Parts;
use tokio::{sync::mpsc, task::spawn_local, time::sleep};

use super::routes::Routes;
use crate::{Config, Shard, admission::Admission, connection::mqtt::Node, data_channel::Peers, http::Response};

/// Serves paths other than channels: health, metrics and web pages. `None`: the path does not exist.
pub trait Pages: Send + Sync {
    fn answer(&self, request: &Parts) -> Option<Response>;
}

/// A connection that another thread has accepted.
pub struct Arrival {
    /// Does not block.
    pub stream: std::net::TcpStream,
    /// Bytes that were read from it.
    pub head: BytesMut,
    pub address: IpAddr,
}

/// Second entrance of a shard: connections of another listener, with routes and permissions of their own.
pub struct Door {
    pub context: Rc<Context>,
    pub arrivals: mpsc::Receiver<Arrival>,
}

/// Duration of the timer of [`Context::keep_timer`]. It must not exceed any timer that a request sets.
const TIMER: Duration = Duration::from_secs(1);

/// Everything that the routes of a shard use.
pub struct Context {
    pub shard: Rc<Shard>,
    pub admission: Rc<Admission>,
    pub pages: Arc<dyn Pages>,
    /// Routes of other crates.
    routes: RefCell<Vec<Rc<dyn Routes>>>,
    door: RefCell<Option<Door>>,
    /// State that the MQTT connections of all shards share, and the listener of this shard; empty if MQTT is disabled.
    mqtt: OnceCell<(Arc<Node>, RefCell<Option<std::net::TcpListener>>)>,
    /// Peers of data channels; empty if they are disabled.
    pub(crate) data_channels: OnceCell<Rc<RefCell<Peers>>>,
    /// State of the timer of `keep_timer`. `Some(true)`: a request has arrived since it was set. `None`: it is not
    /// set.
    timer: Cell<Option<bool>>,
}

impl Context {
    pub fn new(shard: Rc<Shard>, admission: Rc<Admission>, pages: Arc<dyn Pages>) -> Rc<Self> {
        shard.set_patterns_max(admission.config().patterns_max);
        let (routes, door, mqtt, data_channels, timer) = Default::default();
        Rc::new(Self { shard, admission, pages, routes, door, mqtt, data_channels, timer })
    }

    /// Replaces the settings. They apply to new connections and requests, and to everything that all connections of
    /// the shard share.
    pub fn set_config(&self, config: Config) {
        self.shard.configure(config.hub());
        self.shard.set_patterns_max(config.patterns_max);
        self.admission.set_config(config);
    }

    /// Adds routes behind those that were added before. Call it before the first request. The routes must not hold this
    /// context, which holds them.
    pub fn add_routes(&self, routes: Rc<dyn Routes>) {
        self.routes.borrow_mut().push(routes);
    }

    /// Opens a second entrance to this shard. Call it before the shard is served.
    pub fn open_door(&self, door: Door) {
        *self.door.borrow_mut() = Some(door);
    }

    /// Enables MQTT on this shard. Call it before the shard is served. `listener` does not block.
    pub fn enable_mqtt(&self, node: Arc<Node>, listener: std::net::TcpListener) {
        let _ = self.mqtt.set((node, RefCell::new(Some(listener))));
    }

    /// Returns what the MQTT connections of all shards share, if MQTT is enabled.
    pub(crate) fn mqtt(&self) -> Option<&Arc<Node>> {
        self.mqtt.get().map(|(node, _)| node)
    }

    pub(crate) fn take_mqtt_listener(&self) -> Option<std::net::TcpListener> {
        self.mqtt.get()?.1.borrow_mut().take()
    }

    pub(crate) fn take_door(&self) -> Option<Door> {
        self.door.borrow_mut().take()
    }

    pub(crate) fn routes(&self) -> Ref<'_, [Rc<dyn Routes>]> {
        Ref::map(self.routes.borrow(), |routes| &routes[..])
    }

    /// Keeps a timer of the runtime set while requests arrive.
    ///
    /// If no timer is set when the thread goes to sleep, the runtime wakes itself with a system call for each timer
    /// that is set before the next sleep. hyper sets one for each request head that it waits for. While all requests
    /// wait for an engine, no other timer is set.
    pub(crate) fn keep_timer(self: &Rc<Self>) {
        if self.timer.replace(Some(true)).is_some() {
            return;
        }
        let context = Rc::downgrade(self);
        spawn_local(async move {
            loop {
                sleep(TIMER).await;
                let Some(context) = context.upgrade() else { return };
                if context.timer.replace(Some(false)) == Some(false) {
                    return context.timer.set(None);
                }
            }
        });
    }
}
