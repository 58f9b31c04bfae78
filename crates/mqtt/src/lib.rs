//! The server side of MQTT 3.1.1 and 5, from bytes to bytes. The hub is the broker; a session adds what MQTT needs per
//! client: packet identifiers, acknowledgements, aliases, subscription identifiers, and positions to resume from.
//!
//! This crate opens no socket, reads no clock and starts no thread. It never queues a publication: after a reconnect,
//! unacknowledged publications are read from history.
//!
//! ```text
//!   bytes of the client ─► Frame ─► Session::handle  ─► Action (publish, subscribe ..)
//!   records of the hub  ─────────► Session::deliver ─► bytes for the client
//! ```
//!
//! Read first: [`Session`], [`Window`], [`Registry`], [`Retained`]. Source: docs/reference/mqtt.md.

pub mod encode;
mod filter;
mod group;
mod packet;
mod reason;
mod registry;
mod retained;
mod saved;
mod session;
mod window;

pub use filter::Filter;
pub use group::{Group, Membership};
pub use packet::{Connect, ConnectError, ConnectWill, Frame, Options, Packet, Publish, Version};
pub use reason::Reason;
pub use registry::{Begun, Registry, RegistryLimits, SessionKey};
pub use retained::Retained;
pub use saved::{Resumed, Saved, SavedSubscription};
pub use session::{ALIAS_MAX, Action, Incoming, RECEIVE_MAX, Scan, Session, Settings, Subscription};
pub use window::{Origin, Sent, State, Window};
