//! Transports that read a channel and end with their connection. Each is a file or folder; long polling and polling,
//! whose requests are answered once, are in [`crate::polling`].

pub mod mqtt;
pub mod replay;
pub mod sse;
pub mod stream;
pub mod websocket;
