//! Content of one message of a stream: a batch of publications of one channel. Numbers are big-endian.
//!
//! ```text
//! message      version (1 byte, 1 or 2), length of the node's name (1), name, number (8), part (2)
//!              offset (8), bytes (8), time_ms (8), in version 2: carried part, publications up to the end
//! carried part previous (8), oldest (8), number (4), so often: offset (8), publication
//! publication  time_ms (8), expires_ms or 0 (8), its tail
//! ```
//!
//! Name, number and part are the token, see `Broker::append`. Offset, bytes and time are the end of the log before the
//! message. Messages of keyed states have version 2, see `state_index`.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use millrace_delivery::Bounds;
use millrace_protocol::{Epoch, NewPublication, Publication, PublicationHead};

use crate::remote::{TAIL_BYTES, Tail, decode_tail, encode_tail, take_text};

const VERSION: u8 = 1;
const CARRYING_VERSION: u8 = 2;
/// Maximum bytes of a message without its publications, and of a publication without its key and payload.
pub const HEAD_BYTES: usize = 2 + 255 + 8 + 2 + 3 * 8 + 8 + 8 + 4;
pub const PUBLICATION_BYTES: usize = 8 + 8 + TAIL_BYTES;
/// Bytes of a carried publication besides those of another one.
pub const CARRIED_BYTES: usize = 8;

/// End of a log, or its end before a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct End {
    pub offset: u64,
    /// Total bytes of payloads and keys of all publications so far. The difference of two ends is the size of the
    /// publications between them.
    pub bytes: u64,
    pub time_ms: u64,
}

/// End of a channel's log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogEnd {
    pub epoch: Epoch,
    /// Sequence of the last message; 0 if there is none.
    pub sequence: u64,
    pub end: End,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    pub node: Box<str>,
    pub number: u64,
    /// Index of the message within its batch.
    pub part: u16,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    pub token: Token,
    pub before: End,
    /// Contains at least one publication.
    pub publications: Vec<Publication>,
    /// Present if the channel is a keyed state.
    pub carried: Option<Carried>,
}

/// Part of a message of a keyed state: it names earlier messages and repeats some of their publications.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Carried {
    /// Sequence of the message before; 0 if there is none.
    pub previous: u64,
    /// Sequence of the oldest message that holds a part of the state; 0 if that is this message.
    pub oldest: u64,
    /// Publications of older messages that are the newest of their key.
    pub entries: Vec<Publication>,
}

impl End {
    fn after(self, publication: &Publication) -> Self {
        Self {
            offset: publication.offset,
            bytes: self.bytes + publication.cost_bytes() as u64,
            time_ms: publication.time_ms,
        }
    }

    /// Returns true if a history that ends here still keeps the publication that starts at `before` and was published
    /// at `time_ms`.
    pub fn holds(&self, before: End, time_ms: u64, now_ms: u64, bounds: &Bounds) -> bool {
        self.offset.saturating_sub(before.offset) <= bounds.count_max as u64
            && self.bytes.saturating_sub(before.bytes) <= bounds.bytes_max as u64
            && now_ms.saturating_sub(time_ms) < bounds.age_max_ms
    }
}

impl Batch {
    /// Assigns offsets and times to the publications.
    pub fn new(token: Token, before: End, new: &[NewPublication], now_ms: u64) -> Self {
        let time_ms = now_ms.max(before.time_ms);
        let place = |(i, new): (usize, &NewPublication)| {
            let head = PublicationHead {
                offset: before.offset + 1 + i as u64,
                time_ms,
                key: new.key.clone(),
                expires_ms: new.ttl_ms.map(|ttl| now_ms.saturating_add(ttl)),
                is_traced: false,
                kind: new.kind,
                is_deletion: new.is_deletion,
            };
            Publication::with_trailer(head, &new.data, new.trailer())
        };
        Self { token, before, publications: new.iter().enumerate().map(place).collect(), carried: None }
    }

