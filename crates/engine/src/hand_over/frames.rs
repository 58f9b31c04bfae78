//! Frames between the engines of two processes: a length of four bytes (little endian), then the frame in postcard.

use std::io::{self, Read, Write};

use millrace_delivery::{Page, PageLimit, SavedHistory};
use millrace_protocol::{Epoch, Error, Holder, NewPublication, Position, Publication, Since, session::Policy};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// Maximum size of a frame in bytes. The largest one holds the history of one channel.
const FRAME_BYTES_MAX: usize = i32::MAX as usize;

/// Sent by the old process. First all contents of its engine up to [`ToSuccessor::End`], then requests.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub enum ToSuccessor {
    Channel(SavedChannel),
    End(Ending),
    Request { number: u64, request: Request },
}

/// A channel of the engine `memory`.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct SavedChannel {
    pub name: String,
    pub holder: Holder,
    pub history: SavedHistory,
}

/// Contents of the engine besides its channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ending {
    pub epoch: Epoch,
    /// Highest offset, and time of the newest publication, of all evicted channels.
    pub forgotten: (u64, u64),
}

impl Ending {
    /// End of the contents of an engine that keeps them outside of the process.
    pub const NOTHING: Self = Self { epoch: Epoch(0), forgotten: (0, 0) };
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub enum Request {
    Append { channel: String, publication: Box<NewPublication> },
    Page { channel: String, since: Since, policy: Policy, limit: PageLimit },
    Newest { channel: String },
    Channels { pattern: String, after: Option<String>, max: usize },
    Presence { channel: String },
}

/// Sent by the new process.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub enum ToPredecessor {
    Response {
        number: u64,
        response: Result<Response, Error>,
    },
    /// A publication for the readers of the old process.
    Published {
        channel: String,
        epoch: Epoch,
        publication: Publication,
    },
    /// The log of a channel has moved without delivered publications.
    Moved {
        channel: String,
        from: Position,
        top: Position,
    },
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub enum Response {
    Appended(Position),
    Page(Box<Page>),
    Newest { top: Position, publication: Option<Publication> },
    Channels(Vec<String>),
    Presence(u32),
}

/// Encodes a frame.
///
/// Errors: the frame is larger than 2 GiB.
pub fn encode(frame: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut bytes = postcard::to_extend(frame, vec![0; 4]).map_err(io::Error::other)?;
    let length = bytes.len() - 4;
    if length > FRAME_BYTES_MAX {
        return Err(io::Error::other(format!("a frame of {length} bytes is too large to hand over")));
    }
    bytes[..4].copy_from_slice(&(length as u32).to_le_bytes());
    Ok(bytes)
}

pub fn write(stream: &mut impl Write, frame: &impl Serialize) -> io::Result<()> {
    stream.write_all(&encode(frame)?)
}

/// Reads the next frame. Returns `None` at the end of the stream.
///
/// Errors: the stream ends inside a frame, or the frame is malformed.
pub fn read<T: DeserializeOwned>(stream: &mut impl Read) -> io::Result<Option<T>> {
    let mut head = [0; 4];
    if stream.read(&mut head[..1])? == 0 {
        return Ok(None);
    }
    stream.read_exact(&mut head[1..])?;
    let length = u32::from_le_bytes(head) as usize;
    if length > FRAME_BYTES_MAX {
        return Err(io::Error::other("a frame is too large"));
    }
    let mut bytes = Vec::new();
    if stream.take(length as u64).read_to_end(&mut bytes)? < length {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    postcard::from_bytes(&bytes).map(Some).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use millrace_delivery::{Bounds, History};
    use millrace_protocol::{Attributes, Expected, Kind, PublicationHead, TraceContext};

    use super::*;

    fn position() -> Position {
        Position { epoch: Epoch(7), offset: 300 }
    }

    fn publication() -> Publication {
        let head = PublicationHead {
            offset: 300,
            time_ms: 5,
            key: Some("k".into()),
            expires_ms: Some(9),
            is_traced: false,
            kind: Kind::Binary,
            is_deletion: false,
        };
        let trace = TraceContext { trace_id: [1; 16], span_id: [2; 8], flags: 1 };
        Publication::with_trace(head, b"\xff\0data", Some(trace))
    }

    /// A process of one version must understand one of another version. A change of these bytes needs a new number of
    /// the protocol between the processes.
    #[test]
    fn frames_keep_their_bytes() {
        let publication_new = NewPublication {
            key: Some("k".into()),
            ttl_ms: Some(1),
            idempotency_key: Some("i".into()),
            is_deletion: false,
            expected: Some(Expected::At(position())),
            ..NewPublication::new(Kind::Text, "hello")
        };
        let append = Request::Append { channel: "a/b".into(), publication: Box::new(publication_new) };
        check(
            &ToSuccessor::Request { number: 1, request: append },
            "2000000002010003612f6201016b0101010169010568656c6c6f0000000000010107ac02",
        );
        let attributes = Attributes { qos: 1, is_retained: true, publisher: 0, properties: b"\x01\x01" };
        let of_mqtt = NewPublication::new(Kind::Text, "hello").with_attributes(attributes);
        let append = Request::Append { channel: "a/b".into(), publication: Box::new(of_mqtt) };
        check(
            &ToSuccessor::Request { number: 1, request: append },
            "1c00000002010003612f62000000010568656c6c6f0501010002b10000000000",
        );
        let published = ToPredecessor::Published { channel: "a".into(), epoch: Epoch(7), publication: publication() };
        let trace = "01".repeat(16) + &"02".repeat(8) + "01";
        check(&published, &format!("2f00000001016107ac020501016b01090201001fff0064617461{trace}"));
        let mut history = History::new(Epoch(7));
        let bounds = Bounds { count_max: 9, bytes_max: 99, age_max_ms: 9, keys_max: 9 };
        history.append(NewPublication { key: Some("k".into()), ..NewPublication::new(Kind::Json, "1") }, 5, &bounds);
        let saved = SavedChannel { name: "a".into(), holder: Holder::new(3), history: history.save() };
        check(&ToSuccessor::Channel(saved), "1a0000000001610000030701050001010501016b00000000013100010000");
    }

    /// Checks the bytes of a frame, and that the frame read from them has the same bytes.
    fn check<T: Serialize + DeserializeOwned>(frame: &T, expected: &str) {
        let bytes = encode(frame).unwrap();
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, expected);
        assert_eq!(encode(&read::<T>(&mut &bytes[..]).unwrap().unwrap()).unwrap(), bytes);
    }

    #[test]
    fn malformed_frames_are_errors() {
        assert_eq!(read::<ToPredecessor>(&mut &[][..]).unwrap(), None);
        for bytes in [&[1][..], &[1, 0, 0, 0], &[2, 0, 0, 0, 0xff], &[2, 0, 0, 0, 9, 9], &[0xff; 9]] {
            assert!(read::<ToPredecessor>(&mut &bytes[..]).is_err(), "{bytes:?}");
        }
    }
}
