use std::{fmt, ops::Deref, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Visitor};
use triomphe::{Arc, ThinArc};

use crate::{
    error::{Code, Error},
    position::Position,
    trace::TraceContext,
    trailer::{self, Attributes},
};

/// Maximum length of a conflation or idempotency key, in bytes.
pub const KEY_BYTES_MAX: usize = 255;

/// Maximum nesting depth of a payload that counts as JSON. Client parsers recurse, and many refuse more than 128
/// levels; the message envelope uses a few of them.
pub const JSON_DEPTH_MAX: usize = 100;

/// Type of a payload. Determines how encodings with an envelope encode it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Kind {
    Json,
    Text,
    Binary,
    /// Text or JSON, not yet detected. Bare WebSockets do not declare the type, and bare readers do not need it.
    Utf8,
}

/// Message of a channel, as accepted by the engine. All holders share one allocation that includes the payload,
/// because a history of many small messages is mostly payload. A clone costs one increment of a counter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Publication(ThinArc<PublicationHead, u8>);

/// Fields of a publication besides its payload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublicationHead {
    pub offset: u64,
    /// Publication time in milliseconds since 1970; never decreases within a channel.
    pub time_ms: u64,
    /// Conflation key: readers with policy `latest` need only the newest publication per key. Publications without
    /// a key share one key.
    pub key: Option<Box<str>>,
    /// Time at which history drops the publication, in milliseconds since 1970.
    pub expires_ms: Option<u64>,
    pub kind: Kind,
    /// True if a trailer follows the payload: a trace context, or [`Attributes`]. A field of its own would cost memory
    /// and time in all publications without one.
    pub is_traced: bool,
    /// True if this publication deletes its key from the state of the channel. The payload is empty then.
    pub is_deletion: bool,
}

/// Publication before the engine assigns its offset and time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewPublication {
    pub key: Option<Box<str>>,
    pub ttl_ms: Option<u64>,
    /// Idempotency key: a channel publishes only the first publication with the same key.
    pub idempotency_key: Option<Box<str>>,
    pub kind: Kind,
    pub data: Payload,
    /// Client that a new channel is charged to, if this publication creates the channel.
    pub holder: Holder,
    /// True if this publication deletes its key from the state of the channel. The payload is empty then.
    pub is_deletion: bool,
    /// Condition under which a publication into a state enters; `None`: always.
    pub expected: Option<Expected>,
}

/// Condition on the newest publication of a key, for compare-and-set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Expected {
    /// The state does not contain the key: it never existed, was deleted, or has expired.
    Absent,
    /// The newest publication of the key has this position.
    At(Position),
}

impl FromStr for Expected {
    type Err = Error;

    /// Parses `0` (absent) or a position, optionally in the quotes of an entity tag (RFC 9110, section 8.8.3).
    ///
    /// Errors: [`Code::BadPosition`].
    fn from_str(text: &str) -> Result<Self, Error> {
        let text = text.trim();
        let bare = text.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or(text);
        if bare == "0" {
            return Ok(Self::Absent);
        }
        let detail =
            "the expected position of a key is a position such as `5f0c12ab:57`, or `0` if the key must not exist";
        bare.parse().map(Self::At).map_err(|_| Error::new(Code::BadPosition, detail))
    }
}

/// Client that a new channel is charged to: an opaque 24-bit number, derived from a subject or an address. It has
/// three bytes so that it fits beside the existing fields of a connection. See docs/adr/0011.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Holder([u8; 3]);

impl Holder {
    /// The server itself, which is not a client and has no quota.
    pub const NONE: Self = Self([0; 3]);

    /// Creates a holder from the low 24 bits of a number; 0 is [`Holder::NONE`].
    pub const fn new(number: u32) -> Self {
        let [_, a, b, c] = number.to_be_bytes();
        Self([a, b, c])
    }

    pub const fn number(self) -> u32 {
        let [a, b, c] = self.0;
        u32::from_be_bytes([0, a, b, c])
    }
}

