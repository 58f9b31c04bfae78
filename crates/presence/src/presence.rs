use std::{
    future::Future,
    io,
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::JoinHandle,
    time::Duration,
};

use futures_util::{StreamExt, stream::FuturesUnordered};
use millrace_delivery::PageLimit;
use millrace_engine::{Answer, Engine, LogRateLimit};
use millrace_node::Observer;
use millrace_protocol::{ChannelName, Error, INTERNAL, Position, Since, session::Policy};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};

use crate::{Now, Request, RequestId, Response, Stats, Wanted, Writer, inbox::Inbox};

/// Limit of one page of a list.
const PAGE: PageLimit = PageLimit { count: 1000, bytes: 1 << 20 };
/// Maximum time that the end takes: the other nodes remove what is left then.
const LEAVE: Duration = Duration::from_secs(2);

/// A reader of the lists in this process.
pub trait Consumer: Send + Sync {
    /// Called before this node adds its first entry to a list. The entry is written once the answer is `Ok`; an error
    /// is retried.
    fn prepare(&self, list: &ChannelName) -> Answer<Result<(), Error>>;

    /// A list has a new publication by this node. It must not block.
    fn written(&self, list: &ChannelName);
}

/// The lists of this node: its thread, and what the shards report to it.
pub struct Presence {
    inbox: Arc<Inbox>,
    other: Arc<OtherProcess>,
    status: Arc<Status>,
    stop: watch::Sender<bool>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// Name of the other process of an upgrade, which uses the same engine. An engine without a broker does not know its
/// nodes.
#[derive(Default)]
struct OtherProcess(Mutex<Option<String>>);

#[derive(Default)]
struct Status {
    stats: Mutex<Stats>,
    is_first: AtomicBool,
}

impl Presence {
    /// Starts the thread. `node`: the name of this node, which it has never had before (`[0-9a-f]+`).
    ///
    /// Errors: the system refuses a thread.
    pub fn start(
        node: &str,
        engine: Arc<dyn Engine>,
        wanted: Wanted,
        consumer: Option<Arc<dyn Consumer>>,
    ) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
        let (inbox, status) = (Arc::new(Inbox::new(wanted)), Arc::new(Status::default()));
        let (stop, stopped) = watch::channel(false);
        let other = Arc::<OtherProcess>::default();
        let (shared, shown, shares, node) = (inbox.clone(), status.clone(), other.clone(), node.to_owned());
        let thread = std::thread::Builder::new().name("presence".into()).spawn(move || {
            runtime.block_on(run(&node, (engine, &shares), &shared, &shown, consumer, stopped));
        })?;
        Ok(Self { inbox, other, status, stop, thread: Mutex::new(Some(thread)) })
    }

    /// Sets the name of the other process while two processes use the engine, so that neither removes the entries of
    /// the other.
    pub fn share_with(&self, node: Option<&str>) {
        *self.other.0.lock().unwrap_or_else(PoisonError::into_inner) = node.map(Into::into);
    }

    /// Returns the observer to which the shards report.
    pub fn observer(&self) -> Arc<dyn Observer> {
        self.inbox.clone()
    }

    pub fn stats(&self) -> Stats {
        *self.status.stats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true if no live node that keeps lists has a lower name. During a change, two nodes or none may be first.
    pub fn is_first(&self) -> bool {
        self.status.is_first.load(Relaxed)
    }

    /// Removes this node from all lists, within two seconds, and ends the thread.
    pub fn stop(&self) {
        self.stop.send_replace(true);
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        self.stop();
    }
}

/// An answer in progress, and the channel if it is to a write.
type Answering = Pin<Box<dyn Future<Output = (RequestId, Option<ChannelName>, Response)>>>;

/// The writer, with what it needs.
struct Loop<'a> {
    node: &'a str,
    engine: Arc<dyn Engine>,
    other: &'a OtherProcess,
    consumer: Option<Arc<dyn Consumer>>,
    inbox: &'a Inbox,
    began: Instant,
    writer: Writer,
    answers: FuturesUnordered<Answering>,
}

async fn run(
    node: &str,
    (engine, other): (Arc<dyn Engine>, &OtherProcess),
    inbox: &Inbox,
    status: &Status,
    consumer: Option<Arc<dyn Consumer>>,
    mut stopped: watch::Receiver<bool>,
) {
    let began = Instant::now();
    let now = Now { ms: 0, unix_ms: engine.now_ms() };
    let writer = Writer::new(node, consumer.is_some(), now);
    let mut this = Loop { node, engine, other, consumer, inbox, began, writer, answers: FuturesUnordered::new() };
    let full = LogRateLimit::new();
    let mut leaves_until = None::<Instant>;
    loop {
        this.turn();
        let stats = this.writer.stats();
        if stats.refused > 0 && full.is_due() {
            tracing::warn!(
                refused = stats.refused,
                "lists are full, so some members, channels or connections are not listed: raise `keys_max` of the namespace, \
                 or `engine.channels_max`"
            );
        }
        *status.stats.lock().unwrap_or_else(PoisonError::into_inner) = stats;
        status.is_first.store(this.writer.is_first(), Relaxed);
        if this.writer.has_left() || leaves_until.is_some_and(|until| until <= Instant::now()) {
            return;
        }
        let timeout_ms = this.writer.timeout_ms(this.now());
        let timeout = began + Duration::from_millis(timeout_ms);
        tokio::select! {
            () = inbox.has_changes.notified() => {}
            () = sleep_until(leaves_until.map_or(timeout, |until| until.min(timeout))) => {}
            Some((id, channel, response)) = this.answers.next() => this.handle(id, channel.as_ref(), response),
            _ = stopped.wait_for(|stopped| *stopped), if leaves_until.is_none() => {
                leaves_until = Some(Instant::now() + LEAVE);
                this.writer.leave(this.now());
            }
        }
    }
}

