//! Sans-I/O TURN and STUN server: which clients get a relay, for how long, and with which peers it may exchange
//! data.
//!
//! - [`message`]: wire format of STUN
//! - [`credentials`]: time-limited usernames and passwords
//! - [`nonce`]: nonces that limit a signed request to one client and one hour, without a table
//! - [`policy`]: which addresses are on the public internet
//! - [`allocation`]: state of one client, and usage of one user
//! - [`server`]: the server itself; [`requests`]: requests of authenticated clients; [`request_error`]: error codes
//!
//! The server does not own sockets: [`Relays`] opens them, and [`Server::poll_closed`] returns the ones to
//! close. The time is an input, in milliseconds since 1970, from a clock that does not go backward. Randomness
//! is an input too: the seed of [`Server::new`].
//!
//! Not supported: relays over TCP (RFC 6062), both address families in one allocation, DONT-FRAGMENT, ICMP
//! errors, mobility, HMAC-SHA256.
//!
//! Source: RFC 8656 (TURN), RFC 8489 (STUN); docs/adr/0007.
//!
//! Read first: [`Server`], [`Relays`], [`Credentials`].

mod allocation;
mod counters;
mod credentials;
mod message;
mod nonce;
mod policy;
mod request_error;
mod requests;
mod server;
#[cfg(test)]
mod tests;

pub use allocation::{Client, Limits, Metrics, NoRelay, RelayId, Relays};
pub use counters::{AllocationRow, Counts};
pub use credentials::{Credentials, Login, REALM_BYTES_MAX};
pub use message::HEAD_BYTES;
pub use policy::{is_public, is_unicast};
pub use server::{Action, PAYLOAD_BYTES_MAX, Server};

/// Returns true for a message that concerns an existing allocation: everything but Allocate and Binding requests.
///
/// Source: RFC 8489, section 5; RFC 8656, sections 17 and 12.4.
pub fn needs_allocation(message: &[u8]) -> bool {
    message::Message::parse(message)
        .is_none_or(|message| !matches!(message.method, message::ALLOCATE | message::BINDING))
}

/// Returns the length of the next message of a stream in bytes, padding included. Returns `None` if the bytes
/// do not start a valid message.
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
