//! Order and history in NATS. JetStream stores and orders publications; core NATS delivers them. See [`subject`] for
//! the subjects, [`append`] for the order, [`read`] for history, and docs/reference/engines.md for operators.

mod append;
mod append_state;
mod connection;
mod lease;
mod link;
mod read;
mod sending;
mod state;
mod state_index;
mod states;
mod streams;
mod subject;
mod url;
mod wire;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::{FutureExt, StreamExt, TryStreamExt, stream};
use millrace_delivery::{Bounds, Page, PageLimit};
use millrace_protocol::{
    ChannelName, Error, NewPublication, Pattern, Position, Since,
    session::{Policy, Target},
};
use serde_json::{Value, json};

use crate::{
    Config, Deliver, Newest, OpenError,
    remote::{Broker, BrokerError, Lease, Remote, Token},
    smallest::Smallest,
};
use connection::Nats;
pub(crate) use url::Url;

/// Maximum number of concurrent requests of one batch.
const AT_ONCE: usize = 64;

/// The engine `nats`.
pub(crate) type NatsEngine<D> = Remote<Arc<Nats>, D>;

/// Parses a URL without connecting. Returns `None` if the URL is not one of NATS. No error contains text of the URL.
pub(crate) fn parse_url(url: &str) -> Option<Result<Url, OpenError>> {
    is_ours(url).then(|| url::parse(url).map_err(|error| OpenError::Setting(error.to_string())))
}

fn is_ours(url: &str) -> bool {
    ["nats", "tls"].iter().any(|scheme| url.strip_prefix(scheme).is_some_and(|rest| rest.starts_with(':')))
}

/// Opens the engine and starts its thread, which connects. `shown` is the URL for logs, without a secret.
///
/// Errors: a setting that NATS does not support, or a refusal by the server.
pub(crate) fn open<D: Deliver>(
    shown: String,
    url: Url,
    config: Config,
    deliver: Arc<D>,
    clock: impl Fn() -> u64 + Send + Sync + 'static,
) -> Result<NatsEngine<D>, OpenError> {
    let is_good = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-');
    if config.prefix.is_empty() || !config.prefix.bytes().all(is_good) {
        return Err(OpenError::Setting("`engine.prefix` is made of A-Z a-z 0-9 _ - where NATS is the engine".into()));
    }
    let kept = config.clone();
    Remote::open(shown, config, deliver, clock, move |node, events| Ok(Nats::connect(url, &kept, node, events)))
}

impl Broker for Arc<Nats> {
    /// JetStream never drops the last message of a channel.
    const FORGETS: bool = false;

    async fn append(
        &self,
        channel: &ChannelName,
        batch: &[NewPublication],
        bounds: &Bounds,
        token: Token<'_>,
        may_create: bool,
    ) -> Result<Vec<Result<Position, Error>>, BrokerError> {
        self.write(channel, batch, bounds, token, may_create).await
    }

    async fn expire_keys(&self, config: &Config) -> Result<(), BrokerError> {
        self.expire(config).await
    }

    async fn page(
        &self,
        channel: &ChannelName,
        since: Since,
        policy: Policy,
        limit: PageLimit,
        bounds: &Bounds,
    ) -> Result<Page, BrokerError> {
        self.read_page(channel, since, policy, limit, bounds).await
    }

    async fn newest(&self, channel: &ChannelName, bounds: &Bounds) -> Result<Newest, BrokerError> {
        self.read_newest(channel, bounds).await
    }

    async fn tops(&self, channels: &[ChannelName]) -> Result<Vec<Position>, BrokerError> {
        let tops = channels.iter().map(|channel| self.read_top(channel).boxed());
        stream::iter(tops.collect::<Vec<_>>()).buffered(AT_ONCE).try_collect().await
    }

    async fn channels(
        &self,
        pattern: &Pattern,
        after: Option<&ChannelName>,
        max: usize,
    ) -> Result<Vec<ChannelName>, BrokerError> {
        let mut found = Smallest::new(after, max);
        for stream in self.streams_of(pattern) {
            let epoch = self.streams.known(&self.link, stream).await?.epoch;
            for tokens in subject::of_pattern(pattern) {
                let filter = self.streams.subject(stream, epoch, &tokens);
                let mut seen = 0;
                loop {
                    let ask = json!({ "subjects_filter": filter, "offset": seen });
                    let info = self.streams.info(&self.link, stream, ask).await?;
                    let subjects = info.state.subjects.unwrap_or_default();
                    seen += subjects.len();
                    let is_all = subjects.is_empty() || seen >= info.total;
                    let names = subjects.keys().filter_map(|subject| subject::parse(&self.prefix, subject));
                    let names = names.map(|(_, name)| name).filter(|name| pattern.matches(name.as_str()));
                    names.for_each(|name| found.offer(&name));
                    if is_all {
                        break;
                    }
                }
            }
        }
        Ok(found.into_names())
    }

    async fn subscribe(&self, targets: &[Target]) -> Result<(), BrokerError> {
        self.subscribe_to(targets).await
    }

    async fn unsubscribe(&self, targets: &[Target]) -> Result<(), BrokerError> {
        self.unsubscribe_from(targets);
        Ok(())
    }

    async fn renew(&self, lease: Duration) -> Result<Lease, BrokerError> {
        self.look().await?;
        self.renew_lease(lease).await
    }

    async fn send(&self, node: Option<&str>, message: &str) -> Result<(), BrokerError> {
        let sent = self.link.publish(self.subject_of_node(node), Bytes::copy_from_slice(message.as_bytes()));
        Ok(sent.await?)
    }

    async fn count(&self) -> Result<usize, BrokerError> {
        let mut count = 0;
        for stream in self.streams.all() {
            count += self.streams.info(&self.link, stream, Value::Null).await?.state.num_subjects;
        }
        Ok(count)
    }
}
