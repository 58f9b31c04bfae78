use std::time::Duration;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use http::{HeaderMap, HeaderValue, Method, StatusCode, Version, header, request::Parts};
use millrace_protocol::{
    Code, Encoding, Error, Since,
    session::{Policy, SUBPROTOCOL},
    websocket::Deflate,
};
use sha1::{Digest, Sha1};

use crate::{
    admission::{access::Caller, limits::ReaderSlot},
    http::{Body, Query, ReadRequest, Response, has_token, is_upgrade, offered},
};

/// Source: RFC 6455, section 1.3.
const GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// Prefix of a resume ticket in `Sec-WebSocket-Protocol`.
const RESUME: &str = "resume.";
/// Subprotocol for bare payloads. A browser that sends its token in this header accepts only a response that selects
/// one of the offered subprotocols.
const BARE: &str = "millrace.bare";
/// Subprotocol for bare payloads behind one message with the position of the subscription. A client that counts the
/// messages after it knows where to resume.
const BARE_WITH_POSITION: &str = "millrace.bare+position";

/// State of a connection after its `101` response.
#[derive(Debug)]
pub struct Upgrade {
    pub caller: Caller,
    /// Slot of the reader in the quota of its subject; `None` until it is reserved.
    pub reader_slot: Option<ReaderSlot>,
    /// Initial subscription, if any.
    pub request: Option<ReadRequest>,
    pub session: bool,
    /// True if a bare WebSocket begins with the position of its subscription.
    pub position: bool,
    /// Resume ticket that the session received from its previous server.
    pub ticket: Option<String>,
    /// Heartbeat interval that the client has requested, if any.
    pub heartbeat: Option<Duration>,
    /// Negotiated compression, if any.
    pub deflate: Option<Deflate>,
}

impl Upgrade {
    pub fn encoding(&self) -> Encoding {
        match (self.session, self.deflate) {
            (false, None) => Encoding::Bare,
            (true, None) => Encoding::Session,
            (false, Some(deflate)) => Encoding::BareDeflate(deflate),
            (true, Some(deflate)) => Encoding::SessionDeflate(deflate),
        }
    }
}

/// Accepts a WebSocket on the URL of a channel: bare payloads, or a session that already reads this channel.
/// `compression`: allow it for clients that offer it.
///
/// Errors: `bad_request`, with the error in the handshake.
pub fn accept_channel(
    parts: &Parts,
    caller: Caller,
    request: ReadRequest,
    compression: bool,
) -> Result<(Response, Upgrade), Error> {
    if request.wait.is_some() {
        return Err(Error::new(Code::BadRequest, "`wait` applies only to polling"));
    }
    if request.until.is_some() {
        return Err(Error::new(
            Code::BadRequest,
            "`until` does not apply to a WebSocket; use the command `history` of a session",
        ));
    }
    if request.is_state_page {
        return Err(Error::new(Code::BadRequest, "`state` is for polling; on a WebSocket, use `since=state`"));
    }
    let subprotocol = [SUBPROTOCOL, BARE_WITH_POSITION, BARE].into_iter().find(|name| offers(&parts.headers, name));
    if subprotocol.is_none() && parts.headers.contains_key(header::SEC_WEBSOCKET_PROTOCOL) {
        let detail = format!(
            "offer the subprotocol `{SUBPROTOCOL}`, or for bare payloads `{BARE_WITH_POSITION}`, `{BARE}` or none"
        );
        return Err(Error::new(Code::BadRequest, detail));
    }
    if subprotocol != Some(SUBPROTOCOL) && request.channels.iter().any(|(_, since)| since.is_some_and(Since::is_state))
    {
        let detail = "a bare WebSocket carries no keys, so it cannot read a state; offer the subprotocol of a session";
        return Err(Error::new(Code::BadRequest, format!("{detail}, `{SUBPROTOCOL}`")));
    }
    let position = subprotocol == Some(BARE_WITH_POSITION);
    if position && request.policy == Policy::Latest {
        let detail = "`policy=latest` leaves out messages, so a client cannot count them";
        return Err(Error::new(
            Code::BadRequest,
            format!("{detail}; offer `{SUBPROTOCOL}`, whose messages have positions"),
        ));
    }
    let (session, heartbeat) = (subprotocol == Some(SUBPROTOCOL), request.heartbeat);
    let request = Some(request);
    let upgrade =
        Upgrade { caller, reader_slot: None, request, session, position, ticket: None, heartbeat, deflate: None };
    accept(parts, upgrade, subprotocol, compression)
}

