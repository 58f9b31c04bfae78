//! One WebRTC peer without I/O: ICE, DTLS, SCTP and the data channels of a session. Also how a gateway forwards the
//! messages of its peers ([`forward`]), the topology of connections in a room ([`room`]), the SFU ([`switch`]), and a
//! relay for participants that cannot connect directly ([`turn`]).
//!
//! No sockets, no clock, no threads: datagrams and the time are inputs. A panic in the WebRTC library ends one [`Peer`]
//! and nothing else.
//!
//! Read first: [`Peer`], [`Lane`], [`ufrag`] (finds the peer for a datagram from an unknown address).

mod connection;
mod contain;
mod crypto;
pub mod egress;
pub mod forward;
mod media;
pub mod mixer;
mod peer;
pub mod room;
mod sink;
mod stun;
pub mod switch;
pub mod turn;

pub use connection::{Broken, Candidates};
pub use contain::is_contained;
pub use media::{MediaClient, MediaEvent, MediaOutput};
pub use peer::{BadOffer, Event, Lane, Offer, Output, Outputs, Peer};
pub use sink::Sink;
pub use str0m::media::MediaKind;
pub use stun::ufrag;
