//! HTTP requests: parsing, routing and encoding of responses.

mod answer;
mod ask;
mod route;
mod wire;

pub use answer::{Body, Response, problem, text};
pub(crate) use answer::{HEARTBEAT, json, no_cache, no_content, position_header};
pub(crate) use ask::{Ask, Query, ResponseFormat, discard, read_body};
pub(crate) use route::{Handover, Routed, route, route_read};
pub(crate) use wire::{SimpleRequest, encode_answer, encode_head, is_read};

use std::{
    cell::{Cell, OnceCell, RefCell},
    rc::Rc,
    sync::Arc,
    time::Duration,
};

use http::request::Parts;
use millrace_protocol::{Error, ticket::TicketKey};
use tokio::{sync::watch, task::spawn_local, time::sleep};

use crate::{
    Config, Drain, Limits, Shard,
    access::{Access, Caller},
    limits::{ForwardedFor, ReaderSlot, RequestConnection},
    media::Media,
    rooms::Rooms,
    turn,
};

/// Serves paths other than channels: health, metrics and web pages. `None`: the path does not exist.
pub trait Pages: Send + Sync {
    fn answer(&self, request: &Parts) -> Option<Response>;
}

/// Duration of the timer of [`Context::keep_timer`]. It must not exceed any timer that a request sets.
const TIMER: Duration = Duration::from_secs(1);

/// Everything that a request handler can use.
pub struct Context {
    pub shard: Rc<Shard>,
    pub pages: Arc<dyn Pages>,
    /// Set when the server drains.
    pub draining: watch::Receiver<Option<Drain>>,
    pub tickets: Arc<TicketKey>,
    pub access: Arc<Access>,
    pub limits: Arc<Limits>,
    /// Rooms of the server; disabled until they are opened.
    pub rooms: Rooms,
    /// Owners of the members of the shard's SFU.
    pub media: Media,
    config: RefCell<Rc<Config>>,
    turn: OnceCell<Arc<turn::Offer>>,
    /// State of the timer of `keep_timer`. `Some(true)`: a request has arrived since it was set. `None`: it is not
    /// set.
    timer: Cell<Option<bool>>,
}

impl Context {
    pub fn new(
        shard: Rc<Shard>,
        config: Config,
        pages: Arc<dyn Pages>,
        draining: watch::Receiver<Option<Drain>>,
        tickets: Arc<TicketKey>,
        access: Arc<Access>,
        limits: Arc<Limits>,
    ) -> Rc<Self> {
        shard.set_patterns_max(config.patterns_max);
        let (rooms, media) = (Rooms::default(), Media::default());
        let (config, turn, timer) = (RefCell::new(Rc::new(config)), OnceCell::new(), Cell::new(None));
        Rc::new(Self { shard, pages, draining, tickets, access, limits, rooms, media, config, turn, timer })
    }

    /// Returns the current limits. A caller that keeps the `Rc` continues with these limits.
    pub fn config(&self) -> Rc<Config> {
        self.config.borrow().clone()
    }

    /// Replaces the limits. They apply to new connections and requests, and to everything that all connections of
    /// the shard share.
    pub fn set_config(&self, config: Config) {
        self.shard.configure(config.hub());
        self.shard.set_patterns_max(config.patterns_max);
        self.limits.configure(&config);
        *self.config.borrow_mut() = Rc::new(config);
    }

    /// Sets the TURN offer. Call it once, before the first request.
    pub fn set_turn(&self, offer: Arc<turn::Offer>) {
        let _ = self.turn.set(offer);
    }

    /// Returns TURN URLs and short-lived credentials, if a relay is configured. Peers without a direct path need
    /// them.
    pub fn turn(&self) -> Option<&turn::Offer> {
        self.turn.get().map(|offer| &**offer)
    }

    /// Authenticates the request and returns its caller.
    ///
    /// Errors: those of [`Access::caller`].
    pub(crate) async fn caller(&self, parts: &Parts) -> Result<Caller, Error> {
        let config = self.config();
        let caller = self.access.caller(parts, &config.allowed_origins).await?;
        let forwarded = parts.extensions.get().map(|ForwardedFor(address)| *address);
        let address = forwarded.or_else(|| Some(parts.extensions.get::<Arc<RequestConnection>>()?.address));
        Ok(Caller { holder: self.limits.holder(caller.grant.subject.as_ref(), address), ..caller })
    }

    /// Reserves a connection slot for a new long-lived reader.
    ///
    /// Errors: those of [`Limits::admit`].
    pub(crate) fn admit(&self, parts: &Parts, caller: &Caller) -> Result<Option<ReaderSlot>, Error> {
        let forwarded = parts.extensions.get().map(|ForwardedFor(address)| *address);
        self.limits.admit(caller.grant.subject.as_ref(), forwarded)
    }

    /// Checks whether this request may publish now, and counts the publication.
    ///
    /// Errors: those of [`Limits::check_publish`].
    pub(crate) fn check_publish(&self, parts: &Parts, caller: &Caller, bytes: usize) -> Result<(), Error> {
        let subject = caller.grant.subject.as_ref();
        if let Some(ForwardedFor(address)) = parts.extensions.get() {
            return self.limits.check_forwarded_publish(*address, subject, bytes);
        }
        match parts.extensions.get::<Arc<RequestConnection>>() {
            Some(guest) => guest.check_publish(&self.limits, subject, bytes),
            None => self.limits.check_publish(None, subject, bytes),
        }
    }

    /// Counts the body of a response as queued bytes until it has been sent.
    ///
    /// Errors: those of [`Limits::pend`].
    pub(crate) fn charge(&self, response: Response) -> Result<Response, Error> {
        let (head, body) = response.into_parts();
        let body = match body {
            Body::Whole(Some(bytes)) => Body::Whole(Some(self.limits.charge(bytes)?)),
            body => body,
        };
        Ok(Response::from_parts(head, body))
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

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.borrow().is_some()
    }

    /// Waits until the server drains.
    pub(crate) async fn drains(&self) -> Drain {
        let mut draining = self.draining.clone();
        match draining.wait_for(Option::is_some).await.ok().and_then(|drain| *drain) {
            Some(drain) => drain,
            // The sender was dropped, so no drain will be reported.
            None => std::future::pending().await,
        }
    }
}
