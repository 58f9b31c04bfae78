//! Admission: decides who may do what, and how much of it. Every transport asks this module before it allocates
//! anything for a client.
//!
//! - [`access`]: authentication and permissions
//! - [`limits`]: connections, quotas, queued bytes and memory
//! - [`hooks`]: questions to the app's back end
//! - [`publish`]: the one decision whether a publication may enter
//! - [`webhooks`]: reports publications that are events for the app's back end

pub mod access;
mod body;
pub mod hooks;
pub mod limits;
mod publish;
pub mod webhooks;

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    sync::Arc,
    time::Duration,
};

use http::request::Parts;
use millrace_protocol::{ChannelName, Error, NewPublication, ticket::TicketKey};
use tokio::sync::watch;

pub(crate) use body::discard;
pub use body::read_body;
pub use publish::{Congestion, PublishTarget, Publisher, Publishing, publish};

use crate::{
    Config,
    http::{Body, Response},
};
use access::{Access, Caller};
use hooks::{Hook, Hooks};
use limits::{ForwardedFor, Limits, ReaderSlot};
use webhooks::PublicationEvents;

/// Parameters of a drain, set when the server shuts down.
#[derive(Clone, Copy, Debug)]
pub struct Drain {
    /// Period over which the reconnect times are spread.
    pub window: Duration,
    /// Validity of a resume ticket, counted from the reconnect time of its reader.
    pub ticket: Duration,
    /// True if another process serves the same sockets, so that this one takes nothing more from them.
    pub is_handed_over: bool,
}

/// Rules that apply to every request and connection of a shard: authentication, limits and settings.
pub struct Admission {
    pub access: Arc<Access>,
    pub limits: Arc<Limits>,
    /// Key of the resume tickets.
    pub tickets: Arc<TicketKey>,
    /// The app's back end, if any of its hooks is configured.
    hooks: Option<Arc<dyn Hooks>>,
    /// Receiver of publications that are events, if any namespace has such.
    publication_events: Option<Arc<dyn PublicationEvents>>,
    config: RefCell<Rc<Config>>,
    forwards_traces: Cell<bool>,
    /// Set when the server drains.
    draining: watch::Receiver<Option<Drain>>,
}

impl Admission {
    pub fn new(
        config: Config,
        draining: watch::Receiver<Option<Drain>>,
        tickets: Arc<TicketKey>,
        access: Arc<Access>,
        limits: Arc<Limits>,
        hooks: Option<Arc<dyn Hooks>>,
        publication_events: Option<Arc<dyn PublicationEvents>>,
    ) -> Rc<Self> {
        let (config, forwards_traces) = (RefCell::new(Rc::new(config)), Cell::default());
        Rc::new(Self { access, limits, tickets, hooks, publication_events, config, forwards_traces, draining })
    }

    /// Sets whether publications keep the trace contexts of their publishers. Until then, the contexts are removed.
    pub fn forward_traces(&self, forwards: bool) {
        self.forwards_traces.set(forwards);
    }

    /// Returns the publication without its trace context, unless contexts are forwarded.
    #[inline]
    pub(crate) fn without_unwanted_trace(&self, publication: NewPublication) -> NewPublication {
        match publication.trace() {
            Some(_) if !self.forwards_traces.get() => publication.traced(None),
            _ => publication,
        }
    }

    /// Returns the receiver of the publications of a channel if they are events. Cost without webhooks: one branch.
    #[inline]
    pub fn publication_events(&self, channel: &str) -> Option<&Arc<dyn PublicationEvents>> {
        self.publication_events.as_ref().filter(|events| events.wants(channel))
    }

    /// Returns true if a publication may have to wait before it enters: for the app's back end, or for the registration
    /// of the channel.
    pub(crate) fn may_delay(&self, channel: &ChannelName) -> bool {
        let name = channel.as_str();
        self.hooks(Hook::Publish, name).is_some() || self.publication_events(name).is_some()
    }

    /// Returns the current settings. A caller that keeps the `Rc` continues with these settings.
    pub fn config(&self) -> Rc<Config> {
        self.config.borrow().clone()
    }

    /// Replaces the settings. They apply to new connections and requests, and to the limits that all connections share.
    pub(crate) fn set_config(&self, config: Config) {
        self.limits.configure(&config);
        *self.config.borrow_mut() = Rc::new(config);
    }

    /// Checks that an operator sends this request. The app's back end is not asked: it may be the sender, and an
    /// operator needs the server most while the back end does not answer.
    ///
    /// Errors: those of [`Access::credential`], [`Access::identify`] and [`access::Caller::may_administer`].
    pub async fn check_operator(&self, parts: &Parts) -> Result<(), Error> {
        let credential = self.access.credential(parts, &self.config().allowed_origins)?;
        self.access.identify(parts, credential.as_deref()).await?.may_administer()
    }

    /// Reserves a connection slot for a new long-lived reader.
    ///
    /// Errors: those of [`Limits::admit`].
    pub fn admit(&self, parts: &Parts, caller: &Caller) -> Result<Option<ReaderSlot>, Error> {
        let forwarded = parts.extensions.get().map(|ForwardedFor(address)| *address);
        self.limits.admit(caller.grant.subject.as_ref(), forwarded)
    }

    /// Counts the body of a response as queued bytes until it has been sent.
    ///
    /// Errors: those of [`Limits::pend`].
    pub fn charge(&self, response: Response) -> Result<Response, Error> {
        let (head, body) = response.into_parts();
        let body = match body {
            Body::Whole(Some(bytes)) => Body::Whole(Some(self.limits.charge(bytes)?)),
            body => body,
        };
        Ok(Response::from_parts(head, body))
    }

    pub fn is_draining(&self) -> bool {
        self.draining.borrow().is_some()
    }

    /// Waits until the server drains.
    pub async fn drains(&self) -> Drain {
        let mut draining = self.draining.clone();
        match draining.wait_for(Option::is_some).await.ok().and_then(|drain| *drain) {
            Some(drain) => drain,
            // The sender was dropped, so no drain will be reported.
            None => std::future::pending().await,
        }
    }
}
