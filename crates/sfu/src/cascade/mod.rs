//! Cascade: the media of one room on several nodes, without I/O.
//!
//! ```text
//!   node A                                   node B
//!   local tracks ─► Link ── tracks ────────► Link ─► remote tracks
//!   carried layers ◄── wants ◄────────────── union of what B's members watch
//!   packets ─► choice within the estimate ── media ─► B's members
//!              ◄── arrival reports, NACKs, keyframe requests
//! ```
//!
//! - [`packet`]: names of nodes and tracks, one media packet
//! - [`frame`]: the format of one datagram between two nodes, before encryption
//! - [`link`]: the state machine of one link
//! - [`mesh`]: all links of a node; which copy of a participant's track is current
//! - [`tables`]: states that are repeated until the other node acknowledges them
//! - [`sent`], [`arrivals`]: retransmission, duplicates, arrival reports
//! - [`bandwidth`]: bandwidth estimate of a link, and its probes
//! - [`carried`]: choice of the layers that cross a link
//! - [`channel`]: DTLS handshake between two nodes that know each other's fingerprints
//! - [`channels`]: the channels to all nodes on one UDP port
//! - [`seal`]: encryption of frames with the keys of the handshake
//!
//! One hop: a node sends only tracks of its own members. What arrives over a link never leaves over a link, so that no
//! packet can travel in a circle. A track is identified by its node and its handle, never by an SSRC.

mod arrivals;
mod bandwidth;
mod carried;
mod channel;
mod channels;
pub mod frame;
mod link;
mod mesh;
mod packet;
mod seal;
mod sent;
mod tables;

#[cfg(test)]
mod tests;

use std::time::{Duration, Instant};

pub use channel::{Channel, ChannelError, Fingerprint, fingerprint};
pub use channels::{Announcement, ChannelEvent, Channels};
pub use frame::{FrameError, SenderReport, TrackInfo, Want};
pub use link::{Counters, Event, Link, Refused};
pub use mesh::{Mesh, MeshEvent, RemoteId, RemoteTrack, Roster};
pub use packet::{Codec, Handle, LAYERS_MAX, Layers, NODE_BYTES_MAX, NodeId, Packet};
pub use seal::LinkKeys;

/// Number of bytes that encryption adds to a frame.
pub const OVERHEAD_BYTES: usize = 16;
/// A layer that no member wants any more stays wanted for this time: a member that returns to it needs no keyframe.
pub const LINGER: Duration = Duration::from_secs(3);
/// Interval of arrival reports.
pub const REPORT_INTERVAL: Duration = Duration::from_millis(50);
/// Maximum pause between two frames of a link. A link without other frames sends an empty report.
pub const KEEPALIVE: Duration = Duration::from_millis(250);
/// A link is silent after this time without a valid frame, and dead after `DEAD_TIMEOUT`, which is the lease of a node.
pub const SILENT_TIMEOUT: Duration = Duration::from_secs(1);
pub const DEAD_TIMEOUT: Duration = Duration::from_secs(5);
/// A link that offers no track and wants none for this time is closed.
pub const UNUSED_TIMEOUT: Duration = Duration::from_secs(30);
/// Minimum interval between two keyframe requests for one layer over a link, as for publishers.
pub const KEYFRAME_INTERVAL_MIN: Duration = Duration::from_millis(300);
/// Maximum number of audio tracks of one room that cross a link: the loudest. The levels of the others cross it.
pub const LOUDEST_MAX: usize = 8;

/// Returns the number that ends with the 32 bits `low` and is nearest to `near`.
fn extend(near: u64, low: u32) -> u64 {
    let ahead = low.wrapping_sub(near as u32) as i32;
    near.saturating_add_signed(ahead.into())
}

/// Returns the earlier of two optional times.
fn earlier(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    one.into_iter().chain(other).min()
}
