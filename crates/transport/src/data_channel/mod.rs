//! WebRTC data channels: the offer arrives by `POST /v1/connect`, then datagrams arrive on the shard's own port.
//!
//! - this file: answers the offer
//! - [`driver`]: passes received data to the session
//! - [`endpoint`]: a data channel as a connection of the hub
//! - [`peers`]: the peers of a shard, by address and by ICE name
//! - [`lane`]: the send queue of one channel
//!
//! Channel `millrace` is a stream of lines, independent of message boundaries: each line is a command, a reply or a
//! push of the session. Channel `latest` is unreliable: each message is its number followed by whole lines.
//!
//! Source: docs/reference/protocol.md, "Data channels"; docs/adr/0006.

mod driver;
mod endpoint;
mod lane;
mod peers;

use std::{cell::RefCell, time::Instant};

use http::{HeaderValue, StatusCode, header, request::Parts};
use hyper::body::Incoming;
use millrace_protocol::{Code, Error};

pub use driver::Driver;
pub use peers::{PeerId, Peers, SessionCarrier, SessionCarriers};

use crate::{
    admission::{
        Admission,
        access::Caller,
        limits::{ConnectionSlot, ReaderSlot, RequestConnection},
        read_body,
    },
    http::{Query, Response, text},
};

/// Maximum size of an offer, in bytes. A browser with a camera, a microphone and every codec sends about 10 KiB.
const OFFER_BYTES_MAX: usize = 64 * 1024;
const SDP: &str = "application/sdp";

/// State of a connecting client, from its offer until its channel opens.
pub struct AdmittedSession {
    pub caller: Caller,
    pub ticket: Option<String>,
    pub connection_slot: ConnectionSlot,
    pub reader_slot: Option<ReaderSlot>,
}

/// Answers an offer. The new peer must open its channel before a timeout.
///
/// Errors: `not_found` if data channels are disabled, `bad_request`, `too_large`, `too_many`, `unavailable` if there
/// are too many peers, and the other errors of a connection.
pub async fn answer(
    peers: Option<&RefCell<Peers>>,
    admission: &Admission,
    parts: &Parts,
    body: &mut Incoming,
    caller: Caller,
) -> Result<Response, Error> {
    Query::parse(parts, &[])?;
    let kind = parts.headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    if !kind.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case(SDP) {
        let detail =
            "POST expects an offer for data channels with `Content-Type: application/sdp`; a WebSocket uses GET";
        return Err(Error::new(Code::BadRequest, detail));
    }
    let Some(peers) = peers else {
        let detail = "data channels are disabled on this server; `rtc.listen` enables them";
        return Err(Error::new(Code::NotFound, detail));
    };
    if peers.borrow().is_full() {
        return Err(Error::new(Code::Unavailable, "this server has its maximum number of peers; try again later"));
    }
    let connection = parts.extensions.get::<std::sync::Arc<RequestConnection>>();
    let Some(address) = connection.map(|connection| connection.address) else {
        return Err(Error::new(Code::BadRequest, "the address of the request is not known"));
    };
    let connection_slot = admission.limits.connect(address)?;
    let reader_slot = admission.admit(parts, &caller)?;
    let ticket = parts.headers.get("millrace-resume").and_then(|ticket| ticket.to_str().ok()).map(str::to_owned);
    let offer = read_body(admission, &parts.headers, body, OFFER_BYTES_MAX).await?;
    let offer = std::str::from_utf8(&offer).map_err(|_| Error::new(Code::BadRequest, "the offer is not UTF-8"))?;
    let admitted = AdmittedSession { caller, ticket, connection_slot, reader_slot };
    let answer = peers.borrow_mut().answer(offer, admitted, Instant::now())?;
    let mut response = text(StatusCode::CREATED, SDP, answer);
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}
