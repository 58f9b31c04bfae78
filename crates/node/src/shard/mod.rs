//! One shard: its turns, its publications, and the outputs of its hub.
//!
//! - [`sockets`]: the sockets, as the shard uses them
//! - [`subscribe`]: subscriptions, from the first page of history to a live reader
//! - [`waiting`]: waits for the next publication, without a subscription

mod sockets;
mod subscribe;
mod waiting;

use std::{
    cell::{Cell, RefCell},
    collections::{HashMap, hash_map::Entry},
    rc::Rc,
    sync::Arc,
    time::{Duration, Instant},
};

use millrace_delivery::{ConnId, Hub, Output, Page, PageLimit, ReadTicket};
use millrace_engine::{Answer, ChannelSlot, Engine};
use millrace_protocol::{
    ChannelName, Error, NewPublication, Position, Since,
    session::{Policy, Target, encode_error_push},
};

use crate::{
    ChannelEvent, Delivery, Mailbox, Member, Metrics, NamespaceId, Observer, Router,
    namespaces::{NamespaceCache, NamespaceCounters},
    spans::{OpenSpan, RecordSpan, Step},
};

pub use sockets::{Client, ShardObserver, Sockets};
pub use subscribe::Start;
use waiting::Waits;
pub use waiting::{Waiting, Woken};

/// Limit of one page of recovery: small enough to interleave with other pages, large enough to be worth a read.
const PAGE: PageLimit = PageLimit { count: 1000, bytes: 64 * 1024 };
/// Pause before a failed read of history is retried.
const RETRY: Duration = Duration::from_millis(100);

/// A shard: the connections of one core, their cursors, and the access to the engine. It lives on its thread. All
/// methods take `&self`; its cells are never borrowed across an await.
pub struct Shard<S: Sockets> {
    pub id: usize,
    pub engine: Arc<dyn Engine>,
    pub metrics: Arc<Metrics>,
    /// Counters of the sockets. The shard does not use them.
    pub socket_metrics: Arc<S::Metrics>,
    router: Arc<Router>,
    hub: RefCell<Hub>,
    sockets: RefCell<S>,
    waits: Waits,
    /// Empty list with the capacity of the last turn's entries, for the next turn.
    spare: Cell<Vec<Delivery>>,
    /// Begin of the work that ends with the next turn; see [`Shard::attend`].
    began: Cell<Option<Instant>>,
    /// Time at which the oldest publication of the current turn was accepted.
    accepted: Cell<Option<Instant>>,
    namespaces: RefCell<NamespaceCache>,
    /// Held by the scan for channels of a pattern; see [`Shard::subscribe_pattern`].
    scanning: tokio::sync::Mutex<()>,
    /// Members that read channels with a roster, with the number of these channels.
    members: RefCell<HashMap<ConnId, (Member, usize)>>,
}

impl<S: Sockets> Shard<S> {
    pub fn new(
        id: usize,
        router: Arc<Router>,
        engine: Arc<dyn Engine>,
        hub: Hub,
        sockets: S,
        metrics: Arc<Metrics>,
    ) -> Rc<Self> {
        let shard = Self {
            id,
            engine,
            metrics,
            socket_metrics: sockets.metrics(),
            router,
            hub: RefCell::new(hub),
            sockets: RefCell::new(sockets),
            waits: Waits::default(),
            spare: Cell::default(),
            began: Cell::default(),
            accepted: Cell::default(),
            namespaces: RefCell::default(),
            scanning: tokio::sync::Mutex::default(),
            members: RefCell::default(),
        };
        shard.hub.borrow_mut().share_logs(shard.router.shards());
        if let Some(observer) = shard.router.observer().cloned() {
            let router = shard.router.clone();
            shard.sockets.borrow_mut().observe(ShardObserver { router, shard: id, observer: observer.clone() });
            shard.hub.borrow_mut().set_rosters(Box::new(move |channel| observer.has_roster(channel)));
        }
        Rc::new(shard)
    }

    /// Sets new limits for the hub. All shards of the node share its log memory.
    pub fn configure(&self, config: millrace_delivery::Config) {
        let mut hub = self.hub.borrow_mut();
        hub.configure(config);
        hub.share_logs(self.router.shards());
    }

    /// Sets the maximum number of different patterns of the node.
    pub fn set_patterns_max(&self, max: usize) {
        self.router.set_patterns_max(max);
    }

    /// Returns the id of a connection, unique over all nodes.
    pub fn connection_id(&self, conn: ConnId) -> String {
        self.router.connection_id(self.id, conn)
    }

    /// Returns the receiver of spans, if spans are recorded.
    pub fn span_recorder(&self) -> Option<&Arc<dyn RecordSpan>> {
        self.router.span_recorder()
    }

    /// Returns the observer of the readers of this node, if any.
    pub fn observer(&self) -> Option<&Arc<dyn Observer>> {
        self.router.observer()
    }

