use std::{collections::VecDeque, sync::Arc};

use millrace_protocol::{ChannelName, Code, Error, NewPublication, Position};
use tokio::{runtime::Handle, sync::oneshot, time::sleep_until};

use super::{
    append_queues::Waiting,
    broker::{Broker, Token},
    retry::{retry, unavailable},
    shared::Shared,
};
use crate::Deliver;

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
        let (receiver, is_first) = self.appends.push(channel, publication)?;
        if is_first {
            runtime.spawn(self.send_batches(channel.clone()));
        }
        Ok(receiver)
    }

    /// Sends batch after batch until this channel has no queued publications.
    async fn send_batches(self: Arc<Self>, channel: ChannelName) {
        while let Some(batch) = self.appends.next(&channel) {
            let bytes: usize = batch.iter().map(|waiting| waiting.publication.cost_bytes()).sum();
            self.send(&channel, batch).await;
            self.appends.release(bytes);
        }
    }

    /// Sends a batch and answers its publishers. A publisher whose time is over gets an error, but the batch stays
    /// unchanged: the broker may have accepted a part of it already.
    async fn send(&self, channel: &ChannelName, batch: VecDeque<Waiting>) {
        let token = Token { node: &self.node, number: self.appends.next_token() };
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
        let first =
            result.as_ref().ok().and_then(|positions| positions.iter().find_map(|position| position.as_ref().ok()));
        if first.is_some_and(|first| first.offset == 1) {
            self.created(holder, channel);
        }
        match result {
            Ok(positions) if positions.len() == count => {
                for ((_, answer), position) in waiting.into_iter().zip(positions.into_iter().skip(answered)) {
                    let _ = answer.send(position);
                }
            }
            Ok(positions) => {
                tracing::error!(%channel, count, got = positions.len(), "the engine returned the wrong number of positions for a batch");
                let wrong = || Error::new(Code::Internal, "the engine's response is invalid");
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
