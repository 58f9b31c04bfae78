//! Scan of the connections of a shard for a list: counts those that match, and selects the first ones of an order.
//!
//! A shard scans a bounded number of slots per question, so that a list of 100,000 connections does not delay its
//! deliveries. The caller merges the parts.

use millrace_delivery::{ConnId, Hub};
use serde::{Deserialize, Serialize};

use super::{
    ConnectionFilter, ConnectionKey,
    connections::{is_match, lag_of},
    tcp,
};
use crate::{Sockets, route::Context};

/// Number of slots that a shard scans at once.
const SLOTS: usize = 4096;

/// Order of a list of connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ConnectionOrder {
    /// By id.
    #[default]
    Id,
    /// By the publications that the connection lacks, most first.
    Behind,
    /// By the bytes sent, most first.
    Bytes,
    /// By the time at which the connection was opened, newest first.
    Opened,
}

impl ConnectionOrder {
    pub const ALL: [Self; 4] = [Self::Id, Self::Behind, Self::Bytes, Self::Opened];

    pub fn name(self) -> &'static str {
        match self {
            Self::Id => "id",
            Self::Behind => "behind",
            Self::Bytes => "bytes",
            Self::Opened => "opened",
        }
    }
}

/// Selects connections for a list.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    pub filter: ConnectionFilter,
    pub order: ConnectionOrder,
    /// Select only connections that lack publications.
    pub is_behind: bool,
    /// Select only connections after this one, in the order of ids. Connections before it still count as matching.
    pub after: Option<ConnectionKey>,
    /// Maximum number of selected connections.
    pub limit: usize,
}

/// A selected connection, and its place in the order: highest rank first, then in the order of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ranked {
    pub rank: u64,
    pub key: ConnectionKey,
}

/// Result of the scan of some slots.
#[derive(Clone, Debug, Default)]
pub struct Scanned {
    /// Number of matching connections.
    pub matching: u64,
    pub selected: Vec<Ranked>,
    /// First slot that was not scanned; `None` at the end.
    pub next: Option<usize>,
}

impl Scanned {
    /// Adds the next part of the same scan.
    pub fn add(&mut self, part: Scanned, limit: usize) {
        self.matching += part.matching;
        self.next = part.next;
        self.selected.extend(part.selected);
        self.selected.sort_unstable_by(|a, b| b.rank.cmp(&a.rank).then(a.key.cmp(&b.key)));
        self.selected.truncate(limit);
    }
}

impl Context {
    /// Scans the next slots from `slot` on.
    ///
    /// Cost: O(slots scanned), which is bounded, and O(subscriptions of their connections). The order of bytes costs
    /// one system call per connection.
    pub fn scan(&self, selection: &Selection, slot: usize) -> Scanned {
        self.shard.with(|hub, sockets| {
            let (all, end) = (hub.slots(), slot.saturating_add(SLOTS));
            let ids: Vec<ConnId> = hub.conns_in(slot..end.min(all)).collect();
            let (mut matching, mut selected) = (0, Vec::new());
            for id in ids {
                if !is_match(hub, sockets, self.shard.id, id, &selection.filter)
                    || (selection.is_behind && !lag_of(hub, sockets, id).is_behind())
                {
                    continue;
                }
                matching += 1;
                let key = ConnectionKey::new(self.shard.id, id);
                if selection.after.is_none_or(|after| key > after) {
                    selected.push(Ranked { rank: rank(hub, sockets, id, selection.order), key });
                }
            }
            let mut scanned = Scanned::default();
            scanned.add(Scanned { matching, selected, next: (end < all).then_some(end) }, selection.limit);
            scanned
        })
    }
}

fn rank(hub: &Hub, sockets: &mut Sockets, id: ConnId, order: ConnectionOrder) -> u64 {
    match order {
        ConnectionOrder::Id => 0,
        ConnectionOrder::Behind => lag_of(hub, sockets, id).behind,
        ConnectionOrder::Bytes => sockets.socket(id).and_then(|socket| tcp::bytes_sent(&socket.fd)).unwrap_or(0),
        ConnectionOrder::Opened => sockets.grants.opened_s(id).unwrap_or(0).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_merged_by_rank_then_by_key() {
        let ranked = |rank, slot| {
            let key = ConnectionKey::new(0, ConnId { slot, generation: 1 });
            Ranked { rank, key }
        };
        let mut all = Scanned::default();
        all.add(Scanned { matching: 2, selected: vec![ranked(1, 1), ranked(5, 2)], next: Some(4) }, 3);
        all.add(Scanned { matching: 3, selected: vec![ranked(5, 0), ranked(9, 7), ranked(0, 3)], next: None }, 3);
        assert_eq!((all.matching, all.next), (5, None));
        assert_eq!(all.selected, [ranked(9, 7), ranked(5, 0), ranked(5, 2)]);
    }
}
