//! One WebRTC peer, as bytes in and bytes out: ICE, DTLS, SCTP and the data channels of a session. Beside it what a gateway does with
//! the messages of its peers ([`forward`]), who is connected with whom in a room ([`room`]), and a relay for those who cannot reach each
//! other ([`turn`]).
//!
//! No sockets, no clock, no threads: datagrams and the time are inputs. What the library below panics about ends one [`Peer`] and
//! nothing else.
//!
//! Read first: [`Peer`], [`Lane`], [`ufrag`] (which peer a stranger's datagram is for).

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
