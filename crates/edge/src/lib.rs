//! Device side of Millrace: simulated cars in a town, recorded drives, a publisher that sends both to a server, a
//! reader of channels over every transport, and a gateway that forwards between peers.
//!
//! This crate never links the server: it uses the wire protocol (`docs/reference/protocol.md`) like any other client.
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