/// Payload with room for a [`PublicationHead`] in the same allocation, so that it becomes a [`Publication`] in
/// place. Code that orders publications under a lock then copies no payload there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Payload(ThinArc<PublicationHead, u8>);

impl NewPublication {
    /// Creates a publication without key, time to live or holder. Cost: copies the payload.
    pub fn new(kind: Kind, data: impl AsRef<[u8]>) -> Self {
        let (offset, time_ms, key, expires_ms, is_traced, is_deletion) = Default::default();
        let head = PublicationHead { offset, time_ms, key, expires_ms, kind, is_traced, is_deletion };
        let data = Payload(ThinArc::from_header_and_slice(head, data.as_ref()));
        let (key, ttl_ms, idempotency_key, expected) = Default::default();
        Self { key, ttl_ms, idempotency_key, kind, data, holder: Holder::NONE, is_deletion, expected }
    }

    /// Creates the deletion of a key.
    pub fn deletion(key: Box<str>) -> Self {
        Self { key: Some(key), is_deletion: true, ..Self::new(Kind::Text, []) }
    }

    /// Sets the condition under which the publication enters.
    pub fn only_if(self, expected: Expected) -> Self {
        Self { expected: Some(expected), ..self }
    }

    /// Returns the context that the publisher supplied.
    pub fn trace(&self) -> Option<TraceContext> {
        trace(&self.data.0)
    }

    /// Sets or removes the trace context. Cost: copies the payload if this changes anything.
    pub fn traced(self, trace: Option<TraceContext>) -> Self {
        if trace == self.trace() {
            return self;
        }
        let trailer = trailer::encode(trace, self.attributes());
        self.with_trailer(&trailer)
    }

    /// Sets what MQTT keeps of the publication. Cost: copies the payload.
    pub fn with_attributes(self, attributes: Attributes<'_>) -> Self {
        let trailer = trailer::encode(self.trace(), Some(attributes));
        self.with_trailer(&trailer)
    }

    /// Returns what MQTT keeps of the publication, if an MQTT client has published it.
    pub fn attributes(&self) -> Option<Attributes<'_>> {
        trailer::attributes(trailer_of(&self.data.0))
    }

    /// Returns everything that follows the payload, in the form that engines store. Empty for most publications.
    pub fn trailer(&self) -> &[u8] {
        trailer_of(&self.data.0)
    }

    /// Replaces the trailer by that of another publication. Cost: copies the payload.
    pub fn with_trailer(self, trailer: &[u8]) -> Self {
        Self { data: Payload(with_trailer(self.data.0.header.header.clone(), &self.data, trailer)), ..self }
    }

    /// Sets the holder.
    pub fn held_by(self, holder: Holder) -> Self {
        Self { holder, ..self }
    }

    /// Creates a publication and detects the payload type: JSON if the payload parses and is at most
    /// [`JSON_DEPTH_MAX`] deep, text if it is UTF-8, otherwise binary.
    pub fn detect(data: impl AsRef<[u8]>) -> Self {
        Self::new(Kind::detect(data.as_ref()), data)
    }

    /// Checks the lengths of the keys.
    ///
    /// Errors: [`Code::TooLarge`] for a key longer than [`KEY_BYTES_MAX`].
    pub fn check(self) -> Result<Self, Error> {
        let too_long = |key: &Option<Box<str>>| key.as_ref().is_some_and(|key| key.len() > KEY_BYTES_MAX);
        if too_long(&self.key) || too_long(&self.idempotency_key) {
            return Err(Error::new(Code::TooLarge, format!("a key has at most {KEY_BYTES_MAX} bytes")));
        }
        Ok(self)
    }

    /// Returns the bytes that count toward the history limit.
    pub fn cost_bytes(&self) -> usize {
        self.data.0.slice.len() + self.key.as_ref().map_or(0, |key| key.len())
    }
}

// A history of many small publications is mostly heads.
const _: () = assert!(size_of::<PublicationHead>() == 56);

impl Publication {
    /// Memory of a publication besides its payload and key: its head, the payload length and the reference count.
    pub const BYTES: usize = size_of::<PublicationHead>() + 2 * size_of::<usize>();

