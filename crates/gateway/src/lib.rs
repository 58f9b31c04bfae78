//! Gateway: a native peer that forwards messages between the data channels of its peers. A peer joins with an offer
//! over HTTP and names the receiver of its messages.
//!
//! This crate never links the server, and it never decides how a message is forwarded: [`millrace_rtc::forward`]
//! decides.
//! Read first: [`Gateway`], [`Config`].
//!
//! - `gateway.rs`: one task per peer, each with its own socket, and one task for the windows of the bundles
//! - `http.rs`: offers, answers and statistics
//!
//! Source: docs/reference/gateway.md.

mod gateway;
mod http;

pub use gateway::{Config, Gateway};
