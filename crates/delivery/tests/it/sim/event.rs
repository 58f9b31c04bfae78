//! Events of a simulated world, each at one time of the virtual clock.

use millrace_delivery::{ChannelKey, ConnId, Page, ReadTicket};
use millrace_protocol::{Epoch, Position, Publication, Since, session::Policy};

use super::request::Command;

/// Something that happens. `life` is the life of the server in which it was caused: after a restart, an event of an
/// earlier life has no effect.
pub enum Event {
    Publish,
    Deliver {
        life: u32,
        channel: usize,
        key: Option<ChannelKey>,
        epoch: Epoch,
        publication: Publication,
    },
    /// The engine reports the end of the log instead of the publications.
    Moved {
        life: u32,
        channel: usize,
        key: Option<ChannelKey>,
        from: Position,
    },
    /// A page is read at this time.
    Read {
        life: u32,
        asker: Asker,
        channel: usize,
        since: Since,
        policy: Policy,
    },
    /// The page arrives at the hub at this time.
    Page {
        life: u32,
        asker: Asker,
        channel: usize,
        page: Page,
    },
    Writable {
        life: u32,
        conn: ConnId,
    },
    Receive {
        life: u32,
        conn: ConnId,
    },
    Received {
        life: u32,
        conn: ConnId,
    },
    Disconnect {
        life: u32,
        conn: ConnId,
    },
    Connect {
        client: usize,
    },
    Cut {
        client: usize,
    },
    Act {
        client: usize,
    },
    Command {
        life: u32,
        client: usize,
        conn: ConnId,
        id: u64,
        command: Command,
    },
    Answer {
        client: usize,
        poll: u64,
        body: Vec<u8>,
    },
    Forget {
        life: u32,
        poll: u64,
    },
    Timeout {
        life: u32,
        poll: u64,
    },
    Tick,
    /// The engine expires keys of the states.
    Expire,
    LoseEngine,
    Restart,
}

/// Requester of a page.
#[derive(Clone, Copy)]
pub enum Asker {
    Reader(ReadTicket),
    Job { job: u64, read: usize },
    Poll { poll: u64, round: u32, read: usize },
}