    /// Returns each publication with the end of the log before it.
    pub fn steps(&self) -> impl Iterator<Item = (End, &Publication)> {
        self.publications.iter().scan(self.before, |end, publication| {
            let before = std::mem::replace(end, end.after(publication));
            Some((before, publication))
        })
    }

    pub fn end(&self) -> End {
        self.publications.iter().fold(self.before, |end, publication| end.after(publication))
    }

    /// Returns the encoded size of the publications.
    pub fn payload_bytes(&self) -> usize {
        self.publications.iter().map(|p| PUBLICATION_BYTES + p.cost_bytes()).sum()
    }

    pub fn encode(&self) -> Bytes {
        let entries = self.carried.iter().flat_map(|carried| &carried.entries);
        let carried: usize = entries.map(|p| CARRIED_BYTES + PUBLICATION_BYTES + p.cost_bytes()).sum();
        let mut out = BytesMut::with_capacity(HEAD_BYTES + carried + self.payload_bytes());
        out.put_u8(if self.carried.is_some() { CARRYING_VERSION } else { VERSION });
        out.put_u8(self.token.node.len() as u8);
        out.put_slice(self.token.node.as_bytes());
        out.put_u64(self.token.number);
        out.put_u16(self.token.part);
        out.put_u64(self.before.offset);
        out.put_u64(self.before.bytes);
        out.put_u64(self.before.time_ms);
        if let Some(Carried { previous, oldest, entries }) = &self.carried {
            out.put_u64(*previous);
            out.put_u64(*oldest);
            out.put_u32(entries.len() as u32);
            for entry in entries {
                out.put_u64(entry.offset);
                encode_publication(&mut out, entry);
            }
        }
        self.publications.iter().for_each(|publication| encode_publication(&mut out, publication));
        out.freeze()
    }

    /// Decodes a message. Returns `None` if it is malformed.
    pub fn decode(mut bytes: Bytes) -> Option<Self> {
        let bytes = &mut bytes;
        let is_carrying = match bytes.try_get_u8().ok()? {
            VERSION => false,
            CARRYING_VERSION => true,
            _ => return None,
        };
        let length = bytes.try_get_u8().ok()?.into();
        let node = take_text(bytes, length)?;
        let token = Token { node, number: bytes.try_get_u64().ok()?, part: bytes.try_get_u16().ok()? };
        let before = End {
            offset: bytes.try_get_u64().ok()?,
            bytes: bytes.try_get_u64().ok()?,
            time_ms: bytes.try_get_u64().ok()?,
        };
        let carried = if is_carrying { Some(carried(bytes)?) } else { None };
        let mut publications = Vec::new();
        while !bytes.is_empty() {
            let offset = before.offset.checked_add(1 + publications.len() as u64)?;
            publications.push(publication(bytes, offset)?);
        }
        (!publications.is_empty()).then_some(Self { token, before, publications, carried })
    }
}

fn encode_publication(out: &mut BytesMut, publication: &Publication) {
    out.put_u64(publication.time_ms);
    out.put_u64(publication.expires_ms.unwrap_or(0));
    let PublicationHead { kind, is_deletion, ref key, .. } = **publication;
    encode_tail(out, kind, is_deletion, key.as_deref(), publication.data(), publication.trailer());
}

fn carried(bytes: &mut Bytes) -> Option<Carried> {
    let (previous, oldest) = (bytes.try_get_u64().ok()?, bytes.try_get_u64().ok()?);
    let mut entries = Vec::new();
    for _ in 0..bytes.try_get_u32().ok()? {
        let offset = bytes.try_get_u64().ok()?;
        entries.push(publication(bytes, offset)?);
    }
    Some(Carried { previous, oldest, entries })
}

fn publication(bytes: &mut Bytes, offset: u64) -> Option<Publication> {
    let time_ms = bytes.try_get_u64().ok()?;
    let expires_ms = Some(bytes.try_get_u64().ok()?).filter(|at| *at > 0);
    let Tail { kind, is_deletion, key, data, trailer } = decode_tail(bytes)?;
    let head = PublicationHead { offset, time_ms, key, expires_ms, kind, is_traced: false, is_deletion };
    Some(Publication::with_trailer(head, &data, &trailer))
}

