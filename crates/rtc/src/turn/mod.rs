//! A TURN and STUN server as bytes in, bytes out: who may have a relay, for how long, and to whom it speaks.
//!
//! - [`message`]: STUN as it is on the wire
//! - [`credentials`]: names and passwords that are good for a while
//! - [`nonce`]: what makes a signed request good only here and now, without a table
//! - [`policy`]: which addresses are out in the internet
//! - [`allocation`]: what one client has, and what one user has of all
//! - [`server`]: all of it together; [`requests`]: what a client that has shown who it is may ask for; [`refusal`]: why not
//!
//! Sockets are somebody else's: [`Relays`] opens them, [`Server::poll_closed`] names those that are over. The time is an input, in milliseconds
//! since 1970 of a clock that does not go back. So is chance: the seed of [`Server::new`].
//!
//! Not done: relays over TCP (RFC 6062), both families in one allocation, DONT-FRAGMENT, ICMP errors, mobility, HMAC-SHA256.
//!
//! Source: RFC 8656 (TURN), RFC 8489 (STUN); docs/adr/0007.

mod allocation;
mod credentials;
mod message;
mod nonce;
mod policy;
mod refusal;
mod requests;
mod server;
#[cfg(test)]
mod tests;

pub use allocation::{Client, Figures, NoRelay, RelayId, Relays, Rules};
pub use credentials::{Credentials, Login, REALM_BYTES_MAX};
pub use message::HEAD_BYTES;
pub use policy::{is_public, is_unicast};
pub use server::{PAYLOAD_BYTES_MAX, Server, Step};

/// How long the message is that a stream goes on with, padding included. `None`: what comes is none.
///
/// Source: RFC 8489, section 6.2.2; RFC 8656, section 12.5.
pub fn framed_bytes(head: [u8; 4]) -> Option<usize> {
    let length = usize::from(u16::from_be_bytes([head[2], head[3]]));
    match head[0] {
        0..=0x3f if length % 4 == 0 => Some(HEAD_BYTES + length),
        0x40..=0x7f => Some(4 + length.next_multiple_of(4)),
        _ => None,
    }
}
