use std::{io, num::NonZeroU32, sync::Arc, time::Duration};

use millrace_delivery::{Page, PageLimit};
use millrace_protocol::{
    ChannelName, Error, NewPublication, Pattern, Position, Publication, Since,
    session::{Policy, Target},
};

use crate::{
    Answer,
    hand_over::{Ending, HandOver},
};

/// Order and history of all channels.
///
/// A channel is charged to the holder of the publication that creates it. Publications into an existing channel are
/// not counted.
///
/// Errors of all methods: `unavailable` when the engine does not answer (the caller may retry), `too_many` over a
/// limit or a share.
pub trait Engine: Send + Sync {
    /// Accepts a publication. When the answer is ready, the publication has its position. [`Deliver`] has received the
    /// publication, or will receive it if the channel is watched.
    ///
    /// A channel with [`HistoryConfig::state`](crate::HistoryConfig::state) is a keyed state: it keeps the newest
    /// publication of each key until a deletion. When the time to live of a key ends, the engine appends its deletion
    /// within about a second, once over all nodes. A repeated idempotency key is answered before any other check.
    ///
    /// Errors of a state: those of [`check_fits`](millrace_delivery::check_fits), then of
    /// [`check_expected`](millrace_delivery::check_expected), then
    /// [`too_many_keys`](millrace_delivery::too_many_keys) for a new key. Of several publishers with the same
    /// condition, exactly one succeeds.
    fn append(&self, channel: &ChannelName, publication: NewPublication) -> Answer<Result<Position, Error>>;

    /// Accepts a publication like [`Engine::append`], for a caller that publishes into one channel repeatedly. The
    /// caller passes `slot` and `channel` as the previous call left them. `channel` becomes the engine's own copy of
    /// the name, so that later comparisons compare pointers, not text.
    fn append_at(
        &self,
        _slot: &mut ChannelSlot,
        channel: &mut ChannelName,
        publication: NewPublication,
    ) -> Answer<Result<Position, Error>> {
        self.append(channel, publication)
    }

    /// Announces that a publication for this slot follows. The engine prefetches the memory that the publication will
    /// touch.
    fn expect(&self, _slot: ChannelSlot) {}

    /// Returns a page of history. For a channel without publications it returns an empty page at the start of the log.
    /// If the channel is watched, every publication after the page is delivered, so no publication is lost between
    /// page and delivery.
    ///
    /// [`Since::State`] and [`Since::StateAfter`] read the state: its entries in the order of offsets, and between them
    /// the deletions after the reader's `began`, with [`Part::State`](millrace_delivery::Part) or
    /// [`Part::StateEnd`](millrace_delivery::Part). `policy` has no meaning then. If deletions after `began` may be
    /// missing, the epoch is another one, or the place never existed, the page has a gap up to offset 0 and holds the
    /// beginning of the state. [`Since::StateOr`] reads the log like [`Since::Position`]. In a state, expired
    /// publications of the log are no gap.
    ///
    /// Errors: [`no_state`](millrace_delivery::no_state) for a channel that is none.
    fn page(
        &self,
        channel: &ChannelName,
        since: Since,
        policy: Policy,
        limit: PageLimit,
    ) -> Answer<Result<Page, Error>>;

    /// Returns the end of the log, with the newest publication if it is still kept.
    fn newest(&self, channel: &ChannelName) -> Answer<Result<Newest, Error>>;

    /// Returns the first `max` channels with history that match the pattern and follow `after`, in order of their
    /// names. Cost: O(channels).
    fn channels(
        &self,
        pattern: &Pattern,
        after: Option<&ChannelName>,
        max: usize,
    ) -> Answer<Result<Vec<ChannelName>, Error>>;

    /// Returns the number of subscriptions of a channel on all live nodes.
    fn presence(&self, channel: &ChannelName) -> Answer<Result<u32, Error>>;

    /// Returns the name of this node, `[0-9a-f]+`, new at every start; `None` if no other node can share the engine.
    fn node(&self) -> Option<&str> {
        None
    }

