//! Subscriptions: from the first page of history to a live reader.

use std::{
    collections::HashMap,
    rc::Rc,
    time::{Duration, Instant},
};

use millrace_delivery::{ConnId, FirstPage};
use millrace_protocol::{
    ChannelName, Code, Error, Pattern, Position, Since,
    session::{Policy, Target},
};

use super::{PAGE, RETRY, Shard, Sockets};
use crate::Metrics;

/// Maximum time of a scan for the channels of a pattern that no pause follows.
const SHORT_SCAN_MAX: Duration = Duration::from_millis(1);
/// Maximum number of existing channels that one pattern may open.
const PATTERN_CHANNELS_MAX: usize = 10_000;

/// Start of a subscription, reported before its first publication.
#[derive(Clone, Debug)]
pub struct Start {
    pub channel: ChannelName,
    /// Place up to which the reader has everything. After a gap, the start of the gap: if the connection breaks
    /// before the gap is reported, the reader must not miss it.
    pub position: Since,
    /// False if history does not reach back to the requested position.
    pub recovered: bool,
}

impl<S: Sockets> Shard<S> {
    /// Makes a connection a reader of channels. `preamble` encodes the starts into bytes that are sent before the
    /// first publication.
    ///
    /// Errors: those of [`Hub::check_attach`](millrace_delivery::Hub::check_attach) and of the engine. Then the
    /// connection reads none of the channels.
    pub async fn subscribe(
        self: &Rc<Self>,
        conn: ConnId,
        channels: &[(ChannelName, Since)],
        policy: Policy,
        preamble: impl FnOnce(&[Start]) -> Vec<u8>,
    ) -> Result<(), Error> {
        let watching = Watching::new(self, channels.iter().map(|(name, _)| name));
        let mut pages = Vec::with_capacity(channels.len());
        for (ahead, (name, since)) in channels.iter().enumerate() {
            self.hub.borrow().check_attach(conn, name, ahead)?;
            let page = self.engine.page(name, *since, policy, PAGE).await?;
            pages.push(FirstPage { channel: name.clone(), since: *since, page });
        }
        // Checked again before the preamble is sent, because after it the subscription cannot be refused any more.
        for (ahead, (name, _)) in channels.iter().enumerate() {
            self.hub.borrow().check_attach(conn, name, ahead)?;
        }
        let start = |first: &FirstPage| Start {
            channel: first.channel.clone(),
            position: first.start(),
            recovered: first.page.gap.is_none(),
        };
        let gaps = pages.iter().filter(|first| first.page.gap.is_some()).count();
        Metrics::add(&self.metrics.gaps, gaps as u64);
        let starts: Vec<Start> = pages.iter().map(start).collect();
        let preamble = preamble(&starts);
        watching.done();
        self.with(|hub, sockets| {
            hub.send(conn, &preamble, sockets);
            hub.attach(conn, policy, &pages, sockets)
        })
    }

    /// Makes a connection a reader of all channels that match. Channels in `positions` continue from there; other
    /// existing ones start at `since`. `preamble` receives the time (ms) that the client passes as `since` to resume
    /// on another connection.
    ///
    /// Errors: those of [`Hub::subscribe_pattern`](millrace_delivery::Hub::subscribe_pattern) and of the engine.
    pub async fn subscribe_pattern(
        self: &Rc<Self>,
        conn: ConnId,
        pattern: &Pattern,
        since: Since,
        positions: HashMap<ChannelName, Position>,
        policy: Policy,
        preamble: impl FnOnce(u64) -> Vec<u8>,
    ) -> Result<(), Error> {
        // A resume starts at the positions received. Other channels resume at the start of this subscription, not at
        // the time of the resume.
        let now_ms = self.engine.now_ms();
        let since_ms = match since {
            Since::Time(ms) => ms.min(now_ms),
            Since::Earliest => 0,
            _ => now_ms,
        };
        if let Some(other) = positions.keys().find(|name| !pattern.matches(name.as_str())) {
            return Err(Error::new(Code::BadRequest, format!("{other} in `positions` does not match the pattern")));
        }
        self.router.check_pattern(pattern)?;
        self.with(|hub, _| hub.subscribe_pattern(conn, pattern, policy, since_ms))?;
        let opened = self.open_pattern(conn, pattern, since, positions, policy, preamble(since_ms)).await;
        self.with(|hub, _| match &opened {
            Ok(()) => hub.attach_open_channels(conn, pattern),
            Err(_) => drop(hub.unsubscribe(conn, &Target::Pattern(pattern.clone()))),
        });
        opened
    }

    /// Returns the channels that match. One scan runs at a time, and long scans are followed by a pause, so that scans
    /// use at most a fifth of this shard's time.
    async fn scan(&self, pattern: &Pattern) -> Result<Vec<ChannelName>, Error> {
        let _alone = self.scanning.lock().await;
        let began = Instant::now();
        let found = self.engine.channels(pattern, None, PATTERN_CHANNELS_MAX).await;
        let spent = began.elapsed();
        if spent > SHORT_SCAN_MAX {
            tokio::time::sleep(4 * spent.min(RETRY)).await;
        }
        found
    }

    /// Attaches a pattern to the channels that start before their next publication.
    async fn open_pattern(
        self: &Rc<Self>,
        conn: ConnId,
        pattern: &Pattern,
        since: Since,
        positions: HashMap<ChannelName, Position>,
        policy: Policy,
        preamble: Vec<u8>,
    ) -> Result<(), Error> {
        self.engine.joined(pattern).await?;
        let mut starts: Vec<(ChannelName, Since)> =
            positions.iter().map(|(name, at)| (name.clone(), Since::Position(*at))).collect();
        if since != Since::Now {
            let existing = self.scan(pattern).await?;
            starts.extend(existing.into_iter().filter(|name| !positions.contains_key(name)).map(|name| (name, since)));
        }
        self.with(|hub, sockets| hub.send(conn, &preamble, sockets));
        for (name, since) in starts {
            let watching = Watching::new(self, std::iter::once(&name));
            let page = self.engine.page(&name, since, policy, PAGE).await?;
            watching.done();
            let first = FirstPage { channel: name, since, page };
            // Refused only if the connection already reads the channel by its name, or has the maximum number of
            // subscriptions.
            let _ = self.with(|hub, sockets| hub.attach_matching(conn, pattern, &first, sockets));
        }
        Ok(())
    }
}

/// Channels being opened. They are released if the subscription fails or is dropped before its end.
struct Watching<'a, S: Sockets> {
    shard: &'a Rc<Shard<S>>,
    names: Vec<ChannelName>,
}

impl<'a, S: Sockets> Watching<'a, S> {
    fn new<'n>(shard: &'a Rc<Shard<S>>, names: impl Iterator<Item = &'n ChannelName>) -> Self {
        let names: Vec<ChannelName> = names.cloned().collect();
        shard.with(|hub, _| names.iter().for_each(|name| hub.watch(name)));
        Self { shard, names }
    }

    /// Keeps the channels: [`Hub::attach`](millrace_delivery::Hub::attach) takes over.
    fn done(mut self) {
        self.names.clear();
    }
}

impl<S: Sockets> Drop for Watching<'_, S> {
    fn drop(&mut self) {
        let names = std::mem::take(&mut self.names);
        if !names.is_empty() {
            self.shard.with(|hub, _| names.iter().for_each(|name| hub.release(name)));
        }
    }
}
