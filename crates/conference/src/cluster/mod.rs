//! Rooms over several nodes that share an engine. One node owns each room and runs its state machine; the others
//! forward requests to it. Media cross one link per pair of nodes.
//!
//! ```text
//!   participant ── HTTP ──► node A ── request ──► owner B: Room        lease of B in the engine
//!        │                    ▲  ◄── update ──────┘   │                (compare-and-set)
//!        └── media ──► SFU A ─┴─ link ─► SFU B        └── update ──► all nodes of the room
//! ```
//!
//! - [`state`]: what a shard knows of its rooms over several nodes
//! - [`messages`]: questions and answers between nodes
//! - [`directory`]: addresses of the SFUs of all nodes
//! - [`leases`]: owners of all rooms
//! - [`hosted`]: one room, as this node knows it
//! - [`turn`]: the periodic work: reading states, renewing leases, repeating updates
//! - [`owner`]: duties of the owner of a room
//! - [`follower`]: how a node follows the owner of a room
//! - [`answers`]: answers to the questions of other nodes
//! - [`route`]: requests of participants, to the owner of their room
//!
//! A node without an engine that others share has no [`Cluster`]; each of its rooms is its own.

mod answers;
mod directory;
mod follower;
mod hosted;
mod leases;
mod messages;
mod owner;
mod route;
mod state;
mod turn;

pub use answers::answer_question;
pub(crate) use messages::Outline;
pub(crate) use route::{route, signal_switch};
pub(crate) use state::Cluster;
pub use turn::run;
