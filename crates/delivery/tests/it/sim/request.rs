//! Requests of clients that the server has not answered yet.

use millrace_delivery::{ConnId, Page};
use millrace_protocol::{Encoding, Pattern, Position, Since, session::Policy, session::Target};

/// Decoded command of a client to a session.
pub enum Command {
    Subscribe { channel: usize, since: Since, policy: Policy },
    SubscribePattern { pattern: Pattern, since: Option<u64>, positions: Vec<(usize, Position)>, policy: Policy },
    Unsubscribe { target: Target },
}

/// A subscription whose first pages are being read.
pub struct Job {
    pub conn: ConnId,
    pub kind: Kind,
    pub policy: Policy,
    pub reads: Vec<(usize, Since, Option<Page>)>,
}

pub enum Kind {
    Stream { encoding: Encoding },
    Named { id: u64 },
    Pattern { id: u64, pattern: Pattern, time_ms: u64 },
}

/// One long poll.
pub struct Poll {
    pub client: usize,
    pub policy: Policy,
    /// Number of the current round. It rises with every wake-up, and pages of an earlier round are ignored.
    pub round: u32,
    pub many: bool,
    pub reads: Vec<(usize, Since, Option<Page>)>,
}
