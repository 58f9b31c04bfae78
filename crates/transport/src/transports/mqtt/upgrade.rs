//! The WebSocket of an MQTT client: its handshake. The client authenticates by CONNECT, not here.

use http::request::Parts;
use millrace_protocol::{Code, Error};

use crate::{
    http::{Response, has_token},
    transports::websocket,
};

/// Subprotocol of MQTT. Source: MQTT 5.0, section 6.
const SUBPROTOCOL: &str = "mqtt";

/// Accepts the WebSocket of an MQTT client.
///
/// Errors: `bad_request`, with the error in the handshake.
pub fn accept(parts: &Parts) -> Result<Response, Error> {
    if !has_token(&parts.headers, http::header::SEC_WEBSOCKET_PROTOCOL, SUBPROTOCOL) {
        let detail = "this URL is for MQTT over WebSocket, with `Sec-WebSocket-Protocol: mqtt`";
        return Err(Error::new(Code::BadRequest, detail));
    }
    websocket::accept_other(parts, SUBPROTOCOL)
}