    /// Runs a turn whenever the mailbox has entries. Tasks that are ready run first, so their publications leave in
    /// the same turn.
    pub async fn run(self: &Rc<Self>) {
        let mailbox = self.mailbox();
        loop {
            mailbox.filled().await;
            self.turn();
        }
    }

    pub fn mailbox(&self) -> Arc<Mailbox> {
        self.router.mailbox(self.id).clone()
    }

    /// Begins work that ends with a [`Shard::turn`], such as the handling of received bytes. Until [`Shard::leave`], a
    /// publication does not wake the shard, because the turn delivers it. `now`: the time, if the caller knows it.
    pub fn attend(&self, now: Option<Instant>) {
        self.router.mailbox(self.id).attend();
        self.began.set(Some(now.unwrap_or_else(Instant::now)));
    }

    /// Ends [`Shard::attend`].
    pub fn leave(&self) {
        self.began.set(None);
        self.router.mailbox(self.id).leave();
    }

    /// Runs one turn of the loop: delivers all entries of the mailbox, with one write per reader. Returns the time of
    /// its end.
    ///
    /// The clock is read once per turn, and once more if the caller does not [`attend`](Shard::attend). So the age of a
    /// publication is an upper bound: the time since the begin of the work, or since the first entry woke the shard.
    pub fn turn(self: &Rc<Self>) -> Instant {
        Metrics::add(&self.metrics.turns, 1);
        let began = self.began.get().unwrap_or_else(Instant::now);
        let (mut entries, since) = self.router.mailbox(self.id).take(self.spare.take());
        let accepted = (!entries.is_empty()).then(|| since.map_or(began, |since| since.min(began)));
        self.accepted.set(accepted);
        let (recorder, mut spans) = (self.router.span_recorder(), Vec::new());
        self.with(|hub, sockets| {
            sockets.begin_turn();
            entries.iter().for_each(|entry| hub.expect(entry.key));
            for Delivery { route, key, event } in entries.drain(..) {
                match event {
                    ChannelEvent::Published(epoch, publication) => {
                        let mut span = recorder.and_then(|recorder| {
                            let trace = publication.trace()?;
                            Some(OpenSpan::begin(recorder, Step::Deliver, trace, &route.name))
                        });
                        let readers = hub.deliver(&route.name, key, epoch, &publication);
                        if let Some(span) = &mut span {
                            span.set_readers(readers);
                        }
                        spans.extend(span);
                        let counters = self.router.namespaces().of(self.id, route.namespace);
                        Metrics::add(&counters.deliveries, readers as u64);
                    }
                    ChannelEvent::Moved(moved) => hub.moved(&route.name, key, moved.from, moved.top),
                }
                if hub.is_full() {
                    hub.flush(sockets);
                }
            }
            hub.flush(sockets);
        });
        drop(spans);
        self.spare.set(entries);
        let ended = Instant::now();
        if let Some(accepted) = self.accepted.take() {
            self.sockets.borrow_mut().end_turn(ended - accepted);
        }
        self.metrics.turn_time.add(ended - began, 1);
        // The work after a turn in the middle of other work belongs to the next turn.
        if self.began.get().is_some() {
            self.began.set(Some(ended));
        }
        ended
    }

    /// Returns the number of a channel's namespace; see [`Shard::counters`].
    pub fn namespace(&self, channel: &ChannelName) -> NamespaceId {
        self.namespaces.borrow_mut().id(channel, self.router.namespaces())
    }

    /// Returns the counters of a namespace in this shard.
    pub fn counters(&self, namespace: NamespaceId) -> &NamespaceCounters {
        self.router.namespaces().of(self.id, namespace)
    }

    /// Runs `work` on the hub and its sockets, then executes the outputs of the hub.
    pub fn with<T>(self: &Rc<Self>, work: impl FnOnce(&mut Hub, &mut S) -> T) -> T {
        let result = work(&mut self.hub.borrow_mut(), &mut self.sockets.borrow_mut());
        self.do_outputs();
        result
    }