#[cfg(test)]
mod tests {
    use millrace_protocol::Kind;

    use super::*;

    fn batch() -> Batch {
        let token = Token { node: "0123abcd".into(), number: 7, part: 2 };
        let before = End { offset: 41, bytes: 1000, time_ms: 1_700_000_000_123 };
        let new = [
            NewPublication::new(Kind::Json, b"{}"),
            NewPublication {
                key: Some("k".repeat(255).into()),
                ttl_ms: Some(5),
                ..NewPublication::new(Kind::Binary, [0, 255, 10, 13])
            },
            NewPublication { key: Some("".into()), ..NewPublication::new(Kind::Text, []) },
        ];
        Batch::new(token, before, &new, 1_700_000_000_100)
    }

    fn carrying() -> Batch {
        let older = Batch { before: End { offset: 7, ..batch().before }, ..batch() };
        let entries = Batch::new(older.token, older.before, &[NewPublication::deletion("k".into())], 1).publications;
        Batch { carried: Some(Carried { previous: 90, oldest: 12, entries }), ..batch() }
    }

    #[test]
    fn stored_record_round_trips() {
        let batch = batch();
        let bytes = batch.encode();
        assert!(bytes.len() <= HEAD_BYTES + 3 * PUBLICATION_BYTES + 2 + 255 + 4);
        assert_eq!(Batch::decode(bytes), Some(batch.clone()));
        assert_eq!(Batch::decode(carrying().encode()), Some(carrying()));
        let offsets: Vec<_> = batch.publications.iter().map(|p| (p.offset, p.time_ms, p.expires_ms)).collect();
        let time_ms = 1_700_000_000_123;
        assert_eq!(offsets, [(42, time_ms, None), (43, time_ms, Some(1_700_000_000_105)), (44, time_ms, None)]);
        assert_eq!(batch.end(), End { offset: 44, bytes: 1000 + 2 + 259, time_ms });
        let before: Vec<_> = batch.steps().map(|(before, _)| (before.offset, before.bytes)).collect();
        assert_eq!(before, [(41, 1000), (42, 1002), (43, 1261)]);
    }

    #[test]
    fn invalid_bytes_are_refused() {
        let whole = batch().encode();
        // A cut after a whole publication looks like a shorter batch. NATS delivers only whole messages, so that is
        // safe.
        let ends: Vec<_> =
            (1..=3).map(|n| Batch { publications: batch().publications[..n].to_vec(), ..batch() }).collect();
        let ends: Vec<_> = ends.iter().map(|batch| batch.encode().len()).collect();
        for length in 0..whole.len() {
            let is_whole = Batch::decode(whole.slice(..length)).is_some();
            assert_eq!(is_whole, ends.contains(&length), "{length} bytes");
        }
        let whole_carrying = carrying().encode();
        for length in 0..whole_carrying.len() - 3 * PUBLICATION_BYTES {
            assert_eq!(
                Batch::decode(whole_carrying.slice(..length)).filter(|batch| batch.publications.len() > 2),
                None
            );
        }
        for (at, bad) in [(0, 3), (1, 255), (60, 9)] {
            let mut other = whole.to_vec();
            other[at] = bad;
            assert_eq!(Batch::decode(other.into()), None, "byte {at}");
        }
    }

    #[test]
    fn bounds_apply_to_publications_before_the_end() {
        let bounds = Bounds { count_max: 2, bytes_max: 100, age_max_ms: 10, keys_max: 0 };
        let end = End { offset: 10, bytes: 1000, time_ms: 50 };
        let before = |offset, bytes| End { offset, bytes, time_ms: 0 };
        assert!(end.holds(before(8, 900), 41, 50, &bounds));
        assert!(!end.holds(before(7, 900), 41, 50, &bounds), "the third newest");
        assert!(!end.holds(before(8, 899), 41, 50, &bounds), "101 bytes");
        assert!(!end.holds(before(8, 900), 40, 50, &bounds), "10 ms old");
    }
}
