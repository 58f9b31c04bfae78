//! Order and history in a file, for one server. Needs no installation. Answered publications survive the end of the
//! process.
//!
//! One thread writes, in batches that form while the previous batch is being committed ([`writer`]). The newest part
//! of each log is also in memory ([`recent`]). Reader threads read older history from the file ([`reader`]).
//! Publications are delivered and answered after their commit, so no position is used twice. Source:
//! <https://www.sqlite.org/wal.html>.

mod evict;
mod file;
mod queue;
mod reader;
mod recent;
mod state;
mod writer;

use std::{
    io,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError, RwLock, RwLockReadGuard,
        atomic::{
            AtomicBool, AtomicU32, AtomicUsize,
            Ordering::{Acquire, Relaxed},
        },
    },
    thread::JoinHandle,
};

use millrace_delivery::{History, Page, PageLimit, no_state};
use millrace_protocol::{
    ChannelName, Code, Epoch, Error, NewPublication, Pattern, Position, Since,
    session::{Policy, Target},
};
use tokio::sync::oneshot;

use self::{
    file::File,
    queue::{Queue, Submitted},
    reader::{Ask, Readers},
    recent::{Found, RecentHistory},
    writer::Writer,
};
use crate::{
    Answer, Config, Deliver, Engine, Newest, OpenError,
    hand_over::{Ending, HandOver},
};

/// Maximum payload. SQLite refuses values larger than a billion bytes.
const PAYLOAD_BYTES_MAX: usize = 900_000_000;

/// The engine `sqlite`.
pub struct SqliteEngine<D: Deliver> {
    path: PathBuf,
    shared: Arc<Shared<D>>,
    readers: Readers,
    writer: Mutex<Option<JoinHandle<()>>>,
    /// The engine that has the file since it was handed over. Locked while a request is queued, so that none is queued
    /// after the file is closed.
    successor: RwLock<Option<Arc<dyn Engine>>>,
}

struct Shared<D: Deliver> {
    config: Config,
    deliver: Arc<D>,
    clock: Arc<dyn Fn() -> u64 + Send + Sync>,
    /// Epoch of channels that do not exist yet. It changes whenever channels are evicted.
    epoch: AtomicU32,
    queue: Queue,
    tails: RecentHistory<D>,
    /// Bytes of payloads and keys in the file.
    bytes: AtomicUsize,
    is_up: AtomicBool,
}

/// Returns the path in `sqlite:PATH`. `None` if the URL names another engine.
///
/// Errors: [`OpenError::Setting`] if the path is empty.
pub(crate) fn path(url: &str) -> Option<Result<&Path, OpenError>> {
    let path = url.strip_prefix("sqlite:")?;
    let what =
        "`sqlite:` is followed by the path of a file, such as sqlite:data.db or sqlite:/var/lib/millrace/data.db";
    Some(if path.is_empty() { Err(OpenError::Setting(what.into())) } else { Ok(Path::new(path)) })
}

impl<D: Deliver> SqliteEngine<D> {
    /// Opens or creates the file. `clock` returns milliseconds since 1970.
    ///
    /// Errors: [`OpenError`], whose text says what is wrong with the file and what to do.
    pub fn open(
        path: &Path,
        config: Config,
        deliver: Arc<D>,
        clock: impl Fn() -> u64 + Send + Sync + 'static,
    ) -> Result<Self, OpenError> {
        let file = File::open(path, &config)?;
        let readers = Readers::start(&file.path)?;
        let tails = RecentHistory::new(&config, deliver.clone());
        for (name, log) in &file.logs {
            tails.open(name, Position { epoch: log.epoch, offset: log.top }, log.bounds);
        }
        let (queue, bytes, is_up) = (Queue::default(), AtomicUsize::new(0), AtomicBool::new(true));
        let (clock, epoch) = (Arc::new(clock), AtomicU32::new(file.epoch.0));
        let shared = Arc::new(Shared { config, deliver, clock, epoch, queue, tails, bytes, is_up });
        let writer = Writer::new(shared.clone(), file);
        let thread = std::thread::Builder::new().name("sqlite-writer".into()).spawn(move || writer.run());
        let writer = Mutex::new(Some(thread.map_err(OpenError::System)?));
        Ok(Self { path: path.to_owned(), shared, readers, writer, successor: RwLock::default() })
    }

    fn successor(&self) -> RwLockReadGuard<'_, Option<Arc<dyn Engine>>> {
        self.successor.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_successor(&self, successor: Arc<dyn Engine>) {
        *self.successor.write().unwrap_or_else(PoisonError::into_inner) = Some(successor);
    }

    /// Stores what is queued, and closes the file.
    fn close_file(&self) {
        self.shared.queue.close();
        // The reader threads must end before the writer closes the file.
        self.readers.close();
        if let Some(writer) = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = writer.join();
        }
    }

    fn ask(&self, name: &ChannelName, since: Since, policy: Policy, limit: PageLimit) -> Ask {
        let bounds = self.shared.config.bounds(name);
        let unborn = self.shared.unborn();
        Ask { name: name.clone(), since, policy, limit, now_ms: self.now_ms(), bounds, unborn }
    }
}