    /// Creates a publication without a trace context. Cost: copies the payload.
    pub fn new(head: PublicationHead, data: &[u8]) -> Self {
        Self::with_trace(head, data, None)
    }

    /// Creates a publication. Cost: copies the payload.
    pub fn with_trace(head: PublicationHead, data: &[u8], trace: Option<TraceContext>) -> Self {
        Self(with_trailer(head, data, &trailer::encode(trace, None)))
    }

    /// Creates a publication with the trailer that [`Publication::trailer`] has returned. A malformed trailer is
    /// dropped. Cost: copies the payload.
    pub fn with_trailer(head: PublicationHead, data: &[u8], trailer: &[u8]) -> Self {
        Self(with_trailer(head, data, trailer))
    }

    /// Returns everything that follows the payload, in the form that engines store. Empty for most publications.
    pub fn trailer(&self) -> &[u8] {
        trailer_of(&self.0)
    }

    /// Returns what MQTT keeps of the publication, if an MQTT client has published it.
    pub fn attributes(&self) -> Option<Attributes<'_>> {
        trailer::attributes(trailer_of(&self.0))
    }

    /// Returns the context that the publisher supplied.
    pub fn trace(&self) -> Option<TraceContext> {
        trace(&self.0)
    }

    /// Creates a publication from the payload of a new one, with its trace context. Cost: copies the payload only if
    /// it has another holder.
    #[inline(always)]
    pub fn placed(head: PublicationHead, payload: Payload) -> Self {
        let Payload(mut whole) = payload;
        let shared = whole.with_arc_mut(|whole| match Arc::get_mut(whole) {
            Some(whole) => {
                let place = whole.header_mut();
                let PublicationHead { offset, time_ms, key, expires_ms, kind, is_traced: _, is_deletion } = head;
                (place.offset, place.time_ms, place.expires_ms) = (offset, time_ms, expires_ms);
                (place.kind, place.is_deletion) = (kind, is_deletion);
                // The place has no key yet.
                if key.is_some() {
                    place.key = key;
                }
                None
            }
            None => Some(head),
        });
        match shared {
            Some(head) => Self::with_trailer(head, payload_of(&whole), trailer_of(&whole)),
            None => Self(whole),
        }
    }

    #[inline]
    pub fn data(&self) -> &[u8] {
        payload_of(&self.0)
    }

    /// Returns the bytes that count toward the history limit.
    pub fn cost_bytes(&self) -> usize {
        self.0.slice.len() + self.key.as_ref().map_or(0, |key| key.len())
    }

    /// Returns the payload type, never [`Kind::Utf8`]. Cost: reads the payload if the type is not known yet.
    pub fn kind(&self) -> Kind {
        match self.kind {
            Kind::Utf8 => Kind::detect(self.data()),
            known => known,
        }
    }
}

/// Returns the payload of a publication, without the trailer behind it.
#[inline]
fn payload_of(whole: &ThinArc<PublicationHead, u8>) -> &[u8] {
    match whole.header.header.is_traced {
        false => &whole.slice,
        true => &whole.slice[..whole.slice.len() - trailer::bytes(&whole.slice)],
    }
}

fn trailer_of(whole: &ThinArc<PublicationHead, u8>) -> &[u8] {
    match whole.header.header.is_traced {
        false => &[],
        true => &whole.slice[whole.slice.len() - trailer::bytes(&whole.slice)..],
    }
}

fn trace(whole: &ThinArc<PublicationHead, u8>) -> Option<TraceContext> {
    whole.header.header.is_traced.then(|| trailer::trace(trailer_of(whole))).flatten()
}

#[inline]
fn with_trailer(head: PublicationHead, data: &[u8], trailer: &[u8]) -> ThinArc<PublicationHead, u8> {
    match trailer::is_whole(trailer) {
        false => ThinArc::from_header_and_slice(PublicationHead { is_traced: false, ..head }, data),
        true => {
            let head = PublicationHead { is_traced: true, ..head };
            ThinArc::from_header_and_slice(head, &[data, trailer].concat())
        }
    }
}