    pub fn sockets(&self) -> std::cell::RefMut<'_, S> {
        self.sockets.borrow_mut()
    }

    /// Appends a publication to its channel and returns its position. Whether the publication may enter is decided
    /// before; while [`Shard::is_congested`] is true, the caller refuses it or reads more slowly from its publisher.
    ///
    /// Errors: those of the engine.
    pub fn append(&self, channel: &ChannelName, publication: NewPublication) -> Answer<Result<Position, Error>> {
        self.counted(publication, |publication| self.engine.append(channel, publication))
    }

    /// Appends like [`Shard::append`], for a caller that publishes into one channel repeatedly: see
    /// [`Engine::append_at`].
    pub fn append_at(
        &self,
        slot: &mut ChannelSlot,
        channel: &mut ChannelName,
        publication: NewPublication,
    ) -> Answer<Result<Position, Error>> {
        self.counted(publication, |publication| self.engine.append_at(slot, channel, publication))
    }

    fn counted(
        &self,
        publication: NewPublication,
        append: impl FnOnce(NewPublication) -> Answer<Result<Position, Error>>,
    ) -> Answer<Result<Position, Error>> {
        Metrics::add(&self.metrics.published_bytes, publication.data.len() as u64);
        let answer = append(publication);
        match &answer {
            Answer::Now(Some(Err(_))) => Metrics::add(&self.metrics.publications_refused, 1),
            _ => Metrics::add(&self.metrics.publications, 1),
        }
        answer
    }

    /// Returns true if a publication of this channel would wait in a congested mailbox. A congested mailbox of this
    /// shard is emptied first.
    pub fn is_congested(self: &Rc<Self>, channel: &ChannelName) -> bool {
        if !self.router.is_congested() {
            return false;
        }
        if self.router.mailbox(self.id).is_congested() {
            self.turn();
        }
        self.router.is_congested_for(channel)
    }

    /// Returns true if any shard is congested.
    pub fn is_node_congested(&self) -> bool {
        self.router.is_congested()
    }

    fn do_outputs(self: &Rc<Self>) {
        loop {
            let Some(output) = self.hub.borrow_mut().poll_output() else { return };
            match output {
                Output::ReadHistory { ticket, channel, since, policy } => self.read(ticket, channel, since, policy),
                Output::Interest { channel, key, readers } => {
                    let watch = |is_read| self.engine.watch(&Target::Channel(channel.clone()), is_read);
                    let change = self.router.set_readers(self.id, &channel, key, readers, watch);
                    if let Some(observer) = self.router.observer() {
                        observer.readers_changed(&channel, change);
                    }
                }
                Output::Joined { conn, channel } => self.joined(conn, &channel),
                Output::Left { conn, channel } => self.left(conn, &channel),
                Output::PatternInterest { pattern, readers } => {
                    let watch = |is_read| self.engine.watch(&Target::Pattern(pattern.clone()), is_read);
                    self.router.set_pattern_readers(self.id, &pattern, readers, watch);
                }
                Output::Wake(waiter) => self.waits.end(waiter, self.accepted.get()),
                Output::Refuse { conn, error } => {
                    let mut hub = self.hub.borrow_mut();
                    let Some(encoding) = hub.encoding(conn) else { continue };
                    let mut frame = Vec::new();
                    encoding.encode_text(&mut frame, &encode_error_push(&error));
                    hub.send(conn, &frame, &mut *self.sockets.borrow_mut());
                }
                Output::Close(conn) => {
                    self.sockets.borrow_mut().close(conn);
                    self.hub.borrow_mut().disconnect(conn);
                }
            }
        }
    }

    fn joined(&self, conn: ConnId, channel: &ChannelName) {
        let mut members = self.members.borrow_mut();
        let (member, channels) = match members.entry(conn) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => {
                let Some(client) = self.sockets.borrow().client(conn) else { return };
                let id = client.subject.unwrap_or_else(|| self.connection_id(client.conn).into());
                place.insert((Member { id, info: client.info }, 0))
            }
        };
        *channels += 1;
        if let Some(observer) = self.router.observer() {
            observer.joined(channel, member);
        }
    }

    fn left(&self, conn: ConnId, channel: &ChannelName) {
        let mut members = self.members.borrow_mut();
        let Some((member, channels)) = members.get_mut(&conn) else { return };
        *channels -= 1;
        if let Some(observer) = self.router.observer() {
            observer.left(channel, member);
        }
        if *channels == 0 {
            members.remove(&conn);
        }
    }

    fn read(self: &Rc<Self>, ticket: ReadTicket, channel: ChannelName, since: Since, policy: Policy) {
        match self.engine.page(&channel, since, policy, PAGE) {
            Answer::Now(Some(Ok(page))) => self.handle_page(ticket, &page),
            first => {
                let shard = self.clone();
                tokio::task::spawn_local(async move {
                    let mut page = first.await;
                    while let Err(error) = page {
                        Metrics::add(&shard.metrics.history_retries, 1);
                        tracing::debug!(%channel, %error, "history cannot be read, trying again");
                        tokio::time::sleep(RETRY).await;
                        page = shard.engine.page(&channel, since, policy, PAGE).await;
                    }
                    if let Ok(page) = page {
                        shard.handle_page(ticket, &page);
                        shard.do_outputs();
                    }
                });
            }
        }
    }

    fn handle_page(&self, ticket: ReadTicket, page: &Page) {
        if page.gap.is_some() {
            Metrics::add(&self.metrics.gaps, 1);
        }
        self.hub.borrow_mut().handle_page(ticket, page, &mut *self.sockets.borrow_mut());
    }
}
