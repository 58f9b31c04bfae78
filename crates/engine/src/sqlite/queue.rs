//! Queue of publications for the writer thread.

use std::{
    collections::VecDeque,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use millrace_protocol::{ChannelName, Code, Error, NewPublication, Position};
use tokio::sync::oneshot;

/// Maximum number of queued publications, and their bytes. Beyond it, publications are refused.
const WAITING_MAX: usize = 65_536;
const WAITING_BYTES_MAX: usize = 64 << 20;
/// Maximum publications and bytes of one transaction, to keep it short. A transaction takes at least one publication.
const BATCH_MAX: usize = 4096;
const BATCH_BYTES_MAX: usize = 8 << 20;

pub(super) struct Submitted {
    pub channel: ChannelName,
    pub publication: NewPublication,
    pub answer: oneshot::Sender<Result<Position, Error>>,
}

#[derive(Default)]
pub(super) struct Queue {
    waiting: Mutex<Waiting>,
    news: Condvar,
}

#[derive(Default)]
struct Waiting {
    submitted: VecDeque<Submitted>,
    bytes: usize,
    sweep: bool,
    closed: bool,
    /// True while the writer sleeps. Otherwise no wake-up is sent, because a wake-up is a system call.
    is_writer_waiting: bool,
}

/// The next work of the writer.
pub(super) struct Work {
    pub batch: Vec<Submitted>,
    pub sweep: bool,
    /// True if the queue is closed and empty.
    pub is_over: bool,
}

impl Queue {
    /// Queues a publication.
    ///
    /// Errors: `congested` if the queue is full, `unavailable` after close.
    pub fn submit(&self, submitted: Submitted) -> Result<(), Error> {
        let bytes = submitted.publication.cost_bytes();
        let mut waiting = self.lock();
        if waiting.closed {
            return Err(Error::new(
                Code::Unavailable,
                "this server is shutting down; connect again to reach another server",
            ));
        }
        if waiting.submitted.len() >= WAITING_MAX || waiting.bytes + bytes > WAITING_BYTES_MAX.max(bytes) {
            return Err(Error::new(Code::Congested, "publications arrive faster than the disk stores them; try again"));
        }
        waiting.bytes += bytes;
        waiting.submitted.push_back(submitted);
        self.wake(waiting);
        Ok(())
    }

    pub fn sweep(&self) {
        let mut waiting = self.lock();
        waiting.sweep = true;
        self.wake(waiting);
    }

    pub fn close(&self) {
        let mut waiting = self.lock();
        waiting.closed = true;
        self.wake(waiting);
    }

    /// Wakes the writer if it sleeps: one wake-up for everything queued until it runs.
    fn wake(&self, mut waiting: MutexGuard<'_, Waiting>) {
        if std::mem::take(&mut waiting.is_writer_waiting) {
            drop(waiting);
            self.news.notify_one();
        }
    }

    /// Waits until there is work, for at most `wait`, and returns it.
    pub fn take(&self, wait: Duration) -> Work {
        let is_idle = |waiting: &mut Waiting| {
            waiting.is_writer_waiting = waiting.submitted.is_empty() && !waiting.sweep && !waiting.closed;
            waiting.is_writer_waiting
        };
        let waited = self.news.wait_timeout_while(self.lock(), wait, is_idle);
        let mut waiting = waited.unwrap_or_else(PoisonError::into_inner).0;
        waiting.is_writer_waiting = false;
        let (mut batch, mut bytes) = (Vec::new(), 0);
        while batch.len() < BATCH_MAX
            && let Some(next) = waiting.submitted.front()
        {
            bytes += next.publication.cost_bytes();
            if bytes > BATCH_BYTES_MAX && !batch.is_empty() {
                break;
            }
            waiting.bytes -= next.publication.cost_bytes();
            batch.extend(waiting.submitted.pop_front());
        }
        let is_over = waiting.closed && batch.is_empty();
        Work { batch, sweep: std::mem::take(&mut waiting.sweep), is_over }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
