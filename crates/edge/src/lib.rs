//! The device side of Millrace: cars that drive through a town, recorded drives, a publisher that brings both to a server, a
//! reader of channels over every transport, and a gateway that forwards between peers.
//!
//! Never links the server: it speaks the wire (`docs/protocol.md`) like any other client.
//! Read first: [`fleet::Fleet`], [`post::Publisher`], [`subscription::read`].

pub mod backoff;
pub mod chance;
pub mod data_channel;
pub mod fleet;
pub mod gateway;
pub mod post;
pub mod record;
pub mod replay;
pub mod rule;
pub mod subscription;
pub mod tls;
pub mod town;
pub mod wire;
