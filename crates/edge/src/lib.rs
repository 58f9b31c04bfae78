//! The device side of Millrace: cars that drive through a town, recorded drives, and the publisher that brings both to a server.
//!
//! Never links the server: it speaks the wire (`docs/protocol.md`) like any other client.
//! Read first: [`town::Town`].

pub mod backoff;
pub mod chance;
pub mod fleet;
pub mod post;
pub mod record;
pub mod replay;
pub mod subscription;
pub mod town;
pub mod wire;
