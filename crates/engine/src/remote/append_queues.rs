use std::{
    collections::{HashMap, VecDeque, hash_map::Entry},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use millrace_protocol::{ChannelName, Code, Error, NewPublication, Position};
use tokio::{
    sync::{Notify, oneshot},
    time::Instant,
};

/// Maximum publications and bytes of one batch. A batch has at least one publication.
const BATCH_COUNT_MAX: usize = 100;
const BATCH_BYTES_MAX: usize = 1 << 20;
/// Maximum number of queued publications per channel, and maximum queued bytes of all channels.
const CHANNEL_COUNT_MAX: usize = 10_000;
const BYTES_MAX: usize = 64 << 20;

/// Publications on their way to the broker. Each channel has at most one batch in flight; publications that arrive
/// meanwhile form the next batch. This keeps the order, and larger batches reduce the cost per publication under load.
pub(super) struct AppendQueues {
    wait: Duration,
    /// Channels with a batch in flight, each with the publications queued behind it.
    queues: Mutex<HashMap<ChannelName, VecDeque<Waiting>>>,
    bytes: AtomicUsize,
    next_token: AtomicU64,
    idle: Notify,
}

/// A publication in a queue, and the sender of its answer.
pub(super) struct Waiting {
    pub publication: NewPublication,
    pub until: Instant,
    pub answer: oneshot::Sender<Result<Position, Error>>,
}

impl AppendQueues {
    /// Creates an empty set of queues. A publication is answered after `wait` at the latest.
    pub fn new(wait: Duration) -> Self {
        let (queues, bytes, next_token, idle) = Default::default();
        Self { wait, queues, bytes, next_token, idle }
    }

    /// Waits until no publication is queued or in flight.
    pub async fn idle(&self) {
        loop {
            let idle = self.idle.notified();
            if self.lock().is_empty() {
                return;
            }
            idle.await;
        }
    }

    /// Returns the number of channels with a batch in flight.
    pub fn flying(&self) -> usize {
        self.lock().len()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ChannelName, VecDeque<Waiting>>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a publication behind the batch in flight and returns the receiver of its answer. The second value is true
    /// if no batch of the channel is in flight; then the caller must send the batches of the channel.
    ///
    /// Errors: [`Code::Congested`] if a queue is full.
    pub fn push(
        &self,
        channel: &ChannelName,
        publication: NewPublication,
    ) -> Result<(oneshot::Receiver<Result<Position, Error>>, bool), Error> {
        let congested = || Error::new(Code::Congested, "too many publications wait for the engine; try again");
        let (answer, receiver) = oneshot::channel();
        let bytes = publication.cost_bytes();
        let waiting = Waiting { publication, until: Instant::now() + self.wait, answer };
        if self.bytes.fetch_add(bytes, Relaxed) > BYTES_MAX {
            self.release(bytes);
            return Err(congested());
        }
        match self.lock().entry(channel.clone()) {
            Entry::Occupied(queue) if queue.get().len() >= CHANNEL_COUNT_MAX => {
                self.release(bytes);
                Err(congested())
            }
            Entry::Occupied(mut queue) => {
                queue.get_mut().push_back(waiting);
                Ok((receiver, false))
            }
            Entry::Vacant(queue) => {
                queue.insert(VecDeque::from([waiting]));
                Ok((receiver, true))
            }
        }
    }

    /// Subtracts the bytes of answered or refused publications.
    pub fn release(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes, Relaxed);
    }

    /// Returns the number of the next batch; see [`Token`](super::broker::Token).
    pub fn next_token(&self) -> u64 {
        self.next_token.fetch_add(1, Relaxed)
    }

    /// Returns the next batch of a channel. If nothing is queued, removes the channel.
    pub fn next(&self, channel: &ChannelName) -> Option<VecDeque<Waiting>> {
        let mut queues = self.lock();
        let queue = queues.get_mut(channel)?;
        if queue.is_empty() {
            queues.remove(channel);
            if queues.is_empty() {
                self.idle.notify_waiters();
            }
            return None;
        }
        let mut bytes = 0;
        let fits = |waiting: &&Waiting| {
            bytes += waiting.publication.cost_bytes();
            bytes <= BATCH_BYTES_MAX
        };
        let count = queue.iter().take(BATCH_COUNT_MAX).take_while(fits).count().max(1);
        let rest = queue.split_off(count);
        Some(std::mem::replace(queue, rest))
    }
}
