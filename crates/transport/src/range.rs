//! A part of a channel's past: after `since`, up to `until`. One rule for all who read one: `until` ends a range where `since` with the
//! same value would begin one, so ranges join.
//!
//! Source: docs/protocol.md, "Ranges".

use millrace_delivery::{Page, PageLimit};
use millrace_engine::Engine;
use millrace_protocol::{ChannelName, Error, Position, Since, session::Policy};

/// Enough to learn where a range begins.
const ONE: PageLimit = PageLimit { count: 1, bytes: 1 };

/// A page of the range; [`Page::has_more`] says whether another follows. Without `until`, all there is.
///
/// Errors: the engine's.
pub async fn page(
    engine: &dyn Engine,
    channel: &ChannelName,
    since: Since,
    until: Option<Since>,
    policy: Policy,
    limit: PageLimit,
) -> Result<Page, Error> {
    let Some(until) = until else { return engine.page(channel, since, policy, limit).await };
    // Before the page is read: what is published meanwhile must not hide what `until` leaves out.
    let until = end_of(engine, channel, until).await?;
    Ok(engine.page(channel, since, Policy::Every, limit).await?.cut(since, until))
}

/// Where a reader from `since` stands before its first publication; what it misses there comes after that.
pub async fn start_of(engine: &dyn Engine, channel: &ChannelName, since: Since) -> Result<Position, Error> {
    let page = match since {
        Since::Position(at) => return Ok(at),
        since => engine.page(channel, since, Policy::Every, ONE).await?,
    };
    Ok(page.gap.map_or(page.start(), |gap| gap.from))
}

/// The last position of a range that ends here.
pub async fn end_of(engine: &dyn Engine, channel: &ChannelName, until: Since) -> Result<Position, Error> {
    match until {
        Since::Position(at) => Ok(at),
        until => Ok(engine.page(channel, until, Policy::Every, ONE).await?.start()),
    }
}
