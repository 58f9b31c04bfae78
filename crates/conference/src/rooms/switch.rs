//! Interface to the SFU. Without an SFU no room has the topology `switch`, and `auto` stays a mesh.

use std::rc::Rc;

use millrace_room::{Muted, SWITCH};
use serde_json::{Map, Value};

use super::{RoomName, see_to, signal};
use millrace_transport::data_channel::Guests;

use crate::Conference;

/// SFU of a shard, as seen by the rooms of the same shard. Set by [`super::Rooms::set_switch`] before the first room.
/// Its methods are called while the room state is not borrowed. The SFU answers by [`signal_from_switch`].
pub trait Switch {
    /// Reports that a participant joined a room. Called for every topology, since `auto` may change to `switch`.
    fn joined(&self, conference: &Rc<Conference>, room: &RoomName, id: &str);
    /// Reports that a participant left.
    fn left(&self, conference: &Rc<Conference>, room: &RoomName, id: &str);
    /// Reports which media of a participant are muted. Muted media are no longer forwarded; all other media are.
    fn muted(&self, conference: &Rc<Conference>, room: &RoomName, id: &str, muted: Muted);
    /// Handles a signal from a participant to `switch`: `{"description"}`, `{"candidate"}` or `{"bye"}`, with any
    /// further fields. `guests` comes with a description: the state for a session next to the media.
    fn handle_signal(
        &self,
        conference: &Rc<Conference>,
        room: &RoomName,
        from: &str,
        signal: Map<String, Value>,
        guests: Option<Guests>,
    );
}

/// Publishes a signal from `switch` to a participant's inbox.
pub fn signal_from_switch(conference: &Rc<Conference>, room: &RoomName, to: &str, said: Map<String, Value>) {
    see_to(signal(conference, conference.rooms.holder(room), room, SWITCH, to, said, None));
}
