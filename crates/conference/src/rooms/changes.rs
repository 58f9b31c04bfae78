use std::{rc::Rc, time::Instant};

use millrace_protocol::Error;
use millrace_room::{Composite, Output};

use super::{
    RoomName,
    open::Changes,
    publish::{Published, finish_in_background, publish_state},
};
use crate::{Conference, media};

/// Applies the pending changes of a room: publishes a changed state, deletes that of a room that has ended, and
/// notifies the SFU and the other nodes of the room. Returns the pending publication of the state, if the state has
/// changed.
pub fn apply(conference: &Rc<Conference>, name: &RoomName) -> Option<Published> {
    // A node whose lease has ended, for example because its process was suspended, publishes nothing more.
    if conference.cluster().is_some_and(|cluster| !cluster.owns(name)) {
        return None;
    }
    let Changes { holder, state, has_ended, outputs } = conference.rooms.take_changes(name)?;
    let published = state.map(|state| publish_state(conference, holder, name, Some(&state)));
    if has_ended {
        finish_in_background(publish_state(conference, holder, name, None));
    }
    for output in outputs {
        match output {
            Output::Left(id) => media::leave(conference, name, id.as_str()),
            Output::Muted(id, muted) => media::mute(conference, name, id.as_str(), muted),
            // A participant joins the SFU by its first offer. That of a reloaded page replaces the connection.
            Output::Joined(_) | Output::Resumed(_) | Output::State => {}
        }
    }
    if let Some(cluster) = conference.cluster() {
        cluster.send_changes(conference, name);
    }
    published
}

/// Applies the pending changes of a room, and waits until a changed state is published.
///
/// Errors: those of the publication.
pub async fn apply_and_wait(conference: &Rc<Conference>, name: &RoomName) -> Result<(), Error> {
    match apply(conference, name) {
        Some(published) => published.await.map(drop),
        None => Ok(()),
    }
}

/// Sets the layout of a room's composite video, and publishes the state if the layout has changed.
pub(crate) fn set_composite(conference: &Rc<Conference>, name: &RoomName, composite: Composite) {
    let is_changed = conference.rooms.with(name, |room| Ok(room.set_composite(composite))).unwrap_or(false);
    if is_changed && let Some(published) = apply(conference, name) {
        finish_in_background(published);
    }
}

/// Removes participants that exceed the silent peer timeout. Called once a second.
pub(crate) fn tick(conference: &Rc<Conference>) {
    for name in conference.rooms.handle_timeouts(Instant::now()) {
        if let Some(published) = apply(conference, &name) {
            finish_in_background(published);
        }
    }
}
