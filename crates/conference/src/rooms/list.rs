//! The rooms of a shard, for lists and for single requests.

use std::collections::BTreeSet;

use serde::Serialize;
use serde_json::{Value, json};

use super::RoomName;
use crate::Conference;

/// A room in a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RoomSummary {
    pub room: String,
    pub topology: Value,
    /// Number of participants.
    pub participants: usize,
    /// Number of members of the SFU: participants with media, and WHIP and WHEP sessions.
    pub members: usize,
}

impl Conference {
    /// Returns the rooms after `after`, in order of their names, at most `limit`; and the number of all rooms of this
    /// shard. Cost: O(rooms).
    pub fn rooms(&self, after: Option<&str>, limit: usize) -> (Vec<RoomSummary>, usize) {
        let mut names = BTreeSet::from_iter(self.rooms.names());
        names.extend(self.media.rooms());
        let total = names.len();
        let wanted = names.into_iter().filter(|name| after.is_none_or(|after| name.as_str() > after)).take(limit);
        let summary = |name: RoomName| {
            let switched = self.media.reports(&name).len();
            let (topology, participants) = self
                .rooms
                .with(&name, |room| Ok((json!(room.topology()), room.ids().count())))
                .unwrap_or_else(|_| (json!("switch"), 0));
            RoomSummary { room: name.as_str().to_owned(), topology, participants, members: switched }
        };
        (wanted.map(summary).collect(), total)
    }

    /// Returns the state of a room with the last report of each participant, and the reports of the SFU. Returns
    /// `None` if the room has neither a participant nor a WHIP or WHEP session.
    pub fn room(&self, name: &RoomName) -> Option<Value> {
        let switched = self.media.reports(name);
        let mut state = match self.rooms.with(name, |room| Ok((room.state(), room.reports()))) {
            Ok((mut state, reports)) => {
                state["reports"] = reports;
                state
            }
            Err(_) if switched.is_empty() => return None,
            Err(_) => json!({ "version": 0, "topology": "switch", "participants": [], "reports": {} }),
        };
        state["switch"] = json!(switched);
        Some(state)
    }

    /// Returns the shard that holds a room.
    pub fn shard_of(room: &RoomName, shards: usize) -> usize {
        (room.hash() % shards.max(1) as u64) as usize
    }
}
