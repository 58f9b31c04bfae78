use std::{
    cell::RefCell,
    collections::{HashMap, hash_map::Entry},
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use millrace_protocol::{Code, Error, Holder, Position};
use millrace_room::{Announced, Join, Joined, Muted, Output, Refused, Room, Topology};
use millrace_sfu::{congestion::Algorithm, switch::VideoCodecs};
use serde_json::Value;

use super::{Config, MixerSlot, RoomName, Shared};
use crate::cluster::Outline;

/// Rooms of one shard.
pub struct Rooms {
    shared: Arc<Shared>,
    rooms: RefCell<HashMap<RoomName, Open>>,
}

/// A room and the client that opened it. The quota of this client pays for the room and its channels.
struct Open {
    room: Room,
    holder: Holder,
    /// End of the chat when the room was opened. Participants who join later may read the chat from here.
    chat_since: Position,
}

/// Changes of a room that have had no effect outside the room yet.
pub(super) struct Changes {
    /// The client whose quota pays for the publication of the state.
    pub holder: Holder,
    /// The new state, if it has changed.
    pub state: Option<Value>,
    /// The last participant has left.
    pub has_ended: bool,
    /// Changes that concern the SFU.
    pub outputs: Vec<Output>,
}

impl Rooms {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, rooms: RefCell::default() }
    }

    /// Returns whether rooms may have participants on several nodes.
    pub(crate) fn span_nodes(&self) -> bool {
        self.shared.config.over_nodes && self.shared.config.rooms_max > 0
    }

    /// Returns the IP address at which other nodes reach the SFUs of this node, if it is configured.
    pub(crate) fn link_address(&self) -> Option<IpAddr> {
        self.shared.config.link_address.parse().ok()
    }

    /// Returns the congestion control algorithm of the media that the SFU sends.
    pub(crate) fn congestion_control(&self) -> Algorithm {
        self.shared.config.congestion_control
    }

    /// Returns the limits of rooms.
    ///
    /// Errors: [`Code::NotFound`] if rooms are disabled.
    pub(crate) fn config(&self) -> Result<&Config, Error> {
        match self.shared.config.rooms_max {
            0 => Err(Error::new(Code::NotFound, "this server has no rooms; `rooms.rooms_max` is 0")),
            _ => Ok(&self.shared.config),
        }
    }

    /// Adds a participant; the first participant creates the room. The caller must apply the changes before it awaits
    /// anything else. `has_switch`: the shard has an SFU, so new rooms may have the topology `switch`. `chat_end`: the
    /// end of the chat before the join.
    ///
    /// Errors: [`Code::TooMany`] rooms or mixers, and those of [`Room::join`].
    pub(super) fn join(
        &self,
        name: &RoomName,
        join: Join,
        has_switch: bool,
        chat_end: &Position,
    ) -> Result<Joined, Error> {
        let (shared, now) = (&self.shared, Instant::now());
        let mut rooms = self.rooms.borrow_mut();
        match rooms.entry(name.clone()) {
            Entry::Occupied(mut open) => open.get_mut().room.join(now, join).map_err(refused),
            Entry::Vacant(entry) => {
                let mut room = Room::new(shared.config.room(has_switch), join.topology).map_err(refused)?;
                if room.topology() == Topology::Mixer && !shared.has_free_mixer() {
                    let detail = "all mixers of this server are in use (`rooms.mixers_max`); try again later";
                    return Err(Error::new(Code::TooMany, detail));
                }
                let holder = Holder::new(join.client_id);
                let joined = room.join(now, join).map_err(refused)?;
                shared.open(holder)?;
                tracing::info!(room = name.as_str(), "room opened");
                entry.insert(Open { room, holder, chat_since: *chat_end });
                Ok(joined)
            }
        }
    }

    /// Runs `work` on a room.
    ///
    /// Errors: [`Code::NotFound`] if the room does not exist, and the errors of `work`.
    pub(super) fn with<T>(
        &self,
        name: &RoomName,
        work: impl FnOnce(&mut Room) -> Result<T, Refused>,
    ) -> Result<T, Error> {
        match self.rooms.borrow_mut().get_mut(name) {
            Some(open) => work(&mut open.room).map_err(refused),
            None => Err(Error::new(Code::NotFound, "this room has no participants")),
        }
    }

    /// Checks that this holder may open one more room.
    ///
    /// Errors: [`Code::TooMany`].
    pub(crate) fn check_free(&self, holder: Holder) -> Result<(), Error> {
        self.shared.check_free(holder)
    }

    /// Returns true if the room is open on this shard.
    pub(crate) fn contains(&self, name: &RoomName) -> bool {
        self.rooms.borrow().contains_key(name)
    }

    /// Returns what outlives the owner of a room.
    pub(crate) fn outline(&self, name: &RoomName) -> Option<Outline> {
        let rooms = self.rooms.borrow();
        let Open { room, chat_since, .. } = rooms.get(name)?;
        let (topology, is_locked) = (room.created_topology(), room.is_locked());
        Some(Outline { topology, is_locked, chat_since: chat_since.to_string() })
    }

    /// Returns a participant as it is announced to its node.
    pub(crate) fn announce(&self, name: &RoomName, id: &str) -> Option<Announced> {
        self.rooms.borrow().get(name)?.room.announce(id).ok()
    }

    /// Continues a room of an earlier owner with these participants. `unix_ms`: current time in milliseconds since
    /// 1970. The caller must apply the changes.
    ///
    /// Errors: [`Code::TooMany`] rooms, and those of [`Room::restore`].
    pub(crate) fn adopt(
        &self,
        name: &RoomName,
        outline: &Outline,
        (has_switch, unix_ms): (bool, u64),
        seats: Vec<Announced>,
    ) -> Result<(), Error> {
        let Some(first) = seats.first() else { return Ok(()) };
        let (shared, now) = (&self.shared, Instant::now());
        let mut rooms = self.rooms.borrow_mut();
        let open = match rooms.entry(name.clone()) {
            Entry::Occupied(open) => open.into_mut(),
            Entry::Vacant(entry) => {
                let mut room = Room::new(shared.config.room(has_switch), Some(outline.topology)).map_err(refused)?;
                room.continue_versions(unix_ms);
                room.lock(outline.is_locked);
                let (holder, chat_since) = (Holder::new(first.client_id), outline.chat_since.parse()?);
                shared.open(holder)?;
                tracing::info!(room = name.as_str(), "room taken over");
                entry.insert(Open { room, holder, chat_since })
            }
        };
        seats.into_iter().try_for_each(|seat| open.room.restore(now, seat)).map_err(refused)
    }

    /// Forgets a room whose owner is another node from now on. Its published state stays.
    pub(crate) fn surrender(&self, name: &RoomName) {
        if let Some(Open { holder, .. }) = self.rooms.borrow_mut().remove(name) {
            self.shared.close(holder);
        }
    }

    /// Returns the names of the open rooms.
    pub(super) fn names(&self) -> Vec<RoomName> {
        self.rooms.borrow().keys().cloned().collect()
    }

    /// Returns true if the audio of this room is mixed.
    pub(crate) fn is_mixed(&self, name: &RoomName) -> bool {
        self.rooms.borrow().get(name).is_some_and(|open| open.room.topology() == Topology::Mixer)
    }

    /// Returns true if all cameras of this room become one video.
    pub(crate) fn has_composite_video(&self, name: &RoomName) -> bool {
        self.shared.config.mixer_video && self.is_mixed(name)
    }

    /// Returns the video codecs that the members of this room may use.
    pub(crate) fn video_codecs(&self, name: &RoomName) -> VideoCodecs {
        if self.has_composite_video(name) { VideoCodecs::Composite } else { VideoCodecs::All }
    }

    /// Reserves a mixer slot; `None` if all are in use.
    pub(crate) fn mixer(&self) -> Option<MixerSlot> {
        self.shared.mixer()
    }

    /// Returns which media of a participant a host has muted for the whole room.
    pub(crate) fn muted_by_host(&self, name: &RoomName, id: &str) -> Muted {
        self.rooms.borrow().get(name).map(|open| open.room.muted_by_host(id)).unwrap_or_default()
    }

    /// Returns where the chat of the people in this room begins.
    pub(super) fn chat_since(&self, name: &RoomName) -> Option<Position> {
        self.rooms.borrow().get(name).map(|open| open.chat_since)
    }

    /// Returns the holder whose quota pays for the channels of a room.
    pub(super) fn holder(&self, name: &RoomName) -> Holder {
        self.rooms.borrow().get(name).map_or(Holder::NONE, |open| open.holder)
    }

    /// Returns the lifetime of a signal.
    pub(super) fn signal_ttl(&self) -> Duration {
        2 * self.shared.config.silence_max
    }

    /// Takes the pending changes of a room, and removes the room if it is empty. Several changes of the state result in
    /// one new state.
    pub(super) fn take_changes(&self, name: &RoomName) -> Option<Changes> {
        let mut rooms = self.rooms.borrow_mut();
        let Open { room, holder, .. } = rooms.get_mut(name)?;
        let holder = *holder;
        let (mut is_changed, mut outputs) = (false, Vec::new());
        while let Some(output) = room.poll_output() {
            match output {
                Output::State => is_changed = true,
                output => outputs.push(output),
            }
        }
        let state = is_changed.then(|| room.state());
        let has_ended = room.is_empty();
        if has_ended {
            rooms.remove(name);
            self.shared.close(holder);
            tracing::info!(room = name.as_str(), "room closed");
        }
        Some(Changes { holder, state, has_ended, outputs })
    }

    /// Removes participants that exceed the silent peer timeout. Returns the rooms that changed.
    pub(super) fn handle_timeouts(&self, now: Instant) -> Vec<RoomName> {
        let mut rooms = self.rooms.borrow_mut();
        let due = rooms.iter_mut().filter(|(_, open)| open.room.poll_timeout().is_some_and(|due| due <= now));
        due.map(|(name, open)| {
            open.room.handle_timeout(now);
            name.clone()
        })
        .collect()
    }
}

fn refused(refused: Refused) -> Error {
    let code = match &refused {
        Refused::BadName | Refused::NoSwitch | Refused::NoMixer => Code::BadRequest,
        Refused::OtherTopology(_) | Refused::Locked => Code::Conflict,
        Refused::Full(..) | Refused::ClientQuota(..) => Code::TooMany,
        Refused::NotFound => Code::NotFound,
        Refused::WrongSecret | Refused::NotHost | Refused::TicketUsed => Code::Forbidden,
        Refused::TooFast(_) => Code::RateLimited,
    };
    let error = Error::new(code, refused.to_string());
    match refused {
        Refused::TooFast(wait) => error.retry_after(wait),
        _ => error,
    }
}
