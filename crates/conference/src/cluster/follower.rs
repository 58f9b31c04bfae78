//! How a node follows the owner of a room: its participants, their media, and the links to the other nodes.

use std::{rc::Rc, time::Instant};

use millrace_room::ownership::Owner;

use super::{
    hosted::Hosted,
    messages::{Answer, Update},
    state::Cluster,
};
use crate::{Conference, media};

impl Cluster {
    /// Handles an update of an owner. An update of an earlier owner, or of another node than the owner, is refused. An
    /// owner that does not know the participants of this node must learn of them first.
    pub(super) fn accept_update(&self, conference: &Rc<Conference>, hosted: &Hosted, update: Update) -> Answer {
        let refused = |reason: &str| Answer::Refused(reason.to_owned());
        match hosted.owner(Instant::now()) {
            Owner::This { epoch } if epoch >= update.epoch => return refused("another node owns the room since"),
            Owner::Other { epoch, .. } if epoch > update.epoch => return refused("another node owns the room since"),
            Owner::Other { epoch, node } if epoch == update.epoch && node != update.owner => {
                return refused("the sender does not own the room");
            }
            _ => {}
        }
        if hosted.update.borrow().as_ref().is_some_and(|known| known.order() >= update.order()) {
            return Answer::Accepted;
        }
        if hosted.is_unknown_to(update.epoch) {
            return Answer::Held(hosted.held(self.name.as_str()).map(Box::new));
        }
        self.follow(conference, hosted, update);
        Answer::Accepted
    }

    /// Applies an update to the SFU of this shard.
    pub(super) fn follow(&self, conference: &Rc<Conference>, hosted: &Hosted, update: Update) {
        let (room, own) = (&hosted.room, self.name.as_str());
        media::retain(conference, room, |id| update.members.get(id).is_some_and(|node| **node == *own));
        let roster = update.roster(&self.name);
        if roster.nodes.iter().any(|node| !self.directory.borrow().contains(node.as_str())) {
            self.read_at.set(None);
            self.wake.notify_one();
        }
        for seat in &update.seats {
            media::mute(conference, room, seat.id.as_str(), seat.muted_by_host);
        }
        *hosted.update.borrow_mut() = Some(update);
        conference.media.set_roster(room, roster);
        conference.media.open_links(&hosted.linked(&self.name));
    }
}
