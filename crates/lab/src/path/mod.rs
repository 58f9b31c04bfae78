//! Emulated links between programs: the cells of `millrace-link` between two network namespaces.
//!
//! A [`TunCable`] connects the two namespaces of [`namespace::across`](crate::wire::namespace::across) in place of a
//! veth pair. One thread reads the packets of both TUN devices and lets them pass the link ([`emulator`]). It needs
//! root and `/dev/net/tun`. A [`gateway`] connects two links in a row.

pub mod activity;
pub mod behind;
pub mod cable;
pub mod check;
mod congestion;
pub mod emulator;
mod ethernet;
pub mod gateway;
pub mod heads;
pub mod knobs;
pub mod live;
pub mod packet;
pub mod packet_forwarder;
pub mod pcapng;
mod settings;
mod stamped;

pub use cable::TunCable;
pub use congestion::congestion_control;
pub use emulator::{Emulator, Report};
pub use packet::IpPacket;
pub use settings::PathSettings;
