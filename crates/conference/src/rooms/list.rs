//! The rooms of a shard, for lists and for single requests.

use std::{cmp::Reverse, collections::BTreeSet};

use serde::{Deserialize, Serialize};
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

/// Order of a list of rooms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RoomOrder {
    #[default]
    Name,
    /// By the number of participants, most first; then by name.
    Participants,
}

/// Selects rooms for a list.
#[derive(Clone, Debug, Default)]
pub struct RoomSelection {
    /// Select only rooms with this text in their names. Upper and lower case are the same.
    pub contains: Option<String>,
    pub order: RoomOrder,
    /// Select only rooms after this name. Rooms before it still count as matching.
    pub after: Option<String>,
    /// Maximum number of selected rooms.
    pub limit: usize,
}

impl Conference {
    /// Returns the selected rooms in their order; and the number of rooms of this shard that match. Cost: O(rooms).
    pub fn rooms(&self, selection: &RoomSelection) -> (Vec<RoomSummary>, usize) {
        self.rooms_where(selection, |_| true)
    }

    /// Returns the selected rooms as [`Conference::rooms`] does, of those for which `is_shown` returns true.
    pub(super) fn rooms_where(
        &self,
        selection: &RoomSelection,
        is_shown: impl Fn(&RoomName) -> bool,
    ) -> (Vec<RoomSummary>, usize) {
        let mut names = BTreeSet::from_iter(self.rooms.names());
        names.extend(self.media.rooms());
        let participants = |name: &RoomName| self.rooms.with(name, |room| Ok(room.ids().count())).unwrap_or(0);
        let (wanted, total) = select(names, selection, is_shown, participants);
        let summary = |name: RoomName| {
            let switched = self.media.reports(&name).len();
            let (topology, participants) = self
                .rooms
                .with(&name, |room| Ok((json!(room.topology()), room.ids().count())))
                .unwrap_or_else(|_| (json!("switch"), 0));
            RoomSummary { room: name.as_str().to_owned(), topology, participants, members: switched }
        };
        (wanted.into_iter().map(summary).collect(), total)
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

/// Returns the selected rooms in their order; and the number of rooms that match. A room that is not shown neither
/// matches nor counts for the limit. `participants`: returns the number of participants of a room.
fn select(
    mut names: BTreeSet<RoomName>,
    selection: &RoomSelection,
    is_shown: impl Fn(&RoomName) -> bool,
    participants: impl Fn(&RoomName) -> usize,
) -> (Vec<RoomName>, usize) {
    names.retain(is_shown);
    if let Some(text) = selection.contains.as_ref().map(|text| text.to_ascii_lowercase()) {
        names.retain(|name| name.as_str().to_ascii_lowercase().contains(&text));
    }
    let total = names.len();
    let rank = |name: &RoomName| match selection.order {
        RoomOrder::Name => 0,
        RoomOrder::Participants => participants(name),
    };
    let is_next = |name: &RoomName| selection.after.as_deref().is_none_or(|after| name.as_str() > after);
    let mut wanted: Vec<(Reverse<usize>, RoomName)> =
        names.into_iter().filter(is_next).map(|name| (Reverse(rank(&name)), name)).collect();
    wanted.sort_unstable();
    wanted.truncate(selection.limit);
    (wanted.into_iter().map(|(_, name)| name).collect(), total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rooms_that_are_not_shown_do_not_count_for_the_limit() {
        let names = || ["a", "b", "c", "d"].map(|name| RoomName::parse(name).unwrap()).into();
        let selected = |selection: RoomSelection| {
            let is_shown = |name: &RoomName| !["a", "b"].contains(&name.as_str());
            let participants = |name: &RoomName| usize::from(name.as_str() == "d");
            let (rooms, total) = select(names(), &selection, is_shown, participants);
            (rooms.iter().map(|name| name.as_str().to_owned()).collect::<Vec<_>>().concat(), total)
        };
        let selection = RoomSelection { limit: 1, ..RoomSelection::default() };
        assert_eq!(selected(selection.clone()), ("c".into(), 2));
        assert_eq!(selected(RoomSelection { after: Some("c".into()), ..selection.clone() }), ("d".into(), 2));
        assert_eq!(selected(RoomSelection { order: RoomOrder::Participants, ..selection }), ("d".into(), 2));
    }
}
