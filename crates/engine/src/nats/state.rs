//! Keyed states: reading them, and deleting keys whose time to live has ended.

use millrace_delivery::{Bounds, Page, PageLimit};
use millrace_protocol::{ChannelName, NewPublication, Since, session::Target};

use super::{connection::Nats, link::code, read::Log, sending::Sending, state_index::StateIndex, wire::Token};
use crate::{Config, remote::BrokerError};

/// Maximum number of keys that one message deletes, and of such messages for one channel in one pass.
const EXPIRE_MAX: usize = 100;
const ROUNDS: usize = 10;

impl Log<'_> {
    /// Reads what the channel has stored since the index was used last, or all of its state. Afterwards the index has
    /// everything that was stored before this call.
    pub async fn catch_up<'i>(&self, index: &'i mut Option<StateIndex>) -> Result<&'i mut StateIndex, BrokerError> {
        let new = || StateIndex::new(self.epoch(), Default::default());
        let index = index.get_or_insert_with(new);
        if index.tail().epoch != self.epoch() {
            *index = new();
        }
        loop {
            let Some(last) = self.last().await? else {
                *index = new();
                return Ok(index);
            };
            // The state lies in the messages from `oldest` on.
            let oldest = match &last.batch.carried {
                Some(carried) if carried.oldest > 0 => carried.oldest,
                Some(_) => last.sequence,
                None => 0,
            };
            let mut from = oldest.max(index.tail().sequence + 1);
            let mut is_whole = true;
            while index.tail().sequence < last.sequence {
                let Some(stored) = self.next(from).await? else { break };
                is_whole &= index.read(stored.sequence, &stored.batch, self.kept());
                from = stored.sequence + 1;
            }
            // If messages were dropped meanwhile, a message after `last` may carry what they held.
            if is_whole {
                return Ok(index);
            }
        }
    }
}

impl Nats {
    pub(super) async fn read_state(
        &self,
        channel: &ChannelName,
        since: Since,
        limit: PageLimit,
        bounds: &Bounds,
    ) -> Result<Page, BrokerError> {
        let slot = self.states.of(channel);
        let mut index = slot.lock().await;
        let log = Log::open(self, channel).await?;
        let index = log.catch_up(&mut index).await?;
        let now_ms = self.clock.now_ms();
        index.trim(now_ms, bounds);
        Ok(index.page(since, limit, now_ms))
    }

    /// Deletes keys whose time to live has ended, in the channels that this node has used or reads.
    pub(super) async fn expire(&self, config: &Config) -> Result<(), BrokerError> {
        let bounds = |channel: &ChannelName| config.bounds(channel);
        let watched: Vec<ChannelName> =
            self.subscribed().into_iter().filter(|channel| bounds(channel).keys_max > 0).collect();
        watched.iter().for_each(|channel| drop(self.states.of(channel)));
        for (channel, slot) in self.states.all() {
            let mut index = slot.lock().await;
            for _ in 0..ROUNDS {
                if !self.expire_some(&channel, &mut index).await? {
                    break;
                }
            }
        }
        self.states.forget_idle(|channel| watched.contains(channel));
        Ok(())
    }

    /// Deletes some expired keys of a channel. Returns false if there are no more. If another node appends first, that
    /// node may have deleted them, so the next attempt looks again.
    async fn expire_some(&self, channel: &ChannelName, index: &mut Option<StateIndex>) -> Result<bool, BrokerError> {
        let now_ms = self.clock.now_ms();
        if index.as_ref().is_some_and(|index| index.expired(now_ms, 1).is_empty()) {
            return Ok(false);
        }
        let log = Log::open(self, channel).await?;
        let index = log.catch_up(index).await?;
        let keys = index.expired(now_ms, EXPIRE_MAX);
        if keys.is_empty() {
            return Ok(false);
        }
        let deletions: Vec<_> = keys.into_iter().map(NewPublication::deletion).collect();
        // No batch has this number: a repeated request finds the keys deleted.
        let token = Token { node: self.node.as_str().into(), number: u64::MAX, part: 0 };
        let sending = Sending::new(token, index.tail(), &deletions, now_ms);
        let sending = sending.carrying(index, self.message_max(), log.kept()).map_err(BrokerError::Refused)?;
        match self.append_message(channel, &log, &sending, None).await {
            Ok(ack) => {
                index.read(ack.seq, &sending.batch, log.kept());
                Ok(true)
            }
            Err(trouble) if trouble.is_api(code::WRONG_LAST_SEQUENCE) => {
                self.appends.forget_tail(channel);
                Ok(true)
            }
            Err(trouble) => Err(trouble.into()),
        }
    }

    /// Returns the channels, not the patterns, that this node reads.
    fn subscribed(&self) -> Vec<ChannelName> {
        let channel = |target: &Target| match target {
            Target::Channel(channel) => Some(channel.clone()),
            Target::Pattern(_) => None,
        };
        self.subscriptions().keys().filter_map(channel).collect()
    }
}
