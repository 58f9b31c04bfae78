//! Messages between the nodes of a room, as questions of the engine and their answers.

use std::collections::{BTreeMap, BTreeSet};

use millrace_protocol::Error;
use millrace_room::{Announced, Topology};
use millrace_sfu::cascade::{NodeId, Roster};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::rooms::Request;

/// Beginning of a question to the rooms of another node. A question that begins differently belongs to operators.
pub(super) const PREFIX: &str = r#"{"room":"#;

/// Name of a node's SFU: `{node}.{shard}`.
pub(super) type Endpoint = Box<str>;

/// Question to another node about a room.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Question {
    pub room: String,
    /// Sender of the question.
    pub from: Endpoint,
    pub body: Body,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Body {
    /// To the owner: perform a request that the sender has received.
    Request(Box<Request>),
    /// To the node of a participant: a signal for its SFU, which the owner has checked.
    Signal { participant: String, fields: Map<String, Value> },
    /// From the owner: its room has changed.
    Update(Box<Update>),
    /// From a new owner: which participants does the node hold?
    Claimed { epoch: u64 },
    /// To a new owner that has not asked: the participants of the sender.
    Announce { epoch: u64, held: Box<Held> },
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Answer {
    /// `update`: state of the room after the request, for the sender.
    Done {
        value: Value,
        update: Option<Box<Update>>,
    },
    Failed(Error),
    /// The node does not own the room.
    NotOwner,
    /// The node has accepted the message.
    Accepted,
    /// The node holds these participants, which the owner does not know.
    Held(Option<Box<Held>>),
    /// The message contradicts what the node knows, for this reason.
    Refused(String),
}

/// Properties of a room that outlive its owner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Outline {
    /// Topology with which the room was created.
    pub topology: Topology,
    pub is_locked: bool,
    /// End of the chat when the room was opened.
    pub chat_since: String,
}

/// State of a room, as its owner announces it to one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Update {
    pub owner: Endpoint,
    pub epoch: u64,
    /// Number of the update within the epoch.
    pub version: u64,
    pub outline: Outline,
    /// Node of each participant.
    pub members: BTreeMap<Box<str>, Endpoint>,
    /// Participants of the receiving node, with their secrets.
    pub seats: Vec<Announced>,
    /// To another node: the participants of the owner, with their secrets, so that they outlive the owner.
    #[serde(default)]
    pub owner_seats: Vec<Announced>,
}

/// Reason why an owner refuses the participants that a node announces.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refusal {
    #[error("the participant {0} is on another node")]
    OtherNode(Box<str>),
    #[error("a node announces only its own participants")]
    OtherSender,
    #[error(transparent)]
    Room(#[from] Error),
}

impl Update {
    /// Order of updates: that of a later owner is newer than any of an earlier one.
    pub fn order(&self) -> (u64, u64) {
        (self.epoch, self.version)
    }

    /// Returns the nodes and members whose media cross links, as the SFU `own` knows them: none if no participant of
    /// the room is on it, or if the server does not forward the media of the room.
    pub fn roster(&self, own: &NodeId) -> Roster {
        let nodes: BTreeSet<NodeId> = self.members.values().filter_map(|node| NodeId::new(node)).collect();
        let is_switched = matches!(self.outline.topology, Topology::Switch | Topology::Auto);
        if !is_switched || !nodes.contains(own) {
            return Roster::default();
        }
        let members = self.members.iter().filter_map(|(id, node)| Some((id.clone(), NodeId::new(node)?)));
        Roster { members: members.collect(), nodes }
    }

    /// Returns whether two updates have the same contents.
    pub fn is_same(&self, other: &Self) -> bool {
        let contents = |update: &Self| (update.epoch, update.outline.clone(), update.members.clone());
        contents(self) == contents(other) && self.seats == other.seats && self.owner_seats == other.owner_seats
    }
}

/// Participants that a node announces to a new owner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Held {
    /// SFU of these participants.
    pub node: Endpoint,
    pub outline: Outline,
    pub seats: Vec<Announced>,
    /// Answer to [`Body::Claimed`]: the participants of the last owner, as that owner has announced them.
    #[serde(default)]
    pub inherited: Option<Box<Held>>,
}

#[cfg(test)]
mod tests {
    use millrace_protocol::ChannelName;

    use super::*;

    #[test]
    fn question_is_no_channel_name_and_has_its_prefix() {
        let request = Box::new(Request::Show);
        let question = Question { room: "r".into(), from: "ab.0".into(), body: Body::Request(request) };
        let text = serde_json::to_string(&question).unwrap();
        assert_eq!(text, r#"{"room":"r","from":"ab.0","body":{"request":"show"}}"#);
        assert!(text.starts_with(PREFIX) && ChannelName::parse(&text).is_err());
        assert!(serde_json::from_str::<Question>(r#"{"rooms":{"room":"r"}}"#).is_err(), "a question of operators");
    }
}
