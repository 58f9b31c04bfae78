use std::collections::VecDeque;

use millrace_protocol::{ChannelName, Position};

/// Maximum number of publications that one client leaves unacknowledged.
const UNACKNOWLEDGED_MAX: usize = 512;
/// Maximum number of entries, including those behind the first unacknowledged one.
const ENTRIES_MAX: usize = 1024;

/// Publications with quality of service that were sent and are not acknowledged. It holds their positions, not their
/// payloads: after a reconnect, the payloads come from history again.
///
/// ```text
/// quality of service 1:  Sent ── PUBACK ──► Done
/// quality of service 2:  Sent ── PUBREC ──► Released ── PUBCOMP ──► Done
/// ```
#[derive(Debug, Default)]
pub struct Window {
    entries: VecDeque<Sent>,
    unacknowledged: usize,
    last_id: u16,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sent {
    pub id: u16,
    pub qos: u8,
    pub state: State,
    pub origin: Origin,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Sent,
    /// PUBREC was received, so the publication is not retransmitted.
    Released,
    Done,
}

/// Where a publication comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The log of a channel.
    Log(ChannelName, Position),
    /// The retained publication of a channel.
    Retained(ChannelName),
    /// PUBREL of an earlier connection.
    Earlier,
}

impl Window {
    /// Returns true if the client must acknowledge before it gets further publications.
    pub fn is_full(&self, receive_max: u16) -> bool {
        self.unacknowledged >= UNACKNOWLEDGED_MAX.min(receive_max.into()) || self.entries.len() >= ENTRIES_MAX
    }

    /// Adds a publication and returns its packet identifier. `id`: the identifier of an earlier connection.
    pub fn push(&mut self, id: Option<u16>, qos: u8, origin: Origin) -> u16 {
        let id = id.unwrap_or_else(|| self.next_id());
        self.entries.push_back(Sent { id, qos, state: State::Sent, origin });
        self.unacknowledged += 1;
        id
    }

    /// Adds an entry whose PUBREL was sent in an earlier connection.
    pub fn push_released(&mut self, id: u16) {
        self.entries.push_back(Sent { id, qos: 2, state: State::Released, origin: Origin::Earlier });
        self.unacknowledged += 1;
    }

    /// Removes the newest entry, because its packet could not be sent.
    pub fn pop(&mut self) {
        if self.entries.pop_back().is_some() {
            self.unacknowledged -= 1;
        }
    }

    fn next_id(&mut self) -> u16 {
        loop {
            self.last_id = self.last_id.checked_add(1).unwrap_or(1);
            let id = self.last_id;
            if self.entries.iter().all(|sent| sent.id != id || sent.state == State::Done) {
                return id;
            }
        }
    }

    /// Reserves identifiers of an earlier connection: new ones follow this one.
    pub fn continue_after(&mut self, id: u16) {
        self.last_id = id;
    }

    pub fn last_id(&self) -> u16 {
        self.last_id
    }

    /// Moves the publication with this identifier and quality of service to its next state. Returns its origin, or
    /// `None` if it is unknown or in another state.
    pub fn advance(&mut self, id: u16, qos: u8, from: State, to: State) -> Option<Origin> {
        let is_it = |sent: &&mut Sent| sent.id == id && sent.qos == qos && sent.state == from;
        let sent = self.entries.iter_mut().find(is_it)?;
        sent.state = to;
        let origin = sent.origin.clone();
        if to == State::Done {
            self.unacknowledged -= 1;
            while self.entries.front().is_some_and(|sent| sent.state == State::Done) {
                self.entries.pop_front();
            }
        }
        Some(origin)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Sent> {
        self.entries.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin() -> Origin {
        Origin::Retained(ChannelName::parse("a").unwrap())
    }

    #[test]
    fn window_is_full_at_the_receive_maximum() {
        let mut window = Window::default();
        let ids = [window.push(None, 1, origin()), window.push(None, 2, origin())];
        assert!(ids == [1, 2] && window.is_full(2) && !window.is_full(3));
        assert!(window.advance(1, 2, State::Sent, State::Released).is_none(), "another quality of service");
        assert!(window.advance(2, 2, State::Sent, State::Released).is_some() && window.is_full(2));
        assert!(window.advance(2, 2, State::Released, State::Done).is_some() && !window.is_full(2));
        assert_eq!(window.iter().count(), 2, "the entry stays behind the first unacknowledged one");
        assert!(window.advance(1, 1, State::Sent, State::Done).is_some());
        assert_eq!(window.iter().count(), 0);
    }

    #[test]
    fn identifier_in_use_is_skipped() {
        let mut window = Window::default();
        window.continue_after(u16::MAX - 1);
        assert_eq!(window.push(Some(1), 1, origin()), 1);
        assert_eq!([window.push(None, 1, origin()), window.push(None, 1, origin())], [u16::MAX, 2]);
    }

    #[test]
    fn client_that_never_acknowledges_the_first_is_stopped() {
        let mut window = Window::default();
        let first = window.push(None, 1, origin());
        let mut sent = 1;
        while !window.is_full(u16::MAX) {
            let id = window.push(None, 1, origin());
            window.advance(id, 1, State::Sent, State::Done);
            sent += 1;
        }
        assert_eq!((first, sent), (1, ENTRIES_MAX));
    }
}
