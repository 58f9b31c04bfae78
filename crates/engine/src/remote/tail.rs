//! Tail of a publication: the part that its publisher supplies, in the format that brokers store. Numbers are
//! big-endian.
//!
//! ```text
//! tail  kind (1), 0 or 1 + length of the key (2), key, length of the payload (4), payload, trace context (25)?,
//!       length of the trailer (2)?, trailer?
//! kind  1: JSON, 2: text, 3: binary, 4: JSON or text, 5: deletion of the key (no payload); + 16: a trailer follows
//! ```
//!
//! The highest bit of the length of the payload says that a trace context follows, which is then the whole trailer. A
//! version without trace contexts or without trailers refuses such a tail.

use bytes::{Buf, BufMut, Bytes};
use millrace_protocol::{Kind, TRAILER_BYTES_MAX, TraceContext};

/// Bytes of a tail without its key, payload and trace context.
pub(crate) const TAIL_BYTES: usize = 1 + 2 + 4;
/// Bit of the length of the payload.
const TRACED: u32 = 1 << 31;
/// Bit of the kind.
const TRAILER: u8 = 1 << 4;
/// Kind of a deletion. `library.lua` uses this number, too.
const DELETION: u8 = 5;

/// The part of a publication that its publisher supplies.
pub(crate) struct Tail {
    pub kind: Kind,
    pub is_deletion: bool,
    pub key: Option<Box<str>>,
    pub data: Bytes,
    pub trailer: Bytes,
}

/// Encodes a tail. `NewPublication::check` and `limits.message_bytes_max` keep keys and payloads far below the maximum
/// of the length fields.
pub(crate) fn encode_tail(
    out: &mut impl BufMut,
    kind: Kind,
    is_deletion: bool,
    key: Option<&str>,
    data: &[u8],
    trailer: &[u8],
) {
    let is_trace = trailer.len() == TraceContext::BYTES && TraceContext::from_bytes(trailer).is_ok();
    let trailer = if trailer.len() > TRAILER_BYTES_MAX { &[] } else { trailer };
    let follows = !trailer.is_empty() && !is_trace;
    let kind = match kind {
        _ if is_deletion => DELETION,
        Kind::Json => 1,
        Kind::Text => 2,
        Kind::Binary => 3,
        Kind::Utf8 => 4,
    };
    out.put_u8(if follows { kind | TRAILER } else { kind });
    out.put_u16(key.map_or(0, |key| key.len() + 1) as u16);
    out.put_slice(key.unwrap_or_default().as_bytes());
    out.put_u32(data.len() as u32 | if is_trace { TRACED } else { 0 });
    out.put_slice(data);
    if follows {
        out.put_u16(trailer.len() as u16);
    }
    out.put_slice(trailer);
}

/// Decodes the next tail. Returns `None` if it is malformed.
pub(crate) fn decode_tail(bytes: &mut Bytes) -> Option<Tail> {
    let kind = bytes.try_get_u8().ok()?;
    let follows = kind & TRAILER != 0;
    let (kind, is_deletion) = match kind & !TRAILER {
        1 => (Kind::Json, false),
        2 => (Kind::Text, false),
        3 => (Kind::Binary, false),
        4 => (Kind::Utf8, false),
        DELETION => (Kind::Text, true),
        _ => return None,
    };
    let key = match bytes.try_get_u16().ok()?.checked_sub(1) {
        Some(length) => Some(take_text(bytes, length.into())?),
        None => None,
    };
    let length = bytes.try_get_u32().ok()?;
    let data = take(bytes, (length & !TRACED) as usize)?;
    let trailer = match (follows, length & TRACED) {
        (false, 0) => Bytes::new(),
        (true, 0) => {
            let length = bytes.try_get_u16().ok()?.into();
            take(bytes, length)?
        }
        _ => take(bytes, TraceContext::BYTES).filter(|trace| TraceContext::from_bytes(trace).is_ok())?,
    };
    let is_valid = !is_deletion || (key.is_some() && data.is_empty());
    is_valid.then_some(Tail { kind, is_deletion, key, data, trailer })
}

pub(crate) fn take_text(bytes: &mut Bytes, length: usize) -> Option<Box<str>> {
    Some(std::str::from_utf8(&take(bytes, length)?).ok()?.into())
}

fn take(bytes: &mut Bytes, length: usize) -> Option<Bytes> {
    (bytes.len() >= length).then(|| bytes.split_to(length))
}
