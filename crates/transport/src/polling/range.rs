//! Ranges of a channel's history: after `since`, up to `until`. All code that reads a range uses the same rule:
//! `until` ends a range where `since` with the same value would begin one. So ranges join without a hole or an
//! overlap.
//!
//! Source: docs/reference/protocol.md, "Ranges".

use millrace_delivery::{Page, PageLimit};
use millrace_engine::Engine;
use millrace_protocol::{ChannelName, Error, Gap, Position, Since, session::Policy};

/// Page limit that is enough to find where a range begins.
const ONE: PageLimit = PageLimit { count: 1, bytes: 1 };

/// Returns a page of the range. [`Page::has_more`] returns true if another page follows. Without `until`, the range
/// ends with the newest publication.
///
/// Errors: those of the engine.
pub async fn page(
    engine: &dyn Engine,
    channel: &ChannelName,
    since: Since,
    until: Option<Since>,
    policy: Policy,
    limit: PageLimit,
) -> Result<Page, Error> {
    let Some(until) = until else {
        let page = engine.page(channel, since, policy, limit).await?;
        return match (since, page.gap) {
            (Since::StateOr(_), Some(gap)) => state_after(engine, channel, gap, limit).await,
            _ => Ok(page),
        };
    };
    // Resolve `until` before the page is read. Otherwise publications in between could change the end of the range.
    let until = end_of(engine, channel, until).await?;
    Ok(engine.page(channel, since, Policy::Every, limit).await?.cut(since, until))
}

/// Returns the beginning of the state, for a reader of the state that history has left at the start of `gap`.
async fn state_after(engine: &dyn Engine, channel: &ChannelName, gap: Gap, limit: PageLimit) -> Result<Page, Error> {
    let page = engine.page(channel, Since::State, Policy::Every, limit).await?;
    let to = Position { offset: 0, ..page.top };
    Ok(Page { gap: Some(Gap { from: gap.from, to }), ..page })
}

/// Returns the position of a reader at `since`, before its first publication. If publications are missing there, it
/// is the start of the gap.
pub async fn start_of(engine: &dyn Engine, channel: &ChannelName, since: Since) -> Result<Position, Error> {
    let page = match since {
        Since::Position(at) | Since::StateOr(at) => return Ok(at),
        since => engine.page(channel, since, Policy::Every, ONE).await?,
    };
    Ok(page.gap.map_or(page.start(), |gap| gap.from))
}

/// Returns the last position of a range that ends at `until`.
pub async fn end_of(engine: &dyn Engine, channel: &ChannelName, until: Since) -> Result<Position, Error> {
    match until {
        Since::Position(at) => Ok(at),
        until => Ok(engine.page(channel, until, Policy::Every, ONE).await?.start()),
    }
}
