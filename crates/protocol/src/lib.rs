//! Wire protocol: decodes bytes into values and encodes values into bytes. This crate opens no socket, reads no
//! clock and keeps no state between messages. There are two exceptions: a [`websocket::Decoder`] keeps an
//! incomplete message, and each thread keeps its compression tables.
//!
//! Read first: [`Publication`], [`Position`], [`Encoding`].

mod channel;
pub mod encoding;
mod error;
mod grant;
mod list_entry;
mod pattern_map;
mod position;
mod publication;
mod rpc;
pub mod session;
pub mod ticket;
mod trace;
mod trailer;
mod transport;
pub mod websocket;

pub use channel::{
    ChannelName, INTERNAL, LOCAL, NAME_BYTES_MAX, Pattern, ROSTER_NAME_BYTES_MAX, is_internal, is_local, is_reserved,
    is_room_state, roster_of,
};
pub use encoding::Encoding;
pub use error::{CODES, Code, Error};
pub use grant::{Grant, Permission};
pub use list_entry::ListEntry;
pub use pattern_map::PatternMap;
pub use position::{Epoch, Gap, Position, Since};
pub use publication::{
    Expected, Holder, JSON_DEPTH_MAX, KEY_BYTES_MAX, Kind, NewPublication, Payload, Publication, PublicationHead,
};
pub use rpc::RpcCall;
pub use trace::{NoTraceContext, TraceContext};
pub use trailer::{Attributes, PROPERTIES_BYTES_MAX, TRAILER_BYTES_MAX};
pub use transport::{Transport, UnknownTransport};
