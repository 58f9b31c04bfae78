//! Tail of a publication: the part that its publisher supplies, in the format that brokers store. Numbers are
//! big-endian.
//!
//! ```text
//! tail  kind (1), 0 or 1 + length of the key (2), key, length of the payload (4), payload
//! kind  1: JSON, 2: text, 3: binary, 4: JSON or text
//! ```

use bytes::{Buf, BufMut, Bytes};
use millrace_protocol::Kind;

/// Bytes of a tail without its key and payload.
pub(crate) const TAIL_BYTES: usize = 1 + 2 + 4;

/// Encodes a tail. `NewPublication::check` and `limits.message_bytes_max` keep keys and payloads far below the maximum
/// of the length fields.
pub(crate) fn encode_tail(out: &mut impl BufMut, kind: Kind, key: Option<&str>, data: &[u8]) {
    out.put_u8(match kind {
        Kind::Json => 1,
        Kind::Text => 2,
        Kind::Binary => 3,
        Kind::Utf8 => 4,
    });
    out.put_u16(key.map_or(0, |key| key.len() + 1) as u16);
    out.put_slice(key.unwrap_or_default().as_bytes());
    out.put_u32(data.len() as u32);
    out.put_slice(data);
}

/// Decodes the next tail. Returns `None` if it is malformed.
pub(crate) fn decode_tail(bytes: &mut Bytes) -> Option<(Kind, Option<Box<str>>, Bytes)> {
    let kind = match bytes.try_get_u8().ok()? {
        1 => Kind::Json,
        2 => Kind::Text,
        3 => Kind::Binary,
        4 => Kind::Utf8,
        _ => return None,
    };
    let key = match bytes.try_get_u16().ok()?.checked_sub(1) {
        Some(length) => Some(take_text(bytes, length.into())?),
        None => None,
    };
    let length = bytes.try_get_u32().ok()? as usize;
    Some((kind, key, take(bytes, length)?))
}

pub(crate) fn take_text(bytes: &mut Bytes, length: usize) -> Option<Box<str>> {
    Some(std::str::from_utf8(&take(bytes, length)?).ok()?.into())
}

fn take(bytes: &mut Bytes, length: usize) -> Option<Bytes> {
    (bytes.len() >= length).then(|| bytes.split_to(length))
}
