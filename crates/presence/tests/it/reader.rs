use std::collections::BTreeMap;

use millrace_delivery::PageLimit;
use millrace_engine::Engine;
use millrace_protocol::{ChannelName, Since, session::Policy};
use rand::{Rng, RngExt};

use crate::world::ready;

/// A client that reads a list: first the state in pages, then the changes. Its connection is cut at any time.
pub struct Reader {
    pub channel: ChannelName,
    since: Since,
    pub entries: BTreeMap<String, Vec<u8>>,
}

impl Reader {
    pub fn new(channel: ChannelName) -> Self {
        Self { channel, since: Since::State, entries: BTreeMap::new() }
    }

    /// Reads some pages, or none.
    pub fn step(&mut self, engine: &impl Engine, dice: &mut impl Rng, is_quiet: bool) {
        if !is_quiet && dice.random_range(0..100) < 80 {
            return;
        }
        // A reader that begins anew forgets what it has.
        if !is_quiet && dice.random_range(0..1000) < 5 {
            (self.since, self.entries) = (Since::State, BTreeMap::new());
        }
        let limit = PageLimit { count: dice.random_range(1..10), bytes: 1 << 20 };
        let page = ready(engine.page(&self.channel, self.since, Policy::Every, limit)).expect("a page");
        let was_inside = self.since.is_state() && !matches!(self.since, Since::StateOr(_));
        if page.gap.is_some() {
            self.entries.clear();
            if !was_inside {
                self.since = Since::State;
                return;
            }
        }
        for publication in &page.publications {
            let key = publication.key.as_deref().expect("a key").to_owned();
            match publication.is_deletion {
                true => drop(self.entries.remove(&key)),
                false => drop(self.entries.insert(key, publication.data().to_vec())),
            }
        }
        self.since = match page.next() {
            Since::Position(at) => Since::StateOr(at),
            inside => inside,
        };
    }
}