/// Serialized as head and payload, followed by its trace context, if it has one.
impl Serialize for Publication {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (&**self, Bytes(&self.0.slice)).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Publication {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (head, BytesBuf(data)) = Deserialize::deserialize(deserializer)?;
        Ok(Self(ThinArc::from_header_and_slice(head, &data)))
    }
}

/// Serialized as payload and trailer.
impl Serialize for Payload {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (Bytes(self), Bytes(trailer_of(&self.0))).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Payload {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (BytesBuf(data), BytesBuf(trailer)) = Deserialize::deserialize(deserializer)?;
        let publication = NewPublication::new(Kind::Utf8, data);
        Ok(if trailer.is_empty() { publication } else { publication.with_trailer(&trailer) }.data)
    }
}

/// Bytes that are serialized as one piece.
struct Bytes<'a>(&'a [u8]);

impl Serialize for Bytes<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(self.0)
    }
}

struct BytesBuf(Vec<u8>);

impl<'de> Deserialize<'de> for BytesBuf {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Piece;
        impl Visitor<'_> for Piece {
            type Value = BytesBuf;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("bytes")
            }

            fn visit_bytes<E>(self, bytes: &[u8]) -> Result<BytesBuf, E> {
                Ok(BytesBuf(bytes.to_vec()))
            }
        }
        deserializer.deserialize_bytes(Piece)
    }
}

impl Deref for Publication {
    type Target = PublicationHead;

    fn deref(&self) -> &PublicationHead {
        &self.0.header.header
    }
}

impl Deref for Payload {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        payload_of(&self.0)
    }
}

impl PublicationHead {
    pub fn is_expired(&self, now_ms: u64) -> bool {
        self.expires_ms.is_some_and(|at| at <= now_ms)
    }
}

impl Kind {
    pub fn detect(data: &[u8]) -> Self {
        std::str::from_utf8(data).map_or(Kind::Binary, Self::detect_in_text)
    }

    pub fn detect_in_text(text: &str) -> Self {
        match serde_json::from_str::<serde::de::IgnoredAny>(text) {
            Ok(_) if !is_too_deep(text) => Kind::Json,
            _ => Kind::Text,
        }
    }
}

/// Returns true if this JSON is nested deeper than [`JSON_DEPTH_MAX`]. Cost: none for a short payload. A long
/// payload costs a count of brackets at 10 GB/s. Only if there are enough brackets, it also costs a walk at 0.6
/// GB/s.
pub(crate) fn is_too_deep(json: &str) -> bool {
    // Each opening bracket has a closing one, so a text too short for both cannot be too deep.
    json.len() > 2 * JSON_DEPTH_MAX && brackets(json.as_bytes()) > JSON_DEPTH_MAX && depth(json) > JSON_DEPTH_MAX
}

/// Bit that distinguishes `[` from `{` and `]` from `}`. Setting it maps both kinds of bracket to braces.
const EITHER: u8 = 0x20;

/// Counts opening brackets, including those in strings. The sums of bytes are vectorized by the compiler.
fn brackets(json: &[u8]) -> usize {
    let opened = |chunk: &[u8]| chunk.iter().map(|byte| u8::from(byte | EITHER == b'{')).sum::<u8>();
    json.chunks(128).map(|chunk| usize::from(opened(chunk))).sum()
}