impl Loop<'_> {
    fn now(&self) -> Now {
        Now { ms: self.began.elapsed().as_millis() as u64, unix_ms: self.engine.now_ms() }
    }

    /// Passes the changes to the writer, and its requests to the engine.
    fn turn(&mut self) {
        let now = self.now();
        let mut grace_ms = std::collections::HashMap::new();
        for ((list, key), change) in self.inbox.take() {
            let grace_ms = *grace_ms.entry(list.clone()).or_insert_with(|| self.inbox.wanted.grace_ms(&list));
            self.writer.change(&list, &key, change.connections, change.info, grace_ms, now);
        }
        self.writer.tick(now);
        while let Some((id, request)) = self.writer.poll_request() {
            self.send(id, request);
        }
    }

    /// Sends a request. An answer that is ready is handled at once.
    fn send(&mut self, id: RequestId, request: Request) {
        let engine = self.engine.clone();
        match request {
            Request::Append { channel, publication } => match engine.append(&channel, publication) {
                Answer::Now(Some(outcome)) => self.handle(id, Some(&channel), Response::Appended(outcome)),
                answer => {
                    self.answers.push(Box::pin(async move { (id, Some(channel), Response::Appended(answer.await)) }));
                }
            },
            Request::Prepare { list } if self.consumer.is_some() => {
                let prepared = self.consumer.as_ref().map(|consumer| consumer.prepare(&list));
                self.answers.push(Box::pin(async move {
                    let prepared = prepared.unwrap_or_else(|| Answer::now(Ok(()))).await;
                    (id, None, Response::Prepared(prepared))
                }));
            }
            Request::LiveNodes => {
                let (own, other) =
                    (self.node.to_owned(), self.other.0.lock().unwrap_or_else(PoisonError::into_inner).clone());
                self.answers.push(Box::pin(async move {
                    let live = engine.live_nodes().await;
                    let live = live.map(|live| live.or_else(|| other.map(|other| vec![own, other])));
                    (id, None, Response::LiveNodes(live))
                }));
            }
            request => {
                self.answers.push(Box::pin(async move { (id, None, execute(&*engine, request).await) }));
            }
        }
    }

    /// Handles an answer. `written`: the channel, if the answer is to a write.
    fn handle(&mut self, id: RequestId, written: Option<&ChannelName>, response: Response) {
        if let (Some(consumer), Some(channel)) = (&self.consumer, written)
            && matches!(response, Response::Appended(Ok(_)))
            && !is_of_nodes(channel)
        {
            consumer.written(channel);
        }
        self.writer.handle_response(id, response, self.now());
    }
}

/// Executes a request with an engine.
pub async fn execute(engine: &dyn Engine, request: Request) -> Response {
    match request {
        Request::Append { channel, publication } => Response::Appended(engine.append(&channel, publication).await),
        Request::ReadEntry { list, key, at } => Response::Entry(read_entry(engine, &list, &key, at).await),
        Request::ReadPage { channel, since } => Response::Page(engine.page(&channel, since, Policy::Every, PAGE).await),
        Request::LiveNodes => Response::LiveNodes(engine.live_nodes().await),
        Request::Prepare { .. } => Response::Prepared(Ok(())),
    }
}

/// Returns true for the channels that hold the names of the nodes and of their lists.
fn is_of_nodes(channel: &ChannelName) -> bool {
    let rest = channel.as_str().strip_prefix(INTERNAL).and_then(|rest| rest.strip_prefix("/nodes"));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Reads the entry at this position of a list. Returns `None` if the key has another position, or no longer exists.
async fn read_entry(
    engine: &dyn Engine,
    list: &ChannelName,
    key: &str,
    at: Position,
) -> Result<Option<Vec<u8>>, Error> {
    // The top as the begin of the reading: no deletion before it matters.
    let began = engine.newest(list).await?.top.offset;
    let since = Since::StateAfter { epoch: at.epoch, offset: at.offset.saturating_sub(1), began };
    let page = engine.page(list, since, Policy::Every, PageLimit { count: 1, bytes: 0 }).await?;
    let first = page.publications.first().filter(|_| page.gap.is_none() && page.top.epoch == at.epoch);
    let is_it = |offset: u64, found: Option<&str>| offset == at.offset && found == Some(key);
    let entry = first.filter(|first| is_it(first.offset, first.key.as_deref()) && !first.is_deletion);
    Ok(entry.map(|entry| entry.data().to_vec()))
}
