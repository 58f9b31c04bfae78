use millrace_protocol::{Gap, Position, Publication, Since};
use serde::{Deserialize, Serialize};

/// Limits of one page. A page holds at least one publication if one is available.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageLimit {
    pub count: usize,
    pub bytes: usize,
}

/// Publications after a position, as returned to a reader.
///
/// Shape: a gap, if any, lies before `publications`. Their offsets increase by exactly 1; for `latest` they only
/// increase.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Page {
    pub gap: Option<Gap>,
    pub publications: Vec<Publication>,
    /// Position to continue from. Everything up to this position is in the page, is covered by its gap, or is not
    /// needed under the reader's policy.
    pub end: Position,
    /// The newest position of the log.
    pub top: Position,
    pub part: Part,
}

/// The sequence that a page belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Part {
    /// The log. The reader continues from the position [`Page::end`].
    Log,
    /// The state of a keyed channel, and more of the state follows. The log ended at `began` when the reader began with
    /// the state. A gap means that the reader begins anew with this page. Offsets only increase.
    State { began: u64 },
    /// The last part of the state. The reader continues with the log from the position [`Page::end`].
    StateEnd { began: u64 },
}

impl Page {
    /// Returns the start position of the page's reader: the reader has everything up to this position, or the page
    /// reports it as a gap.
    pub fn start(&self) -> Position {
        let offset = self.publications.first().map_or(self.end.offset, |first| first.offset - 1);
        self.gap.map_or(Position { epoch: self.end.epoch, offset }, |gap| gap.to)
    }

    /// Returns where the reader continues.
    pub fn next(&self) -> Since {
        match self.part {
            Part::Log | Part::StateEnd { .. } => Since::Position(self.end),
            Part::State { began } => Since::StateAfter { epoch: self.end.epoch, offset: self.end.offset, began },
        }
    }

    /// Returns the place of a publication of this page: a reader that has it, and all before it, resumes there.
    pub fn place_of(&self, offset: u64) -> Since {
        let epoch = self.end.epoch;
        match self.part {
            Part::Log => Since::Position(Position { epoch, offset }),
            Part::State { began } | Part::StateEnd { began } => Since::StateAfter { epoch, offset, began },
        }
    }

    /// Returns true if the log holds publications after this page.
    pub fn has_more(&self) -> bool {
        self.end.offset < self.top.offset
    }

    /// Returns the part of a page (policy `every`) that lies in a range ending with `until`; `top` becomes the end
    /// of the range.
    ///
    /// If `until` is in an epoch that the log has left, the whole requested range is a gap, and the reader
    /// continues from `until`.
    pub fn cut(mut self, since: Since, until: Position) -> Self {
        if until.epoch != self.top.epoch {
            let from = match since {
                Since::Position(at) if at.epoch == until.epoch => at,
                _ => Position { offset: 0, ..until },
            };
            let gap = (from.offset < until.offset).then_some(Gap { from, to: until });
            return Self { gap, publications: Vec::new(), end: until, top: until, part: Part::Log };
        }
        self.top.offset = self.top.offset.min(until.offset);
        if self.end.offset > until.offset {
            self.end = until;
        }
        self.publications.retain(|publication| publication.offset <= until.offset);
        self.gap = self.gap.and_then(|Gap { from, to }| {
            let to = if to.offset > until.offset { until } else { to };
            (from != to).then_some(Gap { from, to })
        });
        self
    }
}

/// Returns the first items that fit into a page.
pub fn take_page<'a>(items: impl Iterator<Item = &'a Publication>, limit: PageLimit) -> Vec<Publication> {
    let (mut page, mut bytes) = (Vec::new(), 0);
    for publication in items.take(limit.count) {
        bytes += publication.cost_bytes();
        if bytes > limit.bytes && !page.is_empty() {
            break;
        }
        page.push(publication.clone());
    }
    page
}
