use millrace_protocol::{ChannelName, Epoch, Position, Publication};

/// Receiver of the publications that an engine has accepted. No method may block: any thread may call it, possibly
/// while it holds a lock.
pub trait Deliver: Send + Sync + 'static {
    /// Destination of the publications of one channel. An engine that stores it beside the channel's log saves one
    /// lookup per publication.
    type Route: Send + Sync;

    fn route(&self, channel: &ChannelName) -> Self::Route;

    /// Delivers a publication. For each channel the engine calls it in the order of offsets. A publication that is
    /// already known is ignored. If offsets are missing before the publication, or its epoch is new, the readers fetch
    /// the missing publications from history.
    fn deliver(&self, route: &Self::Route, channel: &ChannelName, epoch: Epoch, publication: &Publication);

    /// Reports that the channel's log now ends at `top`. The publications after `from` (the last reported position) up
    /// to `top` were not delivered and will not be. The readers fetch them from history, or get a gap.
    fn moved(&self, route: &Self::Route, channel: &ChannelName, from: Position, top: Position);

    /// Reports that the engine has removed this channel.
    fn forget(&self, _: &ChannelName, _: Self::Route) {}

    /// Announces that a publication for this route follows, so that the receiver can prefetch memory.
    fn expect(&self, _: &Self::Route) {}

    /// Returns the number of subscriptions of a channel on this node.
    fn readers(&self, channel: &ChannelName) -> u32;
}