    /// Returns the names of all live nodes, including this one, or `None` if no other node can share the engine. A node
    /// that was killed is live until its lease ends, at most 5 s after the last renewal.
    fn live_nodes(&self) -> Answer<Result<Option<Vec<String>>, Error>> {
        Answer::now(Ok(None))
    }

    /// Asks all other live nodes and waits for their answers, for at most `wait`. The question must not be a channel
    /// name. A node of another version may not know the question; it then counts as missing.
    fn ask_nodes(&self, _question: &str, _wait: Duration) -> Answer<Result<NodeAnswers, Error>> {
        Answer::now(Ok(NodeAnswers::default()))
    }

    /// Asks one other node and waits for its answer, for at most `wait`. Returns `None` if the node has not answered
    /// in time, or does not know the question. The rules of [`Engine::ask_nodes`] apply to the question.
    fn ask_node(&self, _node: &str, _question: &str, _wait: Duration) -> Answer<Result<Option<String>, Error>> {
        Answer::now(Ok(None))
    }

    /// Sets the function that answers the questions of other nodes.
    fn set_answerer(&self, _answerer: Answerer) {}

    /// Notifies the engine that this node has its first reader of a channel or pattern, or that the last reader left.
    /// The node calls it once per change, in order. An engine may also deliver channels that are not watched.
    fn watch(&self, target: &Target, is_read: bool);

    /// Resolves when all later publications that match a watched pattern are delivered.
    fn joined(&self, _: &Pattern) -> Answer<Result<(), Error>> {
        Answer::now(Ok(()))
    }

    /// Returns the engine's time in milliseconds since 1970. It is the source of the `time` of publications.
    fn now_ms(&self) -> u64;

    /// Returns the number of known channels and the bytes of history held here, for the metrics.
    fn size(&self) -> (usize, usize);

    /// Drops expired publications. Called every second.
    fn sweep(&self);

    /// Frees up to this many bytes of history because memory is short. The channels that are idle longest lose their
    /// history first.
    fn make_room(&self, _bytes: usize) {}

    /// Returns false while the backend of the engine does not answer.
    fn is_up(&self) -> bool {
        true
    }

    /// Returns the counters since the engine was opened, for the metrics: name (such as `retries`), description and
    /// value.
    fn counters(&self) -> Vec<(&'static str, &'static str, u64)> {
        Vec::new()
    }

    /// Hands all contents over to the engine of another process, and uses that engine from then on. Publications that
    /// arrive meanwhile wait for that engine. Blocks the thread. An engine with a broker in the network has nothing to
    /// hand over, and remains in use.
    ///
    /// Errors: the other process does not read. [`Engine::take_back`] must follow.
    fn hand_over(&self, to: &HandOver) -> io::Result<()> {
        to.end(Ending::NOTHING)
    }

    /// Ends a hand-over that the other process has not completed: this engine has its contents again. Publications that
    /// the other process has not answered are refused.
    ///
    /// Errors: a file that cannot be opened again.
    fn take_back(&self) -> io::Result<()> {
        Ok(())
    }

    /// Returns when all accepted publications are stored safely. Called once, after the last publication.
    fn close(&self) {}
}

/// Function that answers a question of another node; `None` if it does not know the question. The engine's thread calls
/// it, so it must not block.
pub type Answerer = Arc<dyn Fn(String) -> Answer<Option<String>> + Send + Sync>;

/// Answer of another node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodeAnswer {
    /// Name of the node.
    pub node: String,
    pub text: String,
    /// Time from the question to the answer.
    pub round_trip: Duration,
}

/// Answers of the other nodes to one question.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeAnswers {
    /// In order of the names of the nodes.
    pub answers: Vec<NodeAnswer>,
    /// Names of the live nodes that have not answered in time.
    pub missing: Vec<String>,
}

/// The end of a channel's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Newest {
    pub top: Position,
    /// `None` if nothing was published yet, or the newest publication is no longer in history.
    pub publication: Option<Publication>,
}

/// Cached location of a channel inside an engine, from the previous call. It saves the lookup by name while the
/// location is still valid.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChannelSlot(pub(crate) Option<NonZeroU32>);
