//! Selective forwarding unit (SFU): forwards the media of each member of a room to the others, without decoding.
//!
//! - [`state`]: rooms and members, and how work on one member is done
//! - [`membership`]: how members join and leave, and how their offers and answers are accepted
//! - [`incoming`]: bandwidth estimates for members that send without transport-wide congestion control
//! - [`input`]: datagrams and the time
//! - [`source`]: one track of a member; the direction of a member's media
//! - [`lines`]: assignment of tracks to the lines of each member's SDP
//! - [`relay`]: forwarding of packets and of keyframe requests
//! - [`remote`]: tracks of other nodes, and tracks for other nodes
//! - [`member`]: one connection; offers and answers
//! - [`rewriter`]: rewrites the numbers of a track, so that a receiver sees one stream across layers
//! - [`track`]: a published track, its layers and their bit rates
//! - [`allocate`]: choice of the layer of each video within a member's bandwidth estimate
//! - [`floor`]: active speaker
//! - [`data`]: data channels on the same connection as the media
//! - [`mix`]: rooms with mixed audio
//! - [`compose`]: rooms with one composite video
//! - [`report`]: statistics of members
//!
//! Only the SFU requests keyframes from a publisher: one request serves all receivers. The bandwidth of each receiver
//! is estimated separately; the reports of one receiver change nothing for another.

mod allocate;
mod compose;
mod data;
mod floor;
mod incoming;
mod input;
mod lines;
mod member;
mod membership;
mod mix;
mod relay;
mod remote;
mod report;
mod rewriter;
mod source;
mod state;
mod track;

#[cfg(test)]
mod tests;

pub use crate::member_id::MemberId;
pub use allocate::{LayerSwitch, Reason};
pub use membership::Refused;
pub use mix::MIX;
pub use report::{Receives, Report, Sends};
pub use source::{Role, VideoCodecs};
pub use state::{CompositorSender, Event, MixerSender, Send, Switch};