fn depth(json: &str) -> usize {
    let (mut depth, mut deepest) = (0_usize, 0);
    let mut bytes = json.bytes();
    while let Some(byte) = bytes.next() {
        match byte | EITHER {
            b'{' => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b'}' => depth = depth.saturating_sub(1),
            _ if byte == b'"' => {
                while let Some(byte) = bytes.next() {
                    match byte {
                        b'"' => break,
                        b'\\' => drop(bytes.next()),
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    deepest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_detected() {
        assert_eq!(Kind::detect(b"{\"a\":1}"), Kind::Json);
        assert_eq!(Kind::detect(b"hello"), Kind::Text);
        assert_eq!(Kind::detect(b""), Kind::Text);
        assert_eq!(Kind::detect(&[0xff, 0]), Kind::Binary);
    }

    #[test]
    fn too_deep_json_is_text() {
        let nested = |depth: usize| format!("{}\"[{{\\\"\"{}", "[".repeat(depth), "]".repeat(depth));
        assert_eq!(Kind::detect_in_text(&nested(JSON_DEPTH_MAX)), Kind::Json);
        assert_eq!(Kind::detect_in_text(&nested(JSON_DEPTH_MAX + 1)), Kind::Text);
        assert_eq!(Kind::detect_in_text(&nested(100_000)), Kind::Text);
        let wide = format!("[{}[]]", "{\"a\":[]},".repeat(1000));
        assert_eq!((depth(&wide), Kind::detect_in_text(&wide)), (3, Kind::Json));
        let quoted = format!("[\"{}\"]", "[".repeat(1000));
        assert_eq!((depth(&quoted), Kind::detect_in_text(&quoted)), (1, Kind::Json));
    }

    #[test]
    fn text_kind_is_detected_on_demand() {
        let head = PublicationHead {
            offset: 1,
            time_ms: 0,
            key: None,
            expires_ms: None,
            is_traced: false,
            kind: Kind::Utf8,
            is_deletion: false,
        };
        let kind = |text: &[u8]| Publication::new(head.clone(), text).kind();
        assert_eq!((kind(b"{\"a\":1}"), kind(b"{\"a\":")), (Kind::Json, Kind::Text));
    }

    #[test]
    fn unshared_payload_is_not_copied() {
        let head = |offset| PublicationHead {
            offset,
            time_ms: 7,
            key: Some("k".into()),
            expires_ms: None,
            is_traced: false,
            kind: Kind::Text,
            is_deletion: false,
        };
        let new = NewPublication::new(Kind::Text, "hello");
        let (another, lies_at) = (new.data.clone(), new.data.as_ptr());
        let first = Publication::placed(head(1), new.data);
        let second = Publication::placed(head(2), another);
        assert_eq!([first.data(), second.data()], [b"hello"; 2]);
        assert_eq!([&*first, &*second], [&head(1), &head(2)]);
        assert!(first.data().as_ptr() != lies_at && second.data().as_ptr() == lies_at);
    }

    #[test]
    fn trace_stays_with_its_payload() {
        let trace = Some(TraceContext { trace_id: [1; 16], span_id: [2; 8], flags: 1 });
        let head = PublicationHead {
            offset: 1,
            time_ms: 7,
            key: None,
            expires_ms: None,
            is_traced: false,
            kind: Kind::Text,
            is_deletion: false,
        };
        let new = NewPublication::new(Kind::Text, "hello").traced(trace);
        let shared = new.clone();
        assert_eq!((new.trace(), shared.clone().traced(None).trace()), (trace, None));
        assert_eq!((&*new.data, &*shared.clone().traced(None).data), (b"hello".as_slice(), b"hello".as_slice()));
        for payload in [new.data, shared.data] {
            let placed = Publication::placed(head.clone(), payload);
            assert_eq!((placed.trace(), placed.data()), (trace, b"hello".as_slice()));
        }
    }

    #[test]
    fn expected_position_is_parsed() {
        let at = Expected::At(Position { epoch: crate::Epoch(1), offset: 5 });
        for (text, expected) in [("0", Expected::Absent), ("\"0\"", Expected::Absent), ("1:5", at), (" \"1:5\" ", at)] {
            assert_eq!(text.parse::<Expected>().unwrap(), expected, "{text}");
        }
        for bad in ["", "*", "\"", "1", "\"1:5", "W/\"1:5\"", "1:5, 1:6"] {
            assert_eq!(bad.parse::<Expected>().unwrap_err().code, Code::BadPosition, "{bad}");
        }
    }

    #[test]
    fn long_keys_are_refused() {
        let mut publication = NewPublication::detect(b"1");
        publication.key = Some("k".repeat(256).into());
        assert_eq!(publication.check().unwrap_err().code, Code::TooLarge);
    }
}
