use millrace_delivery::{Bounds, History, Page, PageLimit};
use millrace_protocol::{Position, Publication, Since, session::Policy};

const UNBOUNDED: Bounds = Bounds { count_max: usize::MAX, bytes_max: usize::MAX, age_max_ms: u64::MAX, keys_max: 0 };

/// A part of a log, as a broker has read it: publications within the history limits, including expired ones.
pub(crate) struct Past {
    /// Position of the end of the log.
    pub top: Position,
    /// Offset before the first publication. All publications from there up to the last one are present.
    pub after: u64,
    pub publications: Vec<Publication>,
}

impl Past {
    /// Returns the page that the whole log would give. `keys_max` is the maximum number of keys of a keyed state, or 0.
    ///
    /// `since` is a position. It is [`Since::Now`] or [`Since::Earliest`] if [`Past::after`] was read for that. For a
    /// time, the caller passes the position before the first publication that is not older. If such publications were
    /// trimmed, it passes offset 0.
    pub fn page_of(self, keys_max: usize, since: Since, policy: Policy, limit: PageLimit, now_ms: u64) -> Page {
        let bounds = Bounds { keys_max, ..UNBOUNDED };
        let mut history = History::after(Position { offset: self.after, ..self.top });
        for publication in self.publications {
            history.adopt(publication, now_ms, &bounds);
        }
        let page = history.page(since, policy, limit, now_ms, &bounds);
        Page { top: self.top, ..page }
    }
}