/// Accepts a session on `/v1/connect`. The client offers a resume ticket beside the subprotocol. It is in a header
/// because proxies log URLs, and in this header because a browser can set no other.
///
/// Errors: `bad_request`, with the error in the handshake.
pub fn accept_session(parts: &Parts, caller: Caller, compression: bool) -> Result<(Response, Upgrade), Error> {
    let heartbeat = Query::parse(parts, &["heartbeat"])?.duration("heartbeat")?;
    if !offers(&parts.headers, SUBPROTOCOL) {
        let detail = format!("this URL is for WebSocket with `Sec-WebSocket-Protocol: {SUBPROTOCOL}`");
        return Err(Error::new(Code::BadRequest, detail));
    }
    let ticket = offered(&parts.headers).find_map(|item| item.strip_prefix(RESUME)).map(str::to_owned);
    let upgrade = Upgrade {
        caller,
        reader_slot: None,
        request: None,
        session: true,
        position: false,
        ticket,
        heartbeat,
        deflate: None,
    };
    accept(parts, upgrade, Some(SUBPROTOCOL), compression)
}

/// Accepts a WebSocket of this protocol.
fn accept(
    parts: &Parts,
    mut upgrade: Upgrade,
    subprotocol: Option<&'static str>,
    compression: bool,
) -> Result<(Response, Upgrade), Error> {
    let mut response = handshake(parts)?;
    let answer = response.headers_mut();
    if let Some(subprotocol) = subprotocol {
        answer.insert(header::SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(subprotocol));
    }
    let agreed = if compression { agree(&parts.headers) } else { None };
    upgrade.deflate = agreed.map(|(deflate, value)| {
        answer.insert(header::SEC_WEBSOCKET_EXTENSIONS, value);
        deflate
    });
    Ok((response, upgrade))
}

/// Accepts a WebSocket of another protocol.
///
/// Errors: `bad_request`, with the error in the handshake.
pub fn accept_other(parts: &Parts, subprotocol: &'static str) -> Result<Response, Error> {
    let mut response = handshake(parts)?;
    response.headers_mut().insert(header::SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(subprotocol));
    Ok(response)
}

/// Checks the handshake and creates the `101` response. Source: RFC 6455, section 4.2.
fn handshake(parts: &Parts) -> Result<Response, Error> {
    let bad = |detail: &str| Err(Error::new(Code::BadRequest, detail));
    let headers = &parts.headers;
    if parts.method != Method::GET || parts.version != Version::HTTP_11 || !is_upgrade(parts) {
        return bad("a WebSocket starts with GET, HTTP/1.1 and `Upgrade: websocket`");
    }
    if !has_token(headers, header::CONNECTION, "upgrade") {
        return bad("`Connection: Upgrade` is missing");
    }
    if headers.get(header::SEC_WEBSOCKET_VERSION).map(HeaderValue::as_bytes) != Some(b"13") {
        return bad("`Sec-WebSocket-Version` is 13");
    }
    let key = headers.get(header::SEC_WEBSOCKET_KEY).map(HeaderValue::as_bytes).unwrap_or_default();
    if BASE64_STANDARD.decode(key).map(|key| key.len()) != Ok(16) {
        return bad("`Sec-WebSocket-Key` is 16 bytes in base64");
    }
    let mut response = http::Response::new(Body::Whole(None));
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let answer = response.headers_mut();
    answer.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    answer.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    let accept = BASE64_STANDARD.encode(Sha1::new().chain_update(key).chain_update(GUID).finalize());
    if let Ok(value) = HeaderValue::from_str(&accept) {
        answer.insert(header::SEC_WEBSOCKET_ACCEPT, value);
    }
    Ok(response)
}

