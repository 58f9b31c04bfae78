//! Binary format of publications in Redis, stored and sent. Numbers are big-endian.
//!
//! ```text
//! message      version (1 byte, 1), length of the channel's name (1), name, publications
//! publication  version (1 byte, 1), epoch (4), offset (8), time_ms (8), expires_ms or 0 (8), its tail
//! ```
//!
//! The server (`library.lua`) writes the head of a publication. The node writes the tail.

use bytes::{Buf, Bytes};
use millrace_protocol::{ChannelName, Epoch, NewPublication, Publication, PublicationHead};

use crate::remote::{TAIL_BYTES, Tail, decode_tail, encode_tail, take_text};

const VERSION: u8 = 1;

/// Encodes the tail: the part of a publication that its publisher supplies.
pub fn tail(new: &NewPublication) -> Vec<u8> {
    let mut tail = Vec::with_capacity(TAIL_BYTES + new.cost_bytes());
    encode_tail(&mut tail, new.kind, new.is_deletion, new.key.as_deref(), &new.data, new.trailer());
    tail
}

/// Decodes a message into its channel and publications. Returns `None` if the message is malformed.
pub fn message(mut bytes: Bytes) -> Option<(ChannelName, Vec<(Epoch, Publication)>)> {
    if bytes.try_get_u8().ok()? != VERSION {
        return None;
    }
    let length = bytes.try_get_u8().ok()?.into();
    let channel = ChannelName::parse(&take_text(&mut bytes, length)?).ok()?;
    let mut publications = Vec::new();
    while !bytes.is_empty() {
        publications.push(publication(&mut bytes)?);
    }
    Some((channel, publications))
}

/// Decodes the next publication of `bytes`. Returns `None` if it is malformed.
pub fn publication(bytes: &mut Bytes) -> Option<(Epoch, Publication)> {
    if bytes.try_get_u8().ok()? != VERSION {
        return None;
    }
    let epoch = Epoch(bytes.try_get_u32().ok()?);
    let offset = bytes.try_get_u64().ok()?;
    let time_ms = bytes.try_get_u64().ok()?;
    let expires_ms = Some(bytes.try_get_u64().ok()?).filter(|at| *at > 0);
    let Tail { kind, is_deletion, key, data, trailer } = decode_tail(bytes)?;
    let head = PublicationHead { offset, time_ms, key, expires_ms, kind, is_traced: false, is_deletion };
    (offset > 0).then(|| (epoch, Publication::with_trailer(head, &data, &trailer)))
}

/// Decodes a stored entry, which contains exactly one publication.
pub fn entry(bytes: Bytes) -> Option<Publication> {
    let mut bytes = bytes;
    let (_, publication) = publication(&mut bytes)?;
    bytes.is_empty().then_some(publication)
}

#[cfg(test)]
mod tests {
    use millrace_protocol::{Attributes, Kind, TraceContext};

    use super::*;

    fn encoded(new: &NewPublication) -> Vec<u8> {
        let mut entry = vec![VERSION];
        entry.extend_from_slice(&7u32.to_be_bytes());
        for number in [3u64, 1_700_000_000_123, 0] {
            entry.extend_from_slice(&number.to_be_bytes());
        }
        entry.extend(tail(new));
        entry
    }

    fn attributes() -> Attributes<'static> {
        Attributes { qos: 1, is_retained: true, publisher: 7, properties: b"\x01\x01" }
    }

    fn trace() -> TraceContext {
        TraceContext { trace_id: [1; 16], span_id: [2; 8], flags: 3 }
    }

    fn new(key: Option<&str>, kind: Kind, data: &[u8]) -> NewPublication {
        NewPublication { key: key.map(Into::into), ..NewPublication::new(kind, Bytes::copy_from_slice(data)) }
    }

    #[test]
    fn stored_record_round_trips() {
        let all = [
            new(None, Kind::Json, b"{}"),
            new(Some(""), Kind::Text, b""),
            new(Some(&"k".repeat(255)), Kind::Binary, &[0, 255, 10, 13]),
            NewPublication::deletion("gone".into()),
            new(Some("k"), Kind::Text, b"traced").traced(Some(trace())),
            NewPublication::deletion("gone".into()).traced(Some(trace())),
            new(Some("k"), Kind::Utf8, b"mqtt").with_attributes(attributes()),
            new(None, Kind::Utf8, b"mqtt").with_attributes(attributes()).traced(Some(trace())),
        ];
        let mut bytes = vec![VERSION, 3];
        bytes.extend_from_slice(b"a/b");
        all.iter().for_each(|new| bytes.extend(encoded(new)));
        let (channel, publications) = message(bytes.into()).unwrap();
        assert_eq!(channel.as_str(), "a/b");
        for ((epoch, publication), new) in publications.into_iter().zip(&all) {
            assert_eq!((epoch, publication.offset, publication.time_ms), (Epoch(7), 3, 1_700_000_000_123));
            assert_eq!((publication.key.as_ref(), publication.kind), (new.key.as_ref(), new.kind));
            assert_eq!((publication.expires_ms, publication.data()), (None, &new.data[..]));
            assert_eq!((publication.is_deletion, publication.trace()), (new.is_deletion, new.trace()));
            assert_eq!(publication.attributes(), new.attributes());
        }
    }

    #[test]
    fn invalid_bytes_are_refused() {
        let whole = encoded(&new(Some("key"), Kind::Json, b"{}"));
        for length in 0..whole.len() {
            assert!(entry(Bytes::copy_from_slice(&whole[..length])).is_none(), "{length} bytes");
        }
        assert!(entry(whole.clone().into()).is_some());
        assert!(entry([whole.as_slice(), b"x"].concat().into()).is_none());
        for (at, bad) in [(0, 2), (29, 9), (29, 0)] {
            let mut other = whole.clone();
            other[at] = bad;
            assert!(entry(other.into()).is_none());
        }
        let deletion = encoded(&NewPublication::deletion("key".into()));
        let with_payload = [&deletion[..deletion.len() - 4], &[0, 0, 0, 1, b'x']].concat();
        assert!(entry(with_payload.into()).is_none(), "a deletion with a payload");
        let traced = encoded(&new(Some("key"), Kind::Json, b"{}").traced(Some(trace())));
        for length in 0..traced.len() {
            assert!(entry(Bytes::copy_from_slice(&traced[..length])).is_none(), "{length} bytes with a context");
        }
        let mut enormous = whole;
        let at = enormous.len() - 6;
        enormous[at..at + 4].copy_from_slice(&u32::MAX.to_be_bytes());
        assert!(entry(enormous.into()).is_none());
        for bad in [&b""[..], b"\x01", b"\x01\x05a/b", b"\x01\x03a b", b"\x02\x03a/b"] {
            assert!(message(Bytes::copy_from_slice(bad)).is_none(), "{bad:?}");
        }
    }
}
