//! Replies and pushes of the server.

use serde_json::{Value, json};

use super::{Subscription, Target};
use crate::Error;

/// Encodes a reply: `{"id", "ok": {..}}` or `{"id", "error": {..}}`.
pub fn encode_reply(id: u64, result: &Result<Value, Error>) -> String {
    match result {
        Ok(ok) => json!({ "id": id, "ok": ok }).to_string(),
        Err(error) => json!({ "id": id, "error": error.to_json() }).to_string(),
    }
}

/// Encodes a reply whose body is already JSON, such as a page of messages.
pub fn encode_reply_raw(id: u64, ok: &[u8]) -> String {
    format!("{{\"id\":{id},\"ok\":{}}}", String::from_utf8_lossy(ok))
}

/// Encodes `{"push": "error", ..}`, the reply to a message without a usable id.
pub fn encode_error_push(error: &Error) -> String {
    let mut push = error.to_json();
    push["push"] = "error".into();
    push.to_string()
}

/// Encodes `{"push": "close", "code", "reason"}`, the last message on a link without close frames. The codes are
/// those of a WebSocket.
pub fn encode_close_push(code: u16, reason: &str) -> String {
    // The fixed prefix lets clients recognize this push without parsing it.
    format!("{{\"push\":\"close\",\"code\":{code},\"reason\":{}}}", Value::from(reason))
}

/// Encodes `{"push": "unsubscribed", "channel", "code", "detail", "retry"}`: the server has ended a subscription.
pub fn encode_unsubscribed_push(target: &Target, error: &Error) -> String {
    let mut push = error.to_json();
    push["push"] = "unsubscribed".into();
    push["channel"] = target.as_str().into();
    push.to_string()
}

/// Encodes `{"push": "refresh", "expires_ms"}`: the session ends after this time unless it sends a new token.
pub fn encode_refresh_push(expires_ms: u64) -> String {
    json!({ "push": "refresh", "expires_ms": expires_ms }).to_string()
}

/// Encodes `{"push": "connected", ..}`, the first message of a session. `expires_ms` is set if the session's token
/// expires, `resumed` if the session presented a resume ticket. `connection`: the id of the connection, unique over all
/// nodes.
pub fn encode_connected(
    connection: &str,
    ping_ms: u64,
    message_bytes_max: usize,
    time_ms: u64,
    expires_ms: Option<u64>,
    resumed: Option<&[Subscription]>,
) -> String {
    let mut push = json!({
        "push": "connected", "connection": connection, "ping_ms": ping_ms, "message_bytes_max": message_bytes_max,
        "time": time_ms,
    });
    if let Some(expires_ms) = expires_ms {
        push["expires_ms"] = expires_ms.into();
    }
    if let Some(resumed) = resumed {
        push["resumed"] = resumed.iter().map(|subscription| subscription.target.as_str()).collect();
    }
    push.to_string()
}
