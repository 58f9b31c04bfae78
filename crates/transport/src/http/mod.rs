//! Requests: what is asked, by whom it is answered, and how an answer looks.

mod answer;
mod ask;
mod route;
mod wire;

pub use answer::{Body, Response, problem, text};
pub(crate) use answer::{HEARTBEAT, json, no_cache, no_content, position_header};
pub(crate) use ask::{Ask, Query, Wanted, discard, read_body};
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
    limits::{ForwardedFor, Guest, Seat},
    media::Media,
    rooms::Rooms,
    turn,
};

/// Answers what is no channel: health, metrics, pages. `None` means that there is no such path.
pub trait Pages: Send + Sync {
    fn answer(&self, request: &Parts) -> Option<Response>;
}

/// How long [`Context::keep_timer`] looks ahead: no longer than any timer that a request sets.
const TIMER: Duration = Duration::from_secs(1);

/// What a request can reach.
pub struct Context {
    pub shard: Rc<Shard>,
    pub pages: Arc<dyn Pages>,
    /// Set once the server drains.
    pub draining: watch::Receiver<Option<Drain>>,
    pub tickets: Arc<TicketKey>,
    pub access: Arc<Access>,
    pub limits: Arc<Limits>,
    /// None until they are opened.
    pub rooms: Rooms,
    /// Who is behind the members of the shard's switching unit.
    pub media: Media,
    config: RefCell<Rc<Config>>,
    turn: OnceCell<Arc<turn::Offer>>,
    /// Has a request come since the timer was set? None: it is not set.
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

    /// The limits that hold now; whoever keeps them goes on with them.
    pub fn config(&self) -> Rc<Config> {
        self.config.borrow().clone()
    }

    /// Other limits, from now on: of new connections and requests, and of what all of the shard's connections share.
    pub fn set_config(&self, config: Config) {
        self.shard.configure(config.hub());
        self.shard.set_patterns_max(config.patterns_max);
        self.limits.configure(&config);
        *self.config.borrow_mut() = Rc::new(config);
    }

    /// Says where relays are had. Once, before anybody asks.
    pub fn set_turn(&self, offer: Arc<turn::Offer>) {
        let _ = self.turn.set(offer);
    }

    /// Where relays are had, and credentials for them: what a peer needs that cannot be reached directly.
    pub fn turn(&self) -> Option<&turn::Offer> {
        self.turn.get().map(|offer| &**offer)
    }

    /// Whom this request comes from.
    ///
    /// Errors: as [`Access::caller`].
    pub(crate) async fn caller(&self, parts: &Parts) -> Result<Caller, Error> {
        let config = self.config();
        let caller = self.access.caller(parts, &config.allowed_origins).await?;
        let forwarded = parts.extensions.get().map(|ForwardedFor(address)| *address);
        let address = forwarded.or_else(|| Some(parts.extensions.get::<Arc<Guest>>()?.address));
        Ok(Caller { holder: self.limits.holder(caller.grant.subject.as_ref(), address), ..caller })
    }

    /// Lets a caller begin to read what goes on.
    ///
    /// Errors: as [`Limits::admit`].
    pub(crate) fn admit(&self, parts: &Parts, caller: &Caller) -> Result<Option<Seat>, Error> {
        let forwarded = parts.extensions.get().map(|ForwardedFor(address)| *address);
        self.limits.admit(caller.grant.subject.as_ref(), forwarded)
    }

    /// May what this request brings be published now?
    ///
    /// Errors: as [`Limits::check_publish`].
    pub(crate) fn check_publish(&self, parts: &Parts, caller: &Caller, bytes: usize) -> Result<(), Error> {
        let subject = caller.grant.subject.as_ref();
        if let Some(ForwardedFor(address)) = parts.extensions.get() {
            return self.limits.check_forwarded_publish(*address, subject, bytes);
        }
        match parts.extensions.get::<Arc<Guest>>() {
            Some(guest) => guest.check_publish(&self.limits, subject, bytes),
            None => self.limits.check_publish(None, subject, bytes),
        }
    }

    /// Counts what an answer makes wait for its client.
    ///
    /// Errors: as [`Limits::pend`].
    pub(crate) fn charge(&self, response: Response) -> Result<Response, Error> {
        let (head, body) = response.into_parts();
        let body = match body {
            Body::Whole(Some(bytes)) => Body::Whole(Some(self.limits.charge(bytes)?)),
            body => body,
        };
        Ok(Response::from_parts(head, body))
    }

    /// Keeps a timer of the runtime set while requests come.
    ///
    /// If none is set when its thread goes to sleep, the runtime wakes itself, by a system call, for each one that is
    /// set until it sleeps again; and hyper sets one for each head that it waits for. Requests that all wait for an
    /// engine leave none.
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

    /// Returns when the server drains.
    pub(crate) async fn drains(&self) -> Drain {
        let mut draining = self.draining.clone();
        match draining.wait_for(Option::is_some).await.ok().and_then(|drain| *drain) {
            Some(drain) => drain,
            // Nobody is left who could say so.
            None => std::future::pending().await,
        }
    }
}
