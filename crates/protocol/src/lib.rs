//! What is said on the wire. Bytes in, values out, and back; nothing here opens a socket, reads a clock or keeps state between messages
//! (a [`websocket::Decoder`] keeps the message that has not fully arrived, a thread keeps tables for compressing, nothing else).
//!
//! Read first: [`Publication`], [`Position`], [`Form`].

mod channel;
mod error;
pub mod form;
mod grant;
mod pattern_map;
mod position;
mod publication;
pub mod session;
pub mod ticket;
pub mod websocket;

pub use channel::{ChannelName, NAME_BYTES_MAX, Pattern};
pub use error::{CODES, Code, Error};
pub use form::Form;
pub use grant::{Grant, Right};
pub use pattern_map::PatternMap;
pub use position::{Epoch, Gap, Position, Since};
pub use publication::{
    Holder, JSON_DEPTH_MAX, KEY_BYTES_MAX, Kind, NewPublication, Payload, Publication, PublicationHead,
};
