//! HTTP messages: parsing of requests and encoding of responses. This module knows no channel and no connection.

mod answer;
mod endpoint;
mod read_request;
mod upgrade;
mod wire;

pub use answer::{Body, Response, problem, text};
pub use answer::{HEARTBEAT, json, no_cache, no_content, position_header};
pub(crate) use endpoint::{CHANNEL, CONNECT, MQTT, PRESENCE, PUBLISH, RPC, STREAM};
pub use endpoint::{ENDPOINTS, Endpoint, method_not_allowed};
pub use read_request::{Query, ReadRequest, ResponseFormat};
pub(crate) use upgrade::{has_token, is_upgrade, offered};
pub(crate) use wire::{SimpleRequest, encode_answer, encode_head, is_read};