impl<D: Deliver> Shared<D> {
    fn unborn(&self) -> Epoch {
        Epoch(self.epoch.load(Acquire))
    }
}

impl<D: Deliver> Engine for SqliteEngine<D> {
    fn append(&self, name: &ChannelName, publication: NewPublication) -> Answer<Result<Position, Error>> {
        let successor = self.successor();
        if let Some(successor) = &*successor {
            return successor.append(name, publication);
        }
        if publication.data.len() > PAYLOAD_BYTES_MAX {
            let detail = format!("the engine `sqlite` takes at most {PAYLOAD_BYTES_MAX} bytes");
            return Answer::now(Err(Error::new(Code::TooLarge, detail)));
        }
        let (answer, answered) = oneshot::channel();
        if let Err(refused) = self.shared.queue.submit(Submitted { channel: name.clone(), publication, answer }) {
            return Answer::now(Err(refused));
        }
        Answer::Later(Box::pin(async move {
            answered.await.unwrap_or_else(|_| Err(Error::new(Code::Unavailable, "the engine has ended")))
        }))
    }

    fn page(&self, name: &ChannelName, since: Since, policy: Policy, limit: PageLimit) -> Answer<Result<Page, Error>> {
        let successor = self.successor();
        if let Some(successor) = &*successor {
            return successor.page(name, since, policy, limit);
        }
        let Shared { config, tails, .. } = &*self.shared;
        if since.is_state() && config.bounds(name).keys_max == 0 {
            return Answer::now(Err(no_state()));
        }
        let now_ms = self.now_ms();
        match tails.page(name, since, policy, limit, now_ms) {
            Found::Here(page) => Answer::now(Ok(page)),
            Found::InFile => {
                let ask = self.ask(name, since, policy, limit);
                self.readers.ask(move |db| reader::page(db, ask))
            }
            Found::Nothing => {
                let bounds = config.bounds(name);
                Answer::now(Ok(History::new(self.shared.unborn()).page(since, policy, limit, now_ms, &bounds)))
            }
        }
    }

    fn newest(&self, name: &ChannelName) -> Answer<Result<Newest, Error>> {
        let successor = self.successor();
        if let Some(successor) = &*successor {
            return successor.newest(name);
        }
        match self.shared.tails.newest(name, self.now_ms()) {
            Found::Here(newest) => Answer::now(Ok(newest)),
            Found::InFile => {
                let ask = self.ask(name, Since::Now, Policy::Every, PageLimit { count: 1, bytes: 0 });
                self.readers.ask(move |db| reader::newest(db, ask))
            }
            Found::Nothing => {
                let top = Position { epoch: self.shared.unborn(), offset: 0 };
                Answer::now(Ok(Newest { top, publication: None }))
            }
        }
    }

    fn channels(
        &self,
        pattern: &Pattern,
        after: Option<&ChannelName>,
        max: usize,
    ) -> Answer<Result<Vec<ChannelName>, Error>> {
        match &*self.successor() {
            Some(successor) => successor.channels(pattern, after, max),
            None => Answer::now(Ok(self.shared.tails.channels(pattern, after, max))),
        }
    }

    /// All readers are on this node.
    fn presence(&self, name: &ChannelName) -> Answer<Result<u32, Error>> {
        match &*self.successor() {
            Some(successor) => successor.presence(name),
            None => Answer::now(Ok(self.shared.deliver.readers(name))),
        }
    }

    /// Does nothing: every publication of this process is delivered.
    fn watch(&self, _: &Target, _: bool) {}

    fn now_ms(&self) -> u64 {
        (self.shared.clock)()
    }

    /// The bytes are on disk, not in memory.
    fn size(&self) -> (usize, usize) {
        if let Some(successor) = &*self.successor() {
            return successor.size();
        }
        (self.shared.tails.channels_len(), self.shared.bytes.load(Relaxed))
    }

    fn sweep(&self) {
        if let Some(successor) = &*self.successor() {
            return successor.sweep();
        }
        self.shared.tails.sweep(self.now_ms());
        self.shared.queue.sweep();
    }

    /// Returns false after a failed write, until a write succeeds.
    fn is_up(&self) -> bool {
        match &*self.successor() {
            Some(successor) => successor.is_up(),
            None => self.shared.is_up.load(Acquire),
        }
    }

    fn hand_over(&self, to: &HandOver) -> io::Result<()> {
        self.set_successor(to.successor.clone());
        self.close_file();
        to.end(Ending::NOTHING)
    }

    /// Opens the file again.
    fn take_back(&self) -> io::Result<()> {
        let Shared { config, deliver, clock, .. } = &*self.shared;
        let clock = clock.clone();
        let reopened = Self::open(&self.path, config.clone(), deliver.clone(), move || clock());
        self.set_successor(Arc::new(reopened.map_err(io::Error::other)?));
        Ok(())
    }

    fn close(&self) {
        if let Some(successor) = &*self.successor() {
            successor.close();
        }
        self.close_file();
    }
}

impl<D: Deliver> Drop for SqliteEngine<D> {
    fn drop(&mut self) {
        self.close();
    }
}
