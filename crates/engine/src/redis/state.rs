//! Keyed states: reading them, and deleting keys whose time to live has ended. `library.lua` keeps them.

use std::{collections::BTreeMap, time::Duration};

use futures_util::future::try_join_all;
use millrace_delivery::{Bounds, Page, PageLimit, Part, check_expected, too_many_keys};
use millrace_protocol::{ChannelName, Epoch, Error, Expected, Gap, NewPublication, Position, Since};

use super::{
    AGE_MS_MAX, CHUNK_BYTES, CHUNK_COUNT, CHUNKS_MAX, Redis, broker_error, keys::BUCKETS, keys::bucket, not_understood,
    seed, wire,
};
use crate::{Config, remote::BrokerError};

/// Time during which one node alone deletes the expired keys. A second node would do no harm, but find nothing.
const SWEEP: Duration = Duration::from_millis(800);
/// Maximum number of expired keys that one request returns, and of such requests in one pass.
const DUE_MAX: usize = 1000;
const ROUNDS: usize = 10;
/// Maximum number of keys that one request deletes.
const EXPIRE_MAX: usize = 100;

/// Returns the condition of a publication as `refusal` in `library.lua` reads it.
pub fn condition(new: &NewPublication) -> String {
    match new.expected {
        None => String::new(),
        Some(Expected::Absent) => "0".into(),
        Some(Expected::At(Position { epoch, offset })) => format!("{} {offset}", epoch.0),
    }
}

/// Parses the two words that `append` in `library.lua` returns for a publication.
pub fn outcome(first: &str, second: &str, new: &NewPublication, keys_max: usize) -> Option<Result<Position, Error>> {
    let offset = second.parse().ok()?;
    let position = |epoch: &str| Some(Position { epoch: Epoch(epoch.parse().ok()?), offset });
    if first == "+" {
        return Some(Err(too_many_keys(keys_max)));
    }
    match first.strip_prefix('!') {
        Some(epoch) => check_expected(new.expected, position(epoch).filter(|_| offset > 0)).err().map(Err),
        None => position(first).map(Ok),
    }
}

impl Redis {
    /// Returns a part of the state, see [`Engine::page`](crate::Engine::page).
    pub(super) async fn state_page(
        &self,
        channel: &ChannelName,
        since: Since,
        limit: PageLimit,
        bounds: &Bounds,
    ) -> Result<Page, BrokerError> {
        let [entries, offsets, deletions, _] = self.keys.state(channel);
        let keys = [self.keys.meta(channel), self.keys.log(channel), entries, offsets, deletions];
        let (mut since, mut gap) = (since, None);
        for _ in 0..CHUNKS_MAX {
            let answer = self
                .call("read_state", &keys, |command| {
                    command.arg(seed()).arg(bounds.bytes_max).arg(bounds.age_max_ms.min(AGE_MS_MAX));
                    match since {
                        Since::StateAfter { epoch, offset, began } => command.arg(epoch.0).arg(offset).arg(began),
                        _ => command.arg("").arg(0).arg(0),
                    };
                    command.arg(limit.count.min(CHUNK_COUNT)).arg(limit.bytes.min(CHUNK_BYTES));
                })
                .await?;
            let (page, is_restart) = parse(answer).ok_or_else(not_understood)?;
            if let (true, Since::StateAfter { epoch, offset, .. }) = (is_restart, since) {
                let from = gap.map_or(Position { epoch, offset }, |gap: Gap| gap.from);
                gap = Some(Gap { from, to: Position { offset: 0, ..page.top } });
            }
            // One call looks at a limited number of keys, and all of them may have expired.
            if page.publications.is_empty() && page.has_more() && limit.count > 0 {
                since = page.next();
                continue;
            }
            return Ok(Page { gap, ..page });
        }
        Err(BrokerError::Unavailable("too many keys of the state have expired".into()))
    }

    /// Deletes expired keys of all channels. Each pass is bounded; a node does the next pass a second later.
    pub(super) async fn expire(&self, config: &Config) -> Result<(), BrokerError> {
        let mut alone = redis::cmd("SET");
        alone.arg(self.keys.sweeper()).arg(&self.node).arg("NX").arg("PX").arg(SWEEP.as_millis() as u64);
        if self.query(&alone).await.map_err(broker_error)? == redis::Value::Nil {
            return Ok(());
        }
        let sets: Vec<_> = (0..BUCKETS).map(|bucket| self.keys.expiry(bucket)).collect();
        let at_once = if self.is_cluster { 1 } else { sets.len() };
        let expired = sets.chunks(at_once).map(async |sets| {
            for _ in 0..ROUNDS {
                let due = self.call("due", sets, |command| _ = command.arg(DUE_MAX)).await?;
                let due: Vec<String> = redis::from_redis_value(due).map_err(|_| not_understood())?;
                self.delete(&due, config).await?;
                if due.len() < DUE_MAX {
                    break;
                }
            }
            Ok(())
        });
        try_join_all(expired).await.map(drop)
    }

    /// Deletes these keys (`CHANNEL KEY`), unless another node did or they were published again.
    async fn delete(&self, due: &[String], config: &Config) -> Result<(), BrokerError> {
        let mut by_channel = BTreeMap::<&str, Vec<&str>>::new();
        for (channel, key) in due.iter().filter_map(|name| name.split_once(' ')) {
            by_channel.entry(channel).or_default().push(key);
        }
        let deleted = by_channel.into_iter().map(async |(name, keys)| {
            let Ok(channel) = ChannelName::parse(name) else { return Ok(()) };
            let bounds = config.bounds(&channel);
            let b = bucket(&channel);
            if bounds.keys_max == 0 {
                // The channel was a state before the settings changed.
                let mut command = redis::cmd("ZREM");
                command
                    .arg(self.keys.expiry(b))
                    .arg(keys.iter().map(|key| format!("{name} {key}")).collect::<Vec<_>>());
                return self.query(&command).await.map(drop).map_err(broker_error);
            }
            let mut touched = vec![self.keys.meta(&channel), self.keys.log(&channel), self.keys.index(b)];
            touched.extend(self.keys.state(&channel));
            for keys in keys.chunks(EXPIRE_MAX) {
                self.call("expire", &touched, |command| {
                    command.arg(name).arg(seed());
                    command.arg(bounds.count_max).arg(bounds.bytes_max).arg(bounds.age_max_ms.min(AGE_MS_MAX));
                    command.arg(if self.is_cluster { "S" } else { "" });
                    command.arg(self.keys.publications(&channel)).arg(self.keys.all(b)).arg(keys);
                })
                .await?;
            }
            Ok(())
        });
        try_join_all(deleted).await.map(drop)
    }
}

/// Parses the answer of `read_state` in `library.lua`. The second value is true if the reader has to begin anew.
fn parse(value: redis::Value) -> Option<(Page, bool)> {
    type Answer = (String, String, String, u8, u8, String, Vec<Vec<u8>>);
    let (epoch, top, began, is_restart, is_end, end, entries): Answer = redis::from_redis_value(value).ok()?;
    let epoch = Epoch(epoch.parse().ok()?);
    let position = |offset: &str| Some(Position { epoch, offset: offset.parse().ok()? });
    let began = began.parse().ok()?;
    let part = if is_end == 1 { Part::StateEnd { began } } else { Part::State { began } };
    let publications = entries.into_iter().map(|entry| wire::entry(entry.into())).collect::<Option<_>>()?;
    let page = Page { gap: None, publications, end: position(&end)?, top: position(&top)?, part };
    Some((page, is_restart == 1))
}
