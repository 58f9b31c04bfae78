//! Both ends of a video call without I/O, for measurements: no camera, no codec, no browser.
//!
//! ```text
//!   scene ─► source: encoded frames ─► sender: RTP, pacing, repair ─► (a network) ─► receiver: loss, repair, reports
//!               ▲                         ▲    │ heads                                  │ heads    │
//!               └──── target rate ────────┘    └─────────────► recorder ◄───────────────┘          │
//!                                         └───────────────────── RTCP reports ◄────────────────────┘
//! ```
//!
//! - [`scene`]: what the synthetic camera films; [`y4m`] draws it for the fake camera of a browser
//! - [`source`]: an encoder's frames of that scene: sizes, keyframes, rate control
//! - [`packet`]: RTP packets; [`fec`]: forward error correction by XOR
//! - [`Sender`], [`Receiver`]: the two ends of one stream, over real RTP and RTCP bytes
//! - [`Endpoint`]: one participant: a sender, a receiver and both recorders
//! - [`coupled`]: senders that share the sum of their rates
//! - [`recorder`]: heads of packets at one end: bins of one second, one-way delay by sequence number
//!
//! The congestion controller comes from [`millrace_sfu::congestion`]. There is no encryption; the sizes on a link
//! include the tags of SRTP ([`SRTP_TAG_BYTES`]).
//!
//! No sockets, no clock, no threads: datagrams and the time are inputs. The same seed and the same inputs give the same
//! bytes.
//!
//! Read first: [`Endpoint`], [`Sender`], [`Receiver`].

pub mod coupled;
mod endpoint;
pub mod fec;
pub mod packet;
pub mod receiver;
pub mod recorder;
pub mod scene;
pub mod sender;
mod sequence;
pub mod source;
pub mod y4m;

#[cfg(test)]
mod tests;

pub use endpoint::{Endpoint, Second};
pub use receiver::Receiver;
pub use recorder::Recorder;
pub use sender::Sender;
pub use source::{Frame, Source};

/// Bytes that SRTP adds to each media packet (RFC 3711, HMAC-SHA1-80).
pub const SRTP_TAG_BYTES: usize = 10;
/// Bytes that SRTCP adds to each report.
pub const SRTCP_TAG_BYTES: usize = 14;
/// Bytes of the headers of IPv4 and UDP.
pub const IP_UDP_BYTES: usize = 28;
