//! Channels of one node, beside the channels of the configured engine.

use std::{io, sync::Arc, time::Duration};

use millrace_delivery::{Page, PageLimit};
use millrace_protocol::{
    ChannelName, Code, Epoch, Error, NewPublication, Pattern, Position, Since, is_local,
    session::{Policy, Target},
};

use crate::{
    Answer, Answerer, ChannelSlot, Config, Deliver, Engine, HistoryConfig, MemoryEngine, Newest, NodeAnswers,
    hand_over::HandOver, unix_ms,
};

/// Limits of the history of a local channel. Its state is complete; its log is only for readers that reconnect.
const HISTORY: HistoryConfig = HistoryConfig {
    count_max: 4096,
    bytes_max: 1 << 20,
    age_max: Duration::from_secs(60),
    durable: false,
    state: true,
    keys_max: 10_000,
    roster: false,
    roster_grace: Duration::ZERO,
};

/// Maximum memory of all local channels, in bytes. A new key above the limit is refused.
const BYTES_MAX: usize = 32 << 20;

/// An engine, and beside it the channels of the namespace [`LOCAL`](millrace_protocol::LOCAL). These are keyed states
/// in the memory of this process: they reach no disk, no broker and no other node, and end with the process.
///
/// This is the only place that separates the two. The server publishes to local channels with [`WithLocal::publish`];
/// admission lets no client publish to them, so publications of clients are not examined here.
pub struct WithLocal<D: Deliver> {
    engine: Arc<dyn Engine>,
    local: MemoryEngine<D>,
}

impl<D: Deliver> WithLocal<D> {
    /// Adds local channels to an engine. `epoch` must differ between two runs of the process.
    pub fn new(engine: Arc<dyn Engine>, epoch: Epoch, deliver: Arc<D>) -> Self {
        let config = Config { internal_states: Some(HISTORY), history_bytes_max: BYTES_MAX, ..Config::default() };
        Self { engine, local: MemoryEngine::new(config, epoch, deliver, unix_ms) }
    }

    /// Publishes to a local channel, and creates the channel if it does not exist.
    ///
    /// Errors: those of [`Engine::append`] for a keyed state.
    pub fn publish(&self, channel: &ChannelName, publication: NewPublication) -> Result<Position, Error> {
        debug_assert!(is_local(channel.as_str()), "{channel}");
        match self.local.append(channel, publication) {
            Answer::Now(Some(appended)) => appended,
            _ => Err(Error::new(Code::Internal, "a channel in memory answers at once")),
        }
    }

    /// Removes a local channel.
    pub fn remove(&self, channel: &ChannelName) {
        self.local.remove(channel);
    }

    /// Checks that a local channel exists.
    ///
    /// Errors: [`Code::NotFound`].
    fn check_exists(&self, channel: &ChannelName) -> Result<(), Error> {
        match self.local.has_channel(channel) {
            true => Ok(()),
            false => Err(Error::new(
                Code::NotFound,
                "this node has no such channel, or the channel has ended; send `POST /v1/admin/follow` again \
                 (docs/reference/admin.md)",
            )),
        }
    }
}

impl<D: Deliver> Engine for WithLocal<D> {
    fn append(&self, channel: &ChannelName, publication: NewPublication) -> Answer<Result<Position, Error>> {
        self.engine.append(channel, publication)
    }

    fn append_at(
        &self,
        slot: &mut ChannelSlot,
        channel: &mut ChannelName,
        publication: NewPublication,
    ) -> Answer<Result<Position, Error>> {
        self.engine.append_at(slot, channel, publication)
    }

    fn expect(&self, slot: ChannelSlot) {
        self.engine.expect(slot);
    }

    fn page(
        &self,
        channel: &ChannelName,
        since: Since,
        policy: Policy,
        limit: PageLimit,
    ) -> Answer<Result<Page, Error>> {
        if !is_local(channel.as_str()) {
            return self.engine.page(channel, since, policy, limit);
        }
        match self.check_exists(channel) {
            Ok(()) => self.local.page(channel, since, policy, limit),
            Err(error) => Answer::now(Err(error)),
        }
    }

    fn newest(&self, channel: &ChannelName) -> Answer<Result<Newest, Error>> {
        if !is_local(channel.as_str()) {
            return self.engine.newest(channel);
        }
        match self.check_exists(channel) {
            Ok(()) => self.local.newest(channel),
            Err(error) => Answer::now(Err(error)),
        }
    }

    /// Returns no local channels: no pattern matches them.
    fn channels(
        &self,
        pattern: &Pattern,
        after: Option<&ChannelName>,
        max: usize,
    ) -> Answer<Result<Vec<ChannelName>, Error>> {
        self.engine.channels(pattern, after, max)
    }

    fn presence(&self, channel: &ChannelName) -> Answer<Result<u32, Error>> {
        match is_local(channel.as_str()) {
            true => self.local.presence(channel),
            false => self.engine.presence(channel),
        }
    }

    fn node(&self) -> Option<&str> {
        self.engine.node()
    }

    fn live_nodes(&self) -> Answer<Result<Option<Vec<String>>, Error>> {
        self.engine.live_nodes()
    }

    fn ask_nodes(&self, question: &str, wait: Duration) -> Answer<Result<NodeAnswers, Error>> {
        self.engine.ask_nodes(question, wait)
    }

    fn ask_node(&self, node: &str, question: &str, wait: Duration) -> Answer<Result<Option<String>, Error>> {
        self.engine.ask_node(node, question, wait)
    }

    fn set_answerer(&self, answerer: Answerer) {
        self.engine.set_answerer(answerer);
    }

    fn watch(&self, target: &Target, is_read: bool) {
        if !is_local(target.as_str()) {
            self.engine.watch(target, is_read);
        }
    }

    fn joined(&self, pattern: &Pattern) -> Answer<Result<(), Error>> {
        self.engine.joined(pattern)
    }

    fn now_ms(&self) -> u64 {
        self.engine.now_ms()
    }

    /// Returns the size without the local channels.
    fn size(&self) -> (usize, usize) {
        self.engine.size()
    }

    fn sweep(&self) {
        self.engine.sweep();
        self.local.sweep();
    }

    fn make_room(&self, bytes: usize) {
        self.engine.make_room(bytes);
    }

    fn is_up(&self) -> bool {
        self.engine.is_up()
    }

    fn counters(&self) -> Vec<(&'static str, &'static str, u64)> {
        self.engine.counters()
    }

    /// Hands over without the local channels: their readers subscribe again at the new process.
    fn hand_over(&self, to: &HandOver) -> io::Result<()> {
        self.engine.hand_over(to)
    }

    fn take_back(&self) -> io::Result<()> {
        self.engine.take_back()
    }

    fn close(&self) {
        self.engine.close();
    }
}
