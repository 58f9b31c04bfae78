//! Counters of a run, and the deliberate defects of its world.

/// How often each event happened. A run without these events proves nothing.
#[derive(Default, Debug, Clone, Copy)]
pub struct Counts {
    pub publications: u64,
    pub deliveries: u64,
    pub lost: u64,
    pub moved: u64,
    pub messages: u64,
    pub gaps: u64,
    pub lapses: u64,
    pub full: u64,
    pub pages: u64,
    pub blocked: u64,
    pub pings: u64,
    pub cuts: u64,
    pub leaves: u64,
    pub restarts: u64,
    pub epochs: u64,
    pub jobs: u64,
    pub polls: u64,
    pub states: u64,
    pub restarts_of_states: u64,
    pub deletions: u64,
    pub expired: u64,
    pub conditions_met: u64,
    pub conditions_failed: u64,
    pub broken: u64,
}

/// Deliberate defect of the world, to check that the simulation detects it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Breakage {
    None,
    /// A wire accepts bytes and loses some of them.
    DroppedBytes,
    /// A page of history omits a publication.
    PageWithHole,
    /// History does not report the publications that it no longer holds.
    SilentGap,
    /// Long polls are never woken, and never time out.
    LostWake,
    /// A page of a state omits a deletion.
    LostDeletion,
}

impl Counts {
    pub fn all(&mut self) -> [(&'static str, &mut u64); 24] {
        [
            ("publications", &mut self.publications),
            ("deliveries", &mut self.deliveries),
            ("lost on the way", &mut self.lost),
            ("losses noticed", &mut self.moved),
            ("messages", &mut self.messages),
            ("gaps", &mut self.gaps),
            ("lapses", &mut self.lapses),
            ("full logs", &mut self.full),
            ("pages", &mut self.pages),
            ("blocked writes", &mut self.blocked),
            ("pings", &mut self.pings),
            ("cuts", &mut self.cuts),
            ("leaves", &mut self.leaves),
            ("restarts", &mut self.restarts),
            ("epochs", &mut self.epochs),
            ("subscriptions", &mut self.jobs),
            ("polls", &mut self.polls),
            ("states", &mut self.states),
            ("restarts of states", &mut self.restarts_of_states),
            ("deletions", &mut self.deletions),
            ("expired keys", &mut self.expired),
            ("conditions met", &mut self.conditions_met),
            ("conditions failed", &mut self.conditions_failed),
            ("broken", &mut self.broken),
        ]
    }

    pub fn add(&mut self, other: &Counts) {
        let mut other = *other;
        self.all().into_iter().zip(other.all()).for_each(|((_, sum), (_, count))| *sum += *count);
    }
}
