//! How far readers are behind, for operators. Everything is computed from the cursors when it is asked for, so it costs
//! the delivery nothing.

use std::ops::Range;

use millrace_protocol::{ChannelName, session::Policy};

use super::{CAUGHT_UP, ConnId, Hub, ReaderRef};

/// How far a connection is behind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lag {
    /// Publications that the connection has not been sent yet, over all its channels.
    pub behind: u64,
    /// Bytes that wait for the connection in this hub: its own queue, and the frames of the logs from its cursors on.
    /// Publications that the connection has to read from history do not count.
    pub bytes: usize,
    /// Number of channels of which the connection lacks publications.
    pub channels: usize,
    /// Channel of which the connection lacks most publications, and their number.
    pub furthest: Option<(ChannelName, u64)>,
    /// The socket takes no bytes at present.
    pub is_blocked: bool,
    /// Time in seconds for which the connection has lacked publications; `None` if it has caught up.
    pub since_s: Option<u32>,
    /// Number of gaps that were reported to the connection.
    pub gaps: u16,
    /// Policy of the subscriptions; of the first one if they differ.
    pub policy: Option<Policy>,
    pub has_mixed_policies: bool,
}

impl Lag {
    /// Returns true if the connection lacks anything.
    pub fn is_behind(&self) -> bool {
        self.behind > 0 || self.bytes > 0 || self.is_blocked
    }

    /// Adds the lag of another lane of the same client.
    pub fn add(&mut self, other: Lag) {
        self.behind += other.behind;
        self.bytes += other.bytes;
        self.channels += other.channels;
        let missing = |furthest: &Option<(ChannelName, u64)>| furthest.as_ref().map_or(0, |(_, count)| *count);
        if missing(&other.furthest) > missing(&self.furthest) {
            self.furthest = other.furthest;
        }
        self.is_blocked |= other.is_blocked;
        self.since_s = self.since_s.max(other.since_s);
        self.gaps = self.gaps.saturating_add(other.gaps);
        self.has_mixed_policies |= other.has_mixed_policies
            || (self.policy.is_some() && other.policy.is_some() && self.policy != other.policy);
        self.policy = self.policy.or(other.policy);
    }
}

impl Hub {
    /// Returns the connections in these slots; see [`Hub::slots`].
    pub fn conns_in(&self, slots: Range<usize>) -> impl Iterator<Item = ConnId> + '_ {
        slots.filter_map(|slot| {
            let conn = self.conns.get(slot)?;
            Some(ConnId { slot: slot as u32, generation: conn.generation })
        })
    }

    /// Returns how far a connection is behind. Cost: O(subscriptions of the connection).
    pub fn lag(&self, id: ConnId) -> Option<Lag> {
        let conn = self.conn(id)?;
        let mut lag = Lag {
            bytes: conn.out.len(),
            is_blocked: conn.blocked,
            since_s: (conn.behind_s != CAUGHT_UP).then(|| self.now_s.saturating_sub(conn.behind_s)),
            gaps: conn.gaps,
            ..Lag::default()
        };
        for reader in conn.readers.iter().flatten() {
            let channel = &self.channels[reader.channel as usize];
            let group = &channel.groups[reader.group as usize];
            lag.has_mixed_policies |= lag.policy.is_some_and(|policy| policy != group.policy);
            lag.policy = lag.policy.or(Some(group.policy));
            let (behind, bytes) = self.lag_of(reader);
            lag.behind += behind;
            lag.bytes += bytes;
            if behind > 0 {
                lag.channels += 1;
                if lag.furthest.as_ref().is_none_or(|(_, most)| behind > *most) {
                    lag.furthest = Some((channel.name.clone(), behind));
                }
            }
        }
        Some(lag)
    }

    /// Returns the publications that a reader lacks, and their bytes in the log.
    fn lag_of(&self, reader: &ReaderRef) -> (u64, usize) {
        let channel = &self.channels[reader.channel as usize];
        let group = &channel.groups[reader.group as usize];
        if reader.live {
            let cursor = group.live[reader.index as usize].cursor;
            return (group.log.next().saturating_sub(cursor), group.log.bytes_from(cursor));
        }
        let recovering = &group.recovering[reader.index as usize];
        let top = channel.head.map_or(0, |head| head.offset).max(recovering.top);
        let at = match channel.epoch() == recovering.at.epoch {
            true => recovering.at.offset,
            // The offsets of another epoch begin anew.
            false => 0,
        };
        (top.saturating_sub(at), group.log.bytes_from(at + 1))
    }

    /// Ends the time for which a connection lacks publications, if it has everything now.
    pub(super) fn note_caught_up(&mut self, id: ConnId) {
        let Some(conn) = self.conn_mut(id) else { return };
        if conn.behind_s != CAUGHT_UP && !conn.blocked && !conn.readers.iter().flatten().any(|reader| !reader.live) {
            conn.behind_s = CAUGHT_UP;
        }
    }
}
