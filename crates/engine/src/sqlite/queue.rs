//! What waits for the writer.

use std::{
    collections::VecDeque,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use millrace_protocol::{ChannelName, Code, Error, NewPublication, Position};
use tokio::sync::oneshot;

/// Most publications and bytes that wait; beyond, publishers are refused.
const WAITING_MAX: usize = 65_536;
const WAITING_BYTES_MAX: usize = 64 << 20;
/// Most that one transaction takes, so that it ends soon; it always takes one.
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
    /// The writer waits for news. While it does not, nobody wakes it: that is a system call.
    is_writer_waiting: bool,
}

/// What the writer does next.
pub(super) struct Work {
    pub batch: Vec<Submitted>,
    pub sweep: bool,
    /// Nothing waits and nothing will come.
    pub is_over: bool,
}

impl Queue {
    /// Errors: `congested` if too much waits, `unavailable` once closed.
    pub fn submit(&self, submitted: Submitted) -> Result<(), Error> {
        let bytes = submitted.publication.cost_bytes();
        let mut waiting = self.lock();
        if waiting.closed {
            return Err(Error::new(Code::Unavailable, "this server ends; another one will answer"));
        }
        if waiting.submitted.len() >= WAITING_MAX || waiting.bytes + bytes > WAITING_BYTES_MAX.max(bytes) {
            return Err(Error::new(Code::Congested, "publications come faster than the disk takes them; try again"));
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

    /// Wakes the writer, once for all that has come until it runs.
    fn wake(&self, mut waiting: MutexGuard<'_, Waiting>) {
        if std::mem::take(&mut waiting.is_writer_waiting) {
            drop(waiting);
            self.news.notify_one();
        }
    }

    /// Waits until there is something to do, this long at most.
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
