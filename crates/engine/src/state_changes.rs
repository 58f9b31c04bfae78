use millrace_delivery::{PageLimit, Part};
use millrace_protocol::{ChannelName, Error, Position, Publication, Since, session::Policy};

use crate::Engine;

/// Size of the pages in which a state is read.
const PAGE: PageLimit = PageLimit { count: 1000, bytes: 1 << 20 };

/// Changes of a keyed state since the last read.
#[derive(Clone, Debug)]
pub struct StateChanges {
    /// Publications in the order of offsets, deletions included.
    pub publications: Vec<Publication>,
    /// Place where the next read begins.
    pub next: Since,
    /// End of the log.
    pub end: Position,
    /// The publications are the whole state, so that all other keys are absent.
    pub is_whole: bool,
}

/// Reads the changes of a keyed state after `since`. Begin with [`Since::State`], which reads the whole state.
///
/// Errors: those of the engine.
pub async fn state_changes(engine: &dyn Engine, state: &ChannelName, since: Since) -> Result<StateChanges, Error> {
    let (mut since, mut publications, mut is_whole) = (since, Vec::new(), false);
    loop {
        let page = engine.page(state, since, Policy::Every, PAGE).await?;
        if page.gap.is_some() && page.part == Part::Log {
            // The log no longer reaches back.
            since = Since::State;
            continue;
        }
        if since == Since::State || page.gap.is_some() {
            publications.clear();
            is_whole = true;
        }
        let is_last = !matches!(page.part, Part::State { .. }) && !page.has_more();
        since = match page.next() {
            Since::Position(at) => Since::StateOr(at),
            place => place,
        };
        let end = page.end;
        publications.extend(page.publications);
        if is_last {
            return Ok(StateChanges { publications, next: since, end, is_whole });
        }
    }
}
