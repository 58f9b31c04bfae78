//! The thread that owns the buffer. Its disk may block; the tasks of the gateway do not.

use std::{
    path::Path,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use millrace_buffer::{Batch, Buffer, Check, Config, Message, OpenError, Outcome, PutError, Receipt, Stats, Step};
use millrace_client::{clock, random::Random};
use tokio::sync::{Notify, mpsc, oneshot};

use super::files::{Files, FilesError};

/// Maximum number of requests to the thread that wait.
const REQUESTS_MAX: usize = 64;
/// Maximum number of messages stored with one sync of the disk.
const MESSAGES_PER_SYNC: usize = 1000;

/// The thread of the buffer has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the thread of the buffer has ended")]
pub struct StoreError;

/// Reason why messages are not stored.
#[derive(Debug, thiserror::Error)]
pub enum StorePutError {
    #[error(transparent)]
    Put(#[from] Arc<PutError>),
    #[error(transparent)]
    Store(#[from] StoreError),
}

type PutAnswer = oneshot::Sender<Result<Vec<Receipt>, Arc<PutError>>>;

enum Request {
    Put(Vec<Message<'static>>, PutAnswer),
    /// Returns the next request, or the time until the next attempt.
    Step(oneshot::Sender<std::io::Result<Next>>),
    Outcome(Batch, Outcome, oneshot::Sender<()>),
    Checked(Check, Checked, oneshot::Sender<()>),
    Stats(oneshot::Sender<Stats>),
}

/// Next action of the sender.
#[derive(Debug)]
pub enum Next {
    Step(Step),
    /// Wait this long, or until a message is stored. `None`: until a message is stored.
    Wait(Option<Duration>),
}

/// Result of reading the history of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checked {
    /// The history was read as far as necessary.
    Read,
    /// The server does not permit reading, or has no history.
    NotReadable,
    /// The server did not answer; the check is repeated.
    Failed,
}

/// Handle of the thread.
#[derive(Clone, Debug)]
pub struct Store {
    requests: mpsc::Sender<Request>,
    /// Notified when messages were stored.
    stored: Arc<Notify>,
    /// Notified after each answer of the server.
    sent: Arc<Notify>,
}

impl Store {
    /// Opens the buffer in a directory, and starts the thread. Returns also the bytes that a crash left incomplete.
    pub fn open(directory: &Path, config: Config) -> Result<(Self, u64), FilesError> {
        let files = Files::open(directory)?;
        let time = Time::now();
        let buffer = open(config, files, time, directory)?;
        let torn_bytes = buffer.torn_bytes();
        let (requests, inbox) = mpsc::channel(REQUESTS_MAX);
        let thread = thread::Builder::new().name("buffer".into()).spawn(move || run(buffer, inbox, time));
        thread.map_err(|error| FilesError::Io(directory.to_owned(), error))?;
        Ok((Self { requests, stored: Arc::default(), sent: Arc::default() }, torn_bytes))
    }

    /// Stores messages. After success they survive a power failure.
    pub async fn put(&self, messages: Vec<Message<'static>>) -> Result<Vec<Receipt>, StorePutError> {
        let receipts = self.ask(|answer| Request::Put(messages, answer)).await??;
        self.stored.notify_one();
        Ok(receipts)
    }

    pub async fn next(&self) -> Result<std::io::Result<Next>, StoreError> {
        self.ask(Request::Step).await
    }

    /// Returns when a message was stored since the last call.
    pub async fn stored(&self) {
        self.stored.notified().await;
    }

    pub async fn handle_outcome(&self, batch: Batch, outcome: Outcome) -> Result<(), StoreError> {
        self.ask(|answer| Request::Outcome(batch, outcome, answer)).await?;
        self.sent.notify_waiters();
        Ok(())
    }

    pub async fn handle_check(&self, check: Check, result: Checked) -> Result<(), StoreError> {
        self.ask(|answer| Request::Checked(check, result, answer)).await?;
        self.sent.notify_waiters();
        Ok(())
    }

    pub async fn stats(&self) -> Result<Stats, StoreError> {
        self.ask(Request::Stats).await
    }

    /// Returns when no message waits.
    pub async fn drained(&self) -> Result<(), StoreError> {
        loop {
            let sent = self.sent.notified();
            tokio::pin!(sent);
            sent.as_mut().enable();
            if self.stats().await?.waiting == 0 {
                return Ok(());
            }
            // Messages can also expire.
            let _ = tokio::time::timeout(Duration::from_secs(1), sent).await;
        }
    }

    async fn ask<T>(&self, request: impl FnOnce(oneshot::Sender<T>) -> Request) -> Result<T, StoreError> {
        let (answer, answered) = oneshot::channel();
        self.requests.send(request(answer)).await.map_err(|_| StoreError)?;
        answered.await.map_err(|_| StoreError)
    }
}

/// The time of the buffer: the clock at the start, then monotonic time, so that a correction of the clock makes no
/// message old.
#[derive(Clone, Copy)]
struct Time {
    start_ms: u64,
    started: Instant,
}

impl Time {
    fn now() -> Self {
        Self { start_ms: clock::now_ms(), started: Instant::now() }
    }

    fn ms(self) -> u64 {
        self.start_ms + self.started.elapsed().as_millis() as u64
    }
}

fn open(config: Config, files: Files, time: Time, directory: &Path) -> Result<Buffer<Files>, FilesError> {
    let opened = Buffer::open(config, files, time.ms(), Random::from_system().bits());
    opened.map_err(|OpenError::Disk(error)| FilesError::Io(directory.to_owned(), error))
}

fn run(mut buffer: Buffer<Files>, mut inbox: mpsc::Receiver<Request>, time: Time) {
    let mut random = Random::from_system();
    let mut next = None;
    while let Some(request) = next.take().or_else(|| inbox.blocking_recv()) {
        match request {
            Request::Put(messages, answer) => {
                let mut puts = vec![(messages.len(), answer)];
                let mut messages = messages;
                // Further puts that wait already share the sync.
                while next.is_none() && messages.len() < MESSAGES_PER_SYNC {
                    match inbox.try_recv() {
                        Ok(Request::Put(more, answer)) => {
                            puts.push((more.len(), answer));
                            messages.extend(more);
                        }
                        Ok(other) => next = Some(other),
                        Err(_) => break,
                    }
                }
                let mut stored = buffer.put(time.ms(), &messages).map_err(Arc::new);
                for (count, answer) in puts {
                    let part = match &mut stored {
                        Ok(receipts) => Ok(receipts.drain(..count).collect()),
                        Err(error) => Err(error.clone()),
                    };
                    let _ = answer.send(part);
                }
            }
            Request::Step(answer) => {
                let now_ms = time.ms();
                let step = buffer.poll_step(now_ms);
                let wait = || buffer.poll_timeout().map(|at| Duration::from_millis(at.saturating_sub(now_ms).max(1)));
                let _ = answer.send(step.map(|step| step.map_or_else(|| Next::Wait(wait()), Next::Step)));
            }
            Request::Checked(check, result, answer) => {
                match result {
                    Checked::Read | Checked::NotReadable => buffer.handle_check(&check, result == Checked::Read),
                    Checked::Failed => buffer.handle_failed_check(time.ms(), random.unit()),
                }
                let _ = answer.send(());
            }
            Request::Outcome(batch, outcome, answer) => {
                buffer.handle_outcome(time.ms(), &batch, outcome, random.unit());
                let _ = answer.send(());
            }
            Request::Stats(answer) => {
                buffer.expire(time.ms());
                let _ = answer.send(buffer.stats(time.ms()));
            }
        }
    }
}
