//! One WebRTC peer without I/O: ICE, DTLS, SCTP and the data channels of a session.
//!
//! No sockets, no clock, no threads: datagrams and the time are inputs. A panic in the WebRTC library ends one [`Peer`]
//! and nothing else.
//!
//! - [`peer`]: an end of a connection with data channels only
//! - [`channels`]: which data channels a remote peer may open, and their events
//! - [`connection`]: the WebRTC library with its rule of use; `sfu` adds media to it
//! - [`sdp`]: reading of session descriptions
//! - [`crypto`]: cryptography for the library, implemented with ring
//! - [`stun`]: finds the peer for a datagram from an unknown address
//!
//! Read first: [`Peer`], [`Lane`], [`ufrag`].

pub mod channels;
pub mod connection;
mod contain;
pub mod crypto;
mod peer;
pub mod sdp;
mod stun;

pub use channels::{Event, Lane};
pub use connection::{Candidates, ConnectionError};
pub use contain::{contain, is_contained};
pub use peer::{Offer, Output, Outputs, Peer};
pub use sdp::BadOffer;
pub use stun::ufrag;
