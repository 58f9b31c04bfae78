use std::{
    collections::{HashMap, VecDeque, hash_map::Entry},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use millrace_protocol::{ChannelName, Code, Error, NewPublication, Position};
use tokio::{
    runtime::Handle,
    sync::{Notify, oneshot},
    time::{Instant, sleep_until},
};

use super::{Broker, Deliver, Shared, Token, retry, unavailable};

/// Maximum publications and bytes of one batch. A batch has at least one publication.
const BATCH_COUNT_MAX: usize = 100;
const BATCH_BYTES_MAX: usize = 1 << 20;
/// Maximum number of queued publications per channel, and maximum queued bytes of all channels.
const CHANNEL_COUNT_MAX: usize = 10_000;
const BYTES_MAX: usize = 64 << 20;

/// Publications on their way to the broker. Each channel has at most one batch in flight; publications that arrive
/// meanwhile form the next batch. This keeps the order, and larger batches reduce the cost per publication under load.
pub(super) struct Appends {
    wait: Duration,
    /// Channels with a batch in flight, each with the publications queued behind it.
    queues: Mutex<HashMap<ChannelName, VecDeque<Waiting>>>,
    bytes: AtomicUsize,
    next_token: AtomicU64,
    idle: Notify,
}

struct Waiting {
    publication: NewPublication,
    until: Instant,
    answer: oneshot::Sender<Result<Position, Error>>,
}

impl Appends {
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

    /// Returns the next batch of a channel. If nothing is queued, removes the channel.
    fn next(&self, channel: &ChannelName) -> Option<VecDeque<Waiting>> {
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

impl<B: Broker, D: Deliver> Shared<B, D> {
    /// Queues a publication and returns the receiver of its answer.
    ///
    /// Errors: [`Code::Congested`] if a queue is full.
    pub fn append(
        self: Arc<Self>,
        runtime: &Handle,
        channel: &ChannelName,
        publication: NewPublication,
    ) -> Result<oneshot::Receiver<Result<Position, Error>>, Error> {
        let congested = || Error::new(Code::Congested, "too much waits for the engine; try again");
        let (answer, receiver) = oneshot::channel();
        let appends = &self.appends;
        let bytes = publication.cost_bytes();
        let waiting = Waiting { publication, until: Instant::now() + appends.wait, answer };
        if appends.bytes.fetch_add(bytes, Relaxed) > BYTES_MAX {
            appends.bytes.fetch_sub(bytes, Relaxed);
            return Err(congested());
        }
        match appends.lock().entry(channel.clone()) {
            Entry::Occupied(queue) if queue.get().len() >= CHANNEL_COUNT_MAX => {
                appends.bytes.fetch_sub(bytes, Relaxed);
                return Err(congested());
            }
            Entry::Occupied(mut queue) => {
                queue.get_mut().push_back(waiting);
                return Ok(receiver);
            }
            Entry::Vacant(queue) => queue.insert(VecDeque::from([waiting])),
        };
        runtime.spawn(self.clone().fly(channel.clone()));
        Ok(receiver)
    }

    /// Sends batch after batch until this channel has no queued publications.
    async fn fly(self: Arc<Self>, channel: ChannelName) {
        while let Some(batch) = self.appends.next(&channel) {
            let bytes: usize = batch.iter().map(|waiting| waiting.publication.cost_bytes()).sum();
            self.send(&channel, batch).await;
            self.appends.bytes.fetch_sub(bytes, Relaxed);
        }
    }

    /// Sends a batch and answers its publishers. A publisher whose time is over gets an error, but the batch stays
    /// unchanged: the broker may have accepted a part of it already.
    async fn send(&self, channel: &ChannelName, batch: VecDeque<Waiting>) {
        let token = Token { node: &self.node, number: self.appends.next_token.fetch_add(1, Relaxed) };
        let bounds = self.bounds(channel);
        let Some(last) = batch.back().map(|waiting| waiting.until) else { return };
        // If the channel does not exist, the first publication creates it.
        let holder = batch.front().map(|waiting| waiting.publication.holder).unwrap_or_default();
        let (publications, mut waiting): (Vec<_>, VecDeque<_>) =
            batch.into_iter().map(|waiting| (waiting.publication, (waiting.until, waiting.answer))).unzip();
        let count = publications.len();
        let append = || self.broker.append(channel, &publications, &bounds, token, self.may_create(holder, channel));
        let mut attempts = std::pin::pin!(retry(&self.counts, last, append));
        let result = loop {
            let first = waiting.front().map_or(last, |(until, _)| *until);
            tokio::select! {
                biased;
                result = &mut attempts => break result,
                () = sleep_until(first), if !waiting.is_empty() => {
                    if let Some((_, answer)) = waiting.pop_front() {
                        let _ = answer.send(Err(unavailable()));
                    }
                }
            }
        };
        let answered = count - waiting.len();
        if result.as_ref().is_ok_and(|positions| positions.first().is_some_and(|first| first.offset == 1)) {
            self.created(holder, channel);
        }
        match result {
            Ok(positions) if positions.len() == count => {
                for ((_, answer), position) in waiting.into_iter().zip(positions.into_iter().skip(answered)) {
                    let _ = answer.send(Ok(position));
                }
            }
            Ok(positions) => {
                tracing::error!(%channel, count, got = positions.len(), "the engine returned the wrong number of positions for a batch");
                let wrong = || Error::new(Code::Internal, "the engine's answer is not understood");
                waiting.into_iter().for_each(|(_, answer)| drop(answer.send(Err(wrong()))));
            }
            Err(error) if error.code == Code::TooMany => {
                let error = self.shares.too_many(holder, self.used());
                waiting.into_iter().for_each(|(_, answer)| drop(answer.send(Err(error.clone()))));
            }
            Err(error) => waiting.into_iter().for_each(|(_, answer)| drop(answer.send(Err(error.clone())))),
        }
    }
}
