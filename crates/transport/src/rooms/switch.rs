//! Where the switching unit comes in. Without one no room has the topology `switch`, and `auto` stays a mesh.

use std::rc::Rc;

use millrace_rtc::room::{Muted, SWITCH};
use serde_json::{Map, Value};

use super::{RoomName, see_to, signal};
use crate::{data_channel::Guests, http::Context};

/// A unit that everybody in a room is connected with, on the room's own shard. Set by [`super::Rooms::set_switch`] before the first room.
/// It is called while nothing of the rooms is held, and answers by [`signal_from_switch`].
pub trait Switch {
    /// Somebody is in a room: of any topology, as `auto` may change.
    fn joined(&self, context: &Rc<Context>, room: &RoomName, id: &str);
    /// Somebody has left.
    fn left(&self, context: &Rc<Context>, room: &RoomName, id: &str);
    /// Of somebody these are passed on no more, and the others again.
    fn muted(&self, context: &Rc<Context>, room: &RoomName, id: &str, muted: Muted);
    /// Somebody signals to `switch`: `{"description"}`, `{"candidate"}` or `{"bye"}`, and whatever else it has.
    /// With an offer come those who may open a session beside their media.
    fn handle_signal(
        &self,
        context: &Rc<Context>,
        room: &RoomName,
        from: &str,
        signal: Map<String, Value>,
        guests: Option<Guests>,
    );
}

/// Publishes a signal from `switch` to a participant's inbox.
pub fn signal_from_switch(context: &Rc<Context>, room: &RoomName, to: &str, said: Map<String, Value>) {
    see_to(signal(context, context.rooms.holder(room), room, SWITCH, to, said, None));
}