/// Returns the first offer of the client that the server supports. Several headers form one list.
fn agree(headers: &HeaderMap) -> Option<(Deflate, HeaderValue)> {
    let values = headers.get_all(header::SEC_WEBSOCKET_EXTENSIONS).into_iter();
    let (deflate, answer) = values.filter_map(|value| value.to_str().ok()).find_map(Deflate::negotiate)?;
    Some((deflate, HeaderValue::try_from(answer).ok()?))
}

fn offers(headers: &HeaderMap, subprotocol: &str) -> bool {
    has_token(headers, header::SEC_WEBSOCKET_PROTOCOL, subprotocol)
}

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_protocol::Grant;

    fn request(change: impl Fn(&mut HeaderMap)) -> Parts {
        let mut parts = http::Request::builder()
            .header("connection", "keep-alive, Upgrade")
            .header("upgrade", "WebSocket")
            .header("sec-websocket-version", "13")
            .header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==")
            .header("sec-websocket-protocol", SUBPROTOCOL)
            .uri("/v1/connect")
            .body(())
            .unwrap()
            .into_parts()
            .0;
        change(&mut parts.headers);
        parts
    }

    fn somebody() -> Caller {
        Caller { grant: Grant::everything().into(), holder: Default::default(), anonymous: true }
    }

    #[test]
    fn rfc_handshake_sample_is_answered() {
        let (response, upgrade) = accept_session(&request(|_| {}), somebody(), false).unwrap();
        assert_eq!(response.headers()[header::SEC_WEBSOCKET_ACCEPT], "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
        assert!(upgrade.session && upgrade.request.is_none() && upgrade.ticket.is_none());
        let offer = HeaderValue::from_static("millrace.v1+json, resume.a-ticket_1");
        let request = request(|headers| drop(headers.insert(header::SEC_WEBSOCKET_PROTOCOL, offer.clone())));
        let (response, upgrade) = accept_session(&request, somebody(), false).unwrap();
        assert_eq!(response.headers()[header::SEC_WEBSOCKET_PROTOCOL], SUBPROTOCOL);
        assert_eq!(upgrade.ticket.as_deref(), Some("a-ticket_1"));
    }

    #[test]
    fn invalid_handshake_is_refused_with_reason() {
        for name in ["connection", "sec-websocket-version", "sec-websocket-key", "sec-websocket-protocol"] {
            let error =
                accept_session(&request(|headers| drop(headers.remove(name))), somebody(), false).err().expect(name);
            assert_eq!(error.code, Code::BadRequest, "{name}");
        }
    }

    #[test]
    fn compression_is_negotiated_only_if_enabled() {
        let offering = request(|headers| {
            headers.append(header::SEC_WEBSOCKET_EXTENSIONS, HeaderValue::from_static("x-other"));
            let offer = "permessage-deflate; client_max_window_bits; server_max_window_bits=12";
            headers.append(header::SEC_WEBSOCKET_EXTENSIONS, HeaderValue::from_static(offer));
        });
        let (response, upgrade) = accept_session(&offering, somebody(), true).unwrap();
        assert_eq!(
            response.headers()[header::SEC_WEBSOCKET_EXTENSIONS],
            "permessage-deflate; server_no_context_takeover; client_no_context_takeover; server_max_window_bits=12"
        );
        assert!(matches!(upgrade.encoding(), Encoding::SessionDeflate(_)));
        for (parts, compression) in [(offering, false), (request(|_| {}), true)] {
            let (response, upgrade) = accept_session(&parts, somebody(), compression).unwrap();
            assert!(!response.headers().contains_key(header::SEC_WEBSOCKET_EXTENSIONS));
            assert_eq!(upgrade.encoding(), Encoding::Session);
        }
    }
}
