use std::ops::Deref;

use triomphe::{Arc, ThinArc};

use crate::error::{Code, Error};

/// Longest conflation or idempotency key, in bytes.
pub const KEY_BYTES_MAX: usize = 255;

/// Deepest nesting of a payload that counts as JSON. Parsers of clients recurse, and many refuse more than 128 levels, of which the envelope
/// of a message takes a few.
pub const JSON_DEPTH_MAX: usize = 100;

/// What a payload is; decides how enveloped forms show it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Json,
    Text,
    Binary,
    /// Text or JSON: nobody has looked yet. Bare WebSockets do not say, and bare readers do not ask.
    Utf8,
}

/// One message of a channel, as the engine has accepted it. All who hold it share one piece of memory, and its payload lies there, too:
/// a history of many small ones is mostly payload. Cost of a clone: a count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Publication(ThinArc<PublicationHead, u8>);

/// What a publication has besides its payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublicationHead {
    pub offset: u64,
    /// Milliseconds since 1970; never falls within a channel.
    pub time_ms: u64,
    /// Of several publications with one key, `latest` readers need only the newest. No key counts as one key.
    pub key: Option<Box<str>>,
    /// History forgets it then; milliseconds since 1970.
    pub expires_ms: Option<u64>,
    pub kind: Kind,
}

/// A publication before the engine has given it its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewPublication {
    pub key: Option<Box<str>>,
    pub ttl_ms: Option<u64>,
    /// The same key on the same channel publishes once.
    pub idempotency_key: Option<Box<str>>,
    pub kind: Kind,
    pub data: Payload,
    /// The channel is charged to this holder if this publication creates it.
    pub holder: Holder,
}

/// The client that a new channel is charged to: an opaque number of 24 bits, made of a subject or an address. Three
/// bytes, so that it fits beside what a connection holds already. See docs/adr/0011.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Holder([u8; 3]);

impl Holder {
    /// No client: the server itself, which has no share.
    pub const NONE: Self = Self([0; 3]);

    /// Makes a holder of the low 24 bits of a number; 0 is [`Holder::NONE`].
    pub const fn new(number: u32) -> Self {
        let [_, a, b, c] = number.to_be_bytes();
        Self([a, b, c])
    }

    pub const fn number(self) -> u32 {
        let [a, b, c] = self.0;
        u32::from_be_bytes([0, a, b, c])
    }
}

/// A payload with room for a head beside it, so that it becomes a [`Publication`] where it lies: who keeps order under a lock copies nothing there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Payload(ThinArc<PublicationHead, u8>);

impl NewPublication {
    /// Cost: copies the payload.
    pub fn new(kind: Kind, data: impl AsRef<[u8]>) -> Self {
        let head = PublicationHead { offset: 0, time_ms: 0, key: None, expires_ms: None, kind };
        let data = Payload(ThinArc::from_header_and_slice(head, data.as_ref()));
        Self { key: None, ttl_ms: None, idempotency_key: None, kind, data, holder: Holder::NONE }
    }

    /// Sets the holder.
    pub fn held_by(self, holder: Holder) -> Self {
        Self { holder, ..self }
    }

    /// A payload of which nothing is known: JSON if it parses and is no deeper than [`JSON_DEPTH_MAX`], text if it is UTF-8, else binary.
    pub fn detect(data: impl AsRef<[u8]>) -> Self {
        Self::new(Kind::detect(data.as_ref()), data)
    }

    /// Errors: [`Code::TooLarge`] for a key longer than [`KEY_BYTES_MAX`].
    pub fn check(self) -> Result<Self, Error> {
        let too_long = |key: &Option<Box<str>>| key.as_ref().is_some_and(|key| key.len() > KEY_BYTES_MAX);
        if too_long(&self.key) || too_long(&self.idempotency_key) {
            return Err(Error::new(Code::TooLarge, format!("a key has at most {KEY_BYTES_MAX} bytes")));
        }
        Ok(self)
    }

    /// Bytes that the history is charged for.
    pub fn cost_bytes(&self) -> usize {
        self.data.len() + self.key.as_ref().map_or(0, |key| key.len())
    }
}

impl Publication {
    /// What one takes besides its payload and key: its head, the length of its payload, and how many hold it.
    pub const BYTES: usize = size_of::<PublicationHead>() + 2 * size_of::<usize>();

    /// Cost: copies the payload.
    pub fn new(head: PublicationHead, data: &[u8]) -> Self {
        Self(ThinArc::from_header_and_slice(head, data))
    }

    /// Of a new publication. Cost: copies the payload if somebody else holds it, too.
    pub fn placed(head: PublicationHead, payload: Payload) -> Self {
        let Payload(mut whole) = payload;
        let shared = whole.with_arc_mut(|whole| match Arc::get_mut(whole) {
            Some(whole) => {
                *whole.header_mut() = head;
                None
            }
            None => Some(head),
        });
        match shared {
            Some(head) => Self::new(head, &whole.slice),
            None => Self(whole),
        }
    }

    pub fn data(&self) -> &[u8] {
        &self.0.slice
    }

    /// Bytes that the history is charged for.
    pub fn cost_bytes(&self) -> usize {
        self.data().len() + self.key.as_ref().map_or(0, |key| key.len())
    }

    /// What the payload is, never [`Kind::Utf8`]. Cost: reads the payload if nobody has said.
    pub fn kind(&self) -> Kind {
        match self.kind {
            Kind::Utf8 => Kind::detect(self.data()),
            known => known,
        }
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
        &self.0.slice
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

/// Is this JSON nested deeper than [`JSON_DEPTH_MAX`]? Cost: nothing for a short payload; for a long one a count of brackets, 10 GB/s; the
/// walk, 0.6 GB/s, only where there are enough of them.
pub(crate) fn is_too_deep(json: &str) -> bool {
    // Each bracket that is opened is closed, too.
    json.len() > 2 * JSON_DEPTH_MAX && brackets(json.as_bytes()) > JSON_DEPTH_MAX && depth(json) > JSON_DEPTH_MAX
}

/// Sets the bit that tells `[` from `{` and `]` from `}`.
const EITHER: u8 = 0x20;

/// Brackets that are opened, those in strings included. Sums of bytes, which the compiler does many at a time.
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
    fn json_that_is_too_deep_is_text() {
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
    fn a_text_is_looked_at_when_somebody_asks() {
        let head = PublicationHead { offset: 1, time_ms: 0, key: None, expires_ms: None, kind: Kind::Utf8 };
        let kind = |text: &[u8]| Publication::new(head.clone(), text).kind();
        assert_eq!((kind(b"{\"a\":1}"), kind(b"{\"a\":")), (Kind::Json, Kind::Text));
    }

    #[test]
    fn a_payload_gets_its_place_where_it_lies() {
        let head =
            |offset| PublicationHead { offset, time_ms: 7, key: Some("k".into()), expires_ms: None, kind: Kind::Text };
        let new = NewPublication::new(Kind::Text, "hello");
        let (another, lies_at) = (new.data.clone(), new.data.as_ptr());
        let first = Publication::placed(head(1), new.data);
        let second = Publication::placed(head(2), another);
        assert_eq!([first.data(), second.data()], [b"hello"; 2]);
        assert_eq!([&*first, &*second], [&head(1), &head(2)]);
        assert!(first.data().as_ptr() != lies_at && second.data().as_ptr() == lies_at);
    }

    #[test]
    fn long_keys_are_refused() {
        let mut publication = NewPublication::detect(b"1");
        publication.key = Some("k".repeat(256).into());
        assert_eq!(publication.check().unwrap_err().code, Code::TooLarge);
    }
}
