use http::{HeaderMap, header, request::Parts};

/// Returns true if the request asks for a WebSocket.
pub fn is_upgrade(parts: &Parts) -> bool {
    has_token(&parts.headers, header::UPGRADE, "websocket")
}

/// Returns the items of `Sec-WebSocket-Protocol`: subprotocols, and the values that a browser can send in no other
/// header.
pub fn offered(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    tokens(headers, header::SEC_WEBSOCKET_PROTOCOL)
}

/// Returns true if a list header has this item, in any case.
pub fn has_token(headers: &HeaderMap, name: header::HeaderName, token: &str) -> bool {
    tokens(headers, name).any(|item| item.eq_ignore_ascii_case(token))
}

fn tokens(headers: &HeaderMap, name: header::HeaderName) -> impl Iterator<Item = &str> {
    let values = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(str::trim)
}
