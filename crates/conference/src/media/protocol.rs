use std::{net::SocketAddr, rc::Rc, time::Instant};

use millrace_node::Metrics;
use millrace_sfu::{
    cascade::frame::is_frame,
    egress::is_media,
    switch::{Event, MemberId},
};
use millrace_transport::datagram::{DatagramProtocol, Verdict};
use serde_json::json;

use super::{members::Owner, participants::send_signal, sfu::Sfu};
use crate::Conference;

/// Protocol of the SFU on the datagram port of its shard.
pub struct SfuProtocol {
    pub conference: Rc<Conference>,
    pub sfu: Rc<Sfu>,
}

impl DatagramProtocol for SfuProtocol {
    fn knows(&self, address: &SocketAddr) -> bool {
        self.sfu.switch.borrow().knows(address) || self.sfu.is_node(address)
    }

    fn handle_datagram(&self, now: Instant, from: SocketAddr, datagram: &[u8]) -> Verdict {
        if self.sfu.handle_link_datagram(now, from, datagram) {
            return Verdict::Valid;
        }
        match self.sfu.run(|switch, send| switch.handle_datagram(now, from, datagram, send)) {
            true => Verdict::Valid,
            false => Verdict::Unclaimed,
        }
    }

    /// Media are forwarded before anything else is handled.
    fn is_urgent(&self, datagram: &[u8]) -> bool {
        is_media(datagram) || is_frame(datagram)
    }

    fn timeout(&self) -> Option<Instant> {
        self.sfu.timeout()
    }

    fn handle_timeouts(&self, now: Instant) {
        if self.timeout().is_some_and(|timeout| timeout <= now) {
            self.sfu.handle_timeouts(now);
        }
    }

    fn handle_events(&self) {
        while let Some(event) = self.sfu.poll_event() {
            match event {
                Event::Connected(_) => {}
                Event::Offer(member, sdp) => offer(&self.conference, member, &sdp),
                Event::Left { id, panicked } => self.left(id, panicked),
                Event::LinkLost(node, refused) => {
                    let reason = refused.map_or_else(|| "silent".to_owned(), |refused| refused.to_string());
                    tracing::info!(node = node.as_str(), reason, "link to another node lost");
                    self.sfu.close_link(&node);
                }
                Event::LinkUnused(node) => {
                    if !self.conference.cluster().is_some_and(|cluster| cluster.needs(&node)) {
                        self.sfu.close_link(&node);
                    }
                }
            }
        }
    }
}

impl SfuProtocol {
    /// Releases what belongs to a member that has left the SFU.
    fn left(&self, member: MemberId, panicked: bool) {
        let (conference, media) = (&self.conference, &self.conference.media);
        if panicked {
            Metrics::add(&conference.shard.socket_metrics.rtc_panicked, 1);
            tracing::debug!("the WebRTC library panicked for one member of the SFU; the member was removed");
        }
        if let Some(peers) = conference.data_channels.get() {
            self.sfu.uncarry(member, peers);
        }
        let owner = media.members.borrow_mut().remove(&member);
        match owner {
            Some(Owner::Participant(room, id)) => {
                let participant = media.participants.borrow_mut().remove(&(room.clone(), id.clone()));
                // The participant may still be in the room and connect again.
                let link = participant.and_then(|participant| participant.link);
                send_signal(conference, &room, &id, link.as_deref(), json!({ "bye": true }));
            }
            Some(Owner::Session(secret)) => drop(media.sessions.borrow_mut().remove(&secret)),
            None => {}
        }
    }
}

/// Sends an offer of the SFU to the participant that owns the member.
fn offer(conference: &Rc<Conference>, member: MemberId, sdp: &str) {
    let media = &conference.media;
    let (room, id) = match media.members.borrow().get(&member) {
        Some(Owner::Participant(room, id)) => (room.clone(), id.clone()),
        _ => return,
    };
    let participants = media.participants.borrow();
    let link = participants.get(&(room.clone(), id.clone())).and_then(|participant| participant.link.clone());
    drop(participants);
    send_signal(conference, &room, &id, link.as_deref(), json!({ "description": { "type": "offer", "sdp": sdp } }));
}
