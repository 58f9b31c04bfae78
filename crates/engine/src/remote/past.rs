use millrace_delivery::{Bounds, History, Page, PageLimit};
use millrace_protocol::{Position, Publication, Since, session::Policy};

const UNBOUNDED: Bounds = Bounds { count_max: usize::MAX, bytes_max: usize::MAX, age_max_ms: u64::MAX };

/// A part of a log, as a broker has read it: what its bounds have not trimmed, and what is expired, too.
pub(crate) struct Past {
    /// Where the log ends.
    pub top: Position,
    /// The publications begin after this offset: everything from there up to the last of them is there.
    pub after: u64,
    pub publications: Vec<Publication>,
}

impl Past {
    /// The page that whoever holds the whole log would give.
    ///
    /// `since` is a position; [`Since::Now`] or [`Since::Earliest`] if [`Past::after`] is that. For a time, the position before the first
    /// publication that is not older, or offset 0 if some that are not older were trimmed.
    pub fn page(self, since: Since, policy: Policy, limit: PageLimit, now_ms: u64) -> Page {
        let mut history = History::after(Position { offset: self.after, ..self.top });
        for publication in self.publications {
            history.adopt(publication, now_ms, &UNBOUNDED);
        }
        let page = history.page(since, policy, limit, now_ms, &UNBOUNDED);
        Page { top: self.top, ..page }
    }
}
