use std::{
    cell::{Cell, RefCell},
    collections::{HashMap, hash_map::Entry},
    future::poll_fn,
    rc::Rc,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use millrace_delivery::{ConnId, FirstPage, Hub, Output, Page, PageLimit, ReadTicket, WaiterId, Wire};
use millrace_engine::{Answer, ChannelSlot, Engine};
use millrace_protocol::{
    ChannelName, Code, Error, NewPublication, Pattern, Position, Since, Transport,
    session::{Policy, Target, encode_error_push},
};

use tokio::sync::Notify;

use crate::{
    ChannelEvent, Delivery, Mailbox, Member, Metrics, NamespaceId, Observer, Router,
    namespaces::{NamespaceCache, NamespaceCounters},
    spans::{OpenSpan, RecordSpan, Step},
};

/// Limit of one page of recovery: small enough to interleave with other pages, large enough to be worth a read.
const PAGE: PageLimit = PageLimit { count: 1000, bytes: 64 * 1024 };
/// Pause before a failed read of history is retried.
const RETRY: Duration = Duration::from_millis(100);
/// A scan of all channels that is shorter than this needs no pause after it.
const LOOK: Duration = Duration::from_millis(1);
/// Maximum number of existing channels that one pattern may open.
const PATTERN_CHANNELS_MAX: usize = 10_000;

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

/// A connection whose wait has ended; see [`Shard::woken`].
#[derive(Clone, Copy, Debug)]
pub struct Woken {
    pub conn: ConnId,
    /// Time at which the oldest publication of the turn was accepted. `None` if no publication ended the wait.
    pub since: Option<Instant>,
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
    router: Arc<Router>,
    shard: usize,
    observer: Arc<dyn Observer>,
}

impl ShardObserver {
    pub fn opened(&self, conn: ConnId, subject: Option<&Arc<str>>, transport: Transport) {
        self.observer.opened(&self.router.connection_id(self.shard, conn), subject, transport);
    }

    pub fn closed(&self, conn: ConnId) {
        self.observer.closed(&self.router.connection_id(self.shard, conn));
    }
}

/// Start of a subscription, reported before its first publication.
#[derive(Clone, Debug)]
pub struct Start {
    pub channel: ChannelName,
    /// Place up to which the reader has everything. After a gap, the start of the gap: if the connection breaks
    /// before the gap is reported, the reader must not miss it.
    pub position: Since,
    /// False if history does not reach back to the requested position.
    pub recovered: bool,
}

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
    /// Wakers of the waiting tasks. `None` until the task is polled.
    wakers: RefCell<HashMap<u64, Option<Waker>>>,
    next_waiter: Cell<u64>,
    /// Connections that waited and were woken; see [`Shard::woken`].
    woken: RefCell<Vec<Woken>>,
    has_woken: Notify,
    spare: Cell<Vec<Delivery>>,
    /// Begin of the work that ends with the next turn; see [`Shard::attend`].
    began: Cell<Option<Instant>>,
    /// Time at which the oldest publication of the current turn was accepted.
    accepted: Cell<Option<Instant>>,
    namespaces: RefCell<NamespaceCache>,
    looking: tokio::sync::Mutex<()>,
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
            wakers: RefCell::default(),
            next_waiter: Cell::new(0),
            woken: RefCell::default(),
            has_woken: Notify::new(),
            spare: Cell::default(),
            began: Cell::default(),
            accepted: Cell::default(),
            namespaces: RefCell::default(),
            looking: tokio::sync::Mutex::default(),
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

    /// Makes a connection a reader of channels. `preamble` encodes the starts into bytes that are sent before the
    /// first publication.
    ///
    /// Errors: those of [`Hub::check_attach`] and of the engine. Then the connection reads none of the channels.
    pub async fn subscribe(
        self: &Rc<Self>,
        conn: ConnId,
        channels: &[(ChannelName, Since)],
        policy: Policy,
        preamble: impl FnOnce(&[Start]) -> Vec<u8>,
    ) -> Result<(), Error> {
        let watching = Watching::new(self, channels.iter().map(|(name, _)| name));
        let mut pages = Vec::with_capacity(channels.len());
        for (ahead, (name, since)) in channels.iter().enumerate() {
            self.hub.borrow().check_attach(conn, name, ahead)?;
            let page = self.engine.page(name, *since, policy, PAGE).await?;
            pages.push(FirstPage { channel: name.clone(), since: *since, page });
        }
        // Checked again before the preamble is sent, because after it the subscription cannot be refused any more.
        for (ahead, (name, _)) in channels.iter().enumerate() {
            self.hub.borrow().check_attach(conn, name, ahead)?;
        }
        let start = |first: &FirstPage| Start {
            channel: first.channel.clone(),
            position: first.start(),
            recovered: first.page.gap.is_none(),
        };
        let gaps = pages.iter().filter(|first| first.page.gap.is_some()).count();
        Metrics::add(&self.metrics.gaps, gaps as u64);
        let starts: Vec<Start> = pages.iter().map(start).collect();
        let preamble = preamble(&starts);
        watching.done();
        self.with(|hub, sockets| {
            hub.send(conn, &preamble, sockets);
            hub.attach(conn, policy, &pages, sockets)
        })
    }

    /// Makes a connection a reader of all channels that match. Channels in `positions` continue from there; other
    /// existing ones start at `since`. `preamble` receives the time (ms) that the client passes as `since` to resume
    /// on another connection.
    ///
    /// Errors: those of [`Hub::subscribe_pattern`] and of the engine.
    pub async fn subscribe_pattern(
        self: &Rc<Self>,
        conn: ConnId,
        pattern: &Pattern,
        since: Since,
        positions: HashMap<ChannelName, Position>,
        policy: Policy,
        preamble: impl FnOnce(u64) -> Vec<u8>,
    ) -> Result<(), Error> {
        // A resume starts at the positions received. Other channels resume at the start of this subscription, not at
        // the time of the resume.
        let now_ms = self.engine.now_ms();
        let since_ms = match since {
            Since::Time(ms) => ms.min(now_ms),
            Since::Earliest => 0,
            _ => now_ms,
        };
        if let Some(other) = positions.keys().find(|name| !pattern.matches(name.as_str())) {
            return Err(Error::new(Code::BadRequest, format!("{other} in `positions` does not match the pattern")));
        }
        self.router.check_pattern(pattern)?;
        self.with(|hub, _| hub.subscribe_pattern(conn, pattern, policy, since_ms))?;
        let opened = self.open_pattern(conn, pattern, since, positions, policy, preamble(since_ms)).await;
        self.with(|hub, _| match &opened {
            Ok(()) => hub.attach_open_channels(conn, pattern),
            Err(_) => drop(hub.unsubscribe(conn, &Target::Pattern(pattern.clone()))),
        });
        opened
    }

    /// Returns the channels that match. One scan runs at a time, and long scans are followed by a pause, so that scans
    /// use at most a fifth of this shard's time.
    async fn look(&self, pattern: &Pattern) -> Result<Vec<ChannelName>, Error> {
        let _alone = self.looking.lock().await;
        let began = Instant::now();
        let found = self.engine.channels(pattern, None, PATTERN_CHANNELS_MAX).await;
        let spent = began.elapsed();
        if spent > LOOK {
            tokio::time::sleep(4 * spent.min(RETRY)).await;
        }
        found
    }

    /// Attaches a pattern to the channels that start before their next publication.
    async fn open_pattern(
        self: &Rc<Self>,
        conn: ConnId,
        pattern: &Pattern,
        since: Since,
        positions: HashMap<ChannelName, Position>,
        policy: Policy,
        preamble: Vec<u8>,
    ) -> Result<(), Error> {
        self.engine.joined(pattern).await?;
        let mut starts: Vec<(ChannelName, Since)> =
            positions.iter().map(|(name, at)| (name.clone(), Since::Position(*at))).collect();
        if since != Since::Now {
            let existing = self.look(pattern).await?;
            starts.extend(existing.into_iter().filter(|name| !positions.contains_key(name)).map(|name| (name, since)));
        }
        self.with(|hub, sockets| hub.send(conn, &preamble, sockets));
        for (name, since) in starts {
            let watching = Watching::new(self, std::iter::once(&name));
            let page = self.engine.page(&name, since, policy, PAGE).await?;
            watching.done();
            let first = FirstPage { channel: name, since, page };
            // Refused only if the connection already reads the channel by its name, or has the maximum number of
            // subscriptions.
            let _ = self.with(|hub, sockets| hub.attach_matching(conn, pattern, &first, sockets));
        }
        Ok(())
    }

    /// Starts a wait for the next publication of any of these channels. Read the history after this call, never
    /// before.
    pub fn wait(self: &Rc<Self>, names: &[ChannelName]) -> Waiting<S> {
        let id = self.next_waiter.replace(self.next_waiter.get() + 1);
        self.wakers.borrow_mut().insert(id, None);
        self.with(|hub, _| hub.wait(WaiterId::Task(id), names));
        Waiting { shard: self.clone(), id }
    }

    /// Starts a wait for a connection without a task. [`Shard::woken`] returns its id after the next publication of
    /// any of these channels. Read the history after this call, never before. The wait ends with [`Hub::forget`] or
    /// [`Hub::disconnect`].
    pub fn wait_conn(self: &Rc<Self>, conn: ConnId, names: &[ChannelName]) {
        self.with(|hub, _| {
            // A pending wake-up may belong to an earlier wait.
            hub.forget(WaiterId::Conn(conn));
            hub.wait(WaiterId::Conn(conn), names);
        });
    }

    /// Returns the connections woken since the last call; waits while there are none. Only one task of the shard may
    /// call it.
    pub async fn woken(&self) -> Vec<Woken> {
        loop {
            let woken = self.woken.take();
            if !woken.is_empty() {
                return woken;
            }
            self.has_woken.notified().await;
        }
    }

    /// Returns every waiter of the shard.
    pub fn waiters(&self) -> Vec<WaiterId> {
        self.hub.borrow().waiters().collect()
    }

    /// Ends a wait as a publication would. An unknown waiter is ignored.
    pub fn wake(self: &Rc<Self>, id: WaiterId) {
        self.with(|hub, _| hub.forget(id));
        self.report_woken(id);
    }

    fn report_woken(&self, id: WaiterId) {
        match id {
            WaiterId::Task(id) => {
                if let Some(waker) = self.wakers.borrow_mut().remove(&id).flatten() {
                    waker.wake();
                }
            }
            WaiterId::Conn(conn) => {
                let mut woken = self.woken.borrow_mut();
                if woken.is_empty() {
                    self.has_woken.notify_one();
                }
                woken.push(Woken { conn, since: self.accepted.get() });
            }
        }
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
                Output::Wake(waiter) => self.report_woken(waiter),
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

/// Channels being opened. They are released if the subscription fails or is dropped before its end.
struct Watching<'a, S: Sockets> {
    shard: &'a Rc<Shard<S>>,
    names: Vec<ChannelName>,
}

impl<'a, S: Sockets> Watching<'a, S> {
    fn new<'n>(shard: &'a Rc<Shard<S>>, names: impl Iterator<Item = &'n ChannelName>) -> Self {
        let names: Vec<ChannelName> = names.cloned().collect();
        shard.with(|hub, _| names.iter().for_each(|name| hub.watch(name)));
        Self { shard, names }
    }

    /// Keeps the channels: [`Hub::attach`] takes over.
    fn done(mut self) {
        self.names.clear();
    }
}

impl<S: Sockets> Drop for Watching<'_, S> {
    fn drop(&mut self) {
        let names = std::mem::take(&mut self.names);
        if !names.is_empty() {
            self.shard.with(|hub, _| names.iter().for_each(|name| hub.release(name)));
        }
    }
}

/// A wait for a publication. Dropping it ends the wait.
pub struct Waiting<S: Sockets> {
    shard: Rc<Shard<S>>,
    id: u64,
}

impl<S: Sockets> Waiting<S> {
    /// Returns when a publication has arrived since [`Shard::wait`], or the server drains.
    pub async fn woken(&self) {
        poll_fn(|cx: &mut Context<'_>| match self.shard.wakers.borrow_mut().get_mut(&self.id) {
            None => Poll::Ready(()),
            Some(waker) => {
                *waker = Some(cx.waker().clone());
                Poll::Pending
            }
        })
        .await;
    }
}

impl<S: Sockets> Drop for Waiting<S> {
    fn drop(&mut self) {
        self.shard.wakers.borrow_mut().remove(&self.id);
        self.shard.with(|hub, _| hub.forget(WaiterId::Task(self.id)));
    }
}
