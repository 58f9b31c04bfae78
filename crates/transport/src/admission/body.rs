//! Reads request bodies.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::FutureExt;
use http::{HeaderMap, header};
use http_body::Body as _;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use millrace_protocol::{Code, Error};

use super::Admission;

/// Maximum bytes of a refused body that the server still reads.
const DISCARD_BYTES_MAX: usize = 16 << 20;
/// Maximum time that the server still reads a refused body.
const DISCARD: Duration = Duration::from_secs(1);

/// Reads a complete body.
///
/// Errors: [`Code::TooLarge`] as soon as the size is known, [`Code::Timeout`], [`Code::Unavailable`] if too many
/// bytes are queued on this node, [`Code::BadRequest`] if the connection breaks.
pub async fn read_body(
    admission: &Admission,
    headers: &HeaderMap,
    body: &mut Incoming,
    bytes_max: usize,
) -> Result<Bytes, Error> {
    let too_large = || Error::new(Code::TooLarge, format!("the body has more than {bytes_max} bytes"));
    let announced = headers.get(header::CONTENT_LENGTH).and_then(|len| len.to_str().ok()?.parse::<usize>().ok());
    if announced.is_some_and(|len| len > bytes_max) {
        return Err(too_large());
    }
    let broke_off = |_| Error::new(Code::BadRequest, "the connection ended before the end of the body");
    // A small body usually arrives with its head. It is returned without a copy and without waiting.
    let mut first = Bytes::new();
    if let Some(Some(frame)) = body.frame().now_or_never() {
        first = frame.map_err(broke_off)?.into_data().unwrap_or_default();
        if first.len() > bytes_max {
            return Err(too_large());
        }
    }
    if body.is_end_stream() {
        return Ok(first);
    }
    let read = async {
        let mut pending = admission.limits.pend(first.len())?;
        let mut whole = BytesMut::from(first);
        while let Some(frame) = body.frame().await {
            let Ok(data) = frame.map_err(broke_off)?.into_data() else { continue };
            if whole.len() + data.len() > bytes_max {
                return Err(too_large());
            }
            pending.resize(whole.len() + data.len())?;
            whole.extend_from_slice(&data);
        }
        Ok(whole.freeze())
    };
    let late =
        |_| Error::new(Code::Timeout, format!("the body took longer than {:?}", admission.config().body_timeout));
    tokio::time::timeout(admission.config().body_timeout, read).await.map_err(late)?
}

/// Reads and drops the rest of the body of a refused request. Closing the connection with unread bytes would reset
/// it, and the client would not receive the error. A client that sends too much or too slowly is disconnected.
pub async fn discard(headers: &HeaderMap, body: &mut Incoming) {
    let waits = headers.contains_key(header::EXPECT) && headers.contains_key(header::CONTENT_LENGTH);
    // A client with `Expect: 100-continue` sends its body only when the server reads it, so do not read it.
    if waits || body.is_end_stream() {
        return;
    }
    let read = async {
        let mut bytes = 0;
        while let Some(Ok(frame)) = body.frame().await {
            bytes += frame.data_ref().map_or(0, Bytes::len);
            if bytes > DISCARD_BYTES_MAX {
                return;
            }
        }
    };
    let _ = tokio::time::timeout(DISCARD, read).await;
}
