//! Selective forwarding unit (SFU) without I/O: forwards media between the members of a room, and mixes audio.
//!
//! - [`switch`]: rooms and members; which packets go to which member, and which layer of a video
//! - [`congestion`]: congestion control: the target rate of a sender, from the reports of its receiver
//! - [`egress`]: outgoing media packets of one member: RTP, SRTP, retransmission, probing
//! - [`cascade`]: links to other nodes, for rooms on several nodes
//! - [`rtcp`]: reports: parser and writer
//! - [`mixer`]: decodes the audio of a room, and encodes one mix for each listener
//! - [`compositor`]: decodes the videos of a room, and encodes one video of all participants
//! - [`MediaClient`], [`Sink`]: the client's end, for load generators and tests
//!
//! No sockets, no clock, no threads: datagrams and the time are inputs. `egress`, `cascade`, `mixer` and `compositor`
//! know nothing of `switch`, and `congestion` and `rtcp` know nothing of the others.
//!
//! Read first: [`switch::Switch`], [`egress::Egress`], [`mixer::Mixer`].

pub mod cascade;
mod client;
pub mod compositor;
pub mod congestion;
pub mod egress;
mod loudness;
mod member_id;
pub mod mixer;
pub mod rtcp;
pub mod switch;

pub use client::{MediaClient, MediaEvent, MediaOutput, Sink};
pub use member_id::MemberId;
pub use str0m::media::MediaKind;
