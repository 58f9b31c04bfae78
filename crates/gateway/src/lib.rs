//! Gateway: a native peer that forwards messages between the data channels of its peers. A peer joins with an offer
//! over HTTP and names the receiver of its messages. Also a gateway between a kit on a serial device and its channels,
//! and a gateway that stores the messages of devices until a server has accepted them.
//!
//! This crate never links the server.
//!
//! Read first: [`Gateway`], [`Config`], [`forward::Forwarder`]; for a kit [`kit::operate`] and [`kit::Channels`]; for
//! store and forward [`store_and_forward::StoreAndForward`].
//!
//! - [`forward`]: which message goes to which peer, and bundles; without I/O and without a clock
//! - `gateway.rs`: one task per peer, each with its own socket, and one task for the windows of the bundles
//! - [`kit`]: a serial device, the channels of its kit, and the driver between both (`millrace-earl`)
//! - [`store_and_forward`]: local publishers, a buffer on disk (`millrace-buffer`), requests to the server
//! - `http.rs`: offers, answers and statistics
//!
//! Source: docs/reference/gateway.md.

pub mod forward;
mod gateway;
mod http;
pub mod kit;
pub mod store_and_forward;

pub use gateway::{Config, Gateway};
