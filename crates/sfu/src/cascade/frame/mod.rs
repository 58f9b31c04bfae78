//! Format of one datagram between two nodes, before encryption. All numbers are big-endian.
//!
//! ```text
//!   0         1      2       6          14
//!   ┌─────────┬──────┬───────┬──────────┬───────────────────────────────────────────────────┐
//!   │ version │ type │ epoch │ sequence │ body                                              │
//!   └─────────┴──────┴───────┴──────────┴───────────────────────────────────────────────────┘
//!   media: handle u32 │ codec, layer u8 │ flags u8 │ level or orientation u8 │ sequence u32 │ time u32 │ payload
//! ```
//!
//! `sequence` counts all frames of one direction. It is the nonce of the cipher, so a retransmission repeats the whole
//! frame. `epoch` is the start of the sending node's link: a frame of an earlier epoch is void.

mod write;

use std::sync::Arc;

use super::packet::{Codec, Handle, LAYERS_MAX, Layers, NODE_BYTES_MAX, NodeId, Packet};

pub use write::{
    LEVELS_MAX, RATES_MAX, ack, hello, keyframe, levels, media, nack, padding, rates, report, sender_report, table,
};

/// Version of the format. A node refuses any other version.
pub const VERSION: u8 = 1;
/// The first byte of a frame is this number plus the version. The bytes 4 to 15 belong to no other protocol of a port
/// with WebRTC. Source: RFC 7983, section 7; RFC 9443.
pub const FIRST_BYTE: u8 = 4;
const FIRST_BYTE_MAX: u8 = 15;
/// Maximum size of a frame before encryption.
pub const FRAME_BYTES_MAX: usize = 1400;
pub const HEAD_BYTES: usize = 14;
pub const MEDIA_HEAD_BYTES: usize = HEAD_BYTES + 15;
/// Maximum number of parts of a table.
pub const PARTS_MAX: usize = 256;
/// Maximum size of a part's entries.
pub const PART_BYTES_MAX: usize = 1200;
/// Maximum number of frames that one arrival report covers.
pub const REPORT_MAX: usize = 500;
/// Maximum number of frames that one NACK names.
pub const NACK_MAX: usize = 200;
/// Unit of arrival times in a report, in microseconds.
pub const TICK_US: i64 = 16;
/// Maximum length of a room's name and of a member's name.
pub const NAME_BYTES_MAX: usize = 255;

const MISSING: u16 = u16::MAX;
const MARKER: u8 = 1;
const HAS_LEVEL: u8 = 2;
const IS_SPEECH: u8 = 4;
const HAS_ORIENTATION: u8 = 8;
const PRIORITY: u8 = 0x80;
const LAYER_BITS: u8 = 0x0f;
/// Position of the number of layers in the flags of a track.
const LAYERS_AT: u32 = 3;
const TRACK_LAYERS_BITS: u8 = 0x07;
/// Position of the bit that marks a shared screen in the flags of a track.
const SCREEN_AT: u32 = 6;

const HELLO: u8 = 0;
const MEDIA: u8 = 1;
const REPORT: u8 = 2;
const NACK: u8 = 3;
const TABLE: u8 = 4;
const ACK: u8 = 5;
const KEYFRAME: u8 = 6;
const RATES: u8 = 7;
const LEVELS: u8 = 8;
const SENDER_REPORT: u8 = 9;
const PADDING: u8 = 10;

/// Reason why a datagram is no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    #[error("the frame is cut short")]
    Short,
    #[error("the frame has {0} bytes; at most {FRAME_BYTES_MAX} are allowed")]
    Long(usize),
    #[error("the datagram begins with the byte {0}, as no frame does")]
    FirstByte(u8),
    #[error("the other node uses version {0} of the link format, this node version {VERSION}")]
    Version(u8),
    #[error("the frame has the unknown type {0}")]
    Type(u8),
    #[error("a field of the frame is out of range: {0}")]
    Field(&'static str),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    pub epoch: u32,
    pub sequence: u64,
}

/// A state that a node repeats until the other node acknowledges it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Table {
    /// Tracks that the sender of the table offers.
    Tracks,
    /// Layers that the sender of the table wants.
    Wants,
    /// Layers that the sender of the table sends, of those that are wanted.
    Carried,
}

/// Contents of a frame.
#[derive(Clone, Debug, PartialEq)]
pub enum Body<'a> {
    /// `known_epoch`: epoch of the other node, 0 before it is known.
    Hello {
        node: NodeId,
        known_epoch: u32,
    },
    /// A media packet whose sequence number and timestamp have their lower 32 bits only.
    Media {
        handle: Handle,
        packet: Packet,
    },
    Report(Report<'a>),
    Nack(Vec<u64>),
    Table {
        table: Table,
        version: u32,
        part: u8,
        last_part: u8,
        entries: &'a [u8],
    },
    /// Acknowledges one part of a table.
    Ack {
        table: Table,
        version: u32,
        part: u8,
    },
    Keyframe {
        handle: Handle,
        layer: u8,
    },
    /// Bit rates of layers in kbit/s.
    Rates(Vec<(Handle, [u32; LAYERS_MAX])>),
    /// Audio levels of tracks that are not carried, in decibels below the maximum.
    Levels(Vec<(Handle, u8)>),
    SenderReport(SenderReport),
    Padding,
}

/// Time of a publisher's sender report: an RTP timestamp, and the NTP time of the same moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SenderReport {
    pub handle: Handle,
    pub layer: u8,
    pub rtp: u32,
    pub ntp: u64,
}

/// Arrival times of consecutive frames.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Report<'a> {
    pub first: u64,
    /// Time from the arrival of the newest frame to this report.
    pub delay_us: u32,
    /// Time of the receiver's clock to which the arrival times are relative.
    pub base_us: i64,
    times: &'a [u8],
}

/// One track in a table of tracks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrackInfo {
    pub handle: Handle,
    /// Order of a participant's connections: of two tracks of one participant, the one with the higher generation is
    /// current. Source: the time of joining in milliseconds since 1970.
    pub generation: u64,
    pub room: Box<str>,
    /// Name of the member as others see it.
    pub member: Box<str>,
    /// Index of the track among those of the member.
    pub index: u8,
    pub is_audio: bool,
    pub is_muted: bool,
    /// The member is a participant of the room: no other member has its name. Other publishers choose their names.
    pub is_participant: bool,
    /// The track shows a screen, and not a camera.
    pub is_screen: bool,
    pub layers: u8,
}

/// One track in a table of wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Want {
    pub handle: Handle,
    pub layers: Layers,
    /// A member watches the active speaker.
    pub has_priority: bool,
}

impl<'a> Report<'a> {
    /// Number of frames that the report covers.
    pub fn count(&self) -> usize {
        self.times.len() / 2
    }

    /// Passes each number and its arrival time in microseconds of the receiver's clock; `None`: it has not arrived.
    pub fn for_each(&self, mut emit: impl FnMut(u64, Option<i64>)) {
        for (number, ticks) in (self.first..).zip(self.times.chunks_exact(2)) {
            let ticks = u16::from_be_bytes([ticks[0], ticks[1]]);
            let arrived = (ticks != MISSING).then(|| self.base_us.saturating_add(i64::from(ticks) * TICK_US));
            emit(number, arrived);
        }
    }
}

/// Returns whether a datagram belongs to a link, and not to another protocol on the same port.
pub fn is_frame(datagram: &[u8]) -> bool {
    matches!(datagram, [FIRST_BYTE..=FIRST_BYTE_MAX, ..])
}

/// Reads a frame.
///
/// Errors: [`FrameError`] if it is no frame of [`VERSION`].
pub fn decode(bytes: &[u8]) -> Result<(Head, Body<'_>), FrameError> {
    if bytes.len() > FRAME_BYTES_MAX {
        return Err(FrameError::Long(bytes.len()));
    }
    let mut reader = Reader(bytes);
    let first = reader.u8()?;
    if !(FIRST_BYTE..=FIRST_BYTE_MAX).contains(&first) {
        return Err(FrameError::FirstByte(first));
    }
    if first - FIRST_BYTE != VERSION {
        return Err(FrameError::Version(first - FIRST_BYTE));
    }
    let kind = reader.u8()?;
    let head = Head { epoch: reader.u32()?, sequence: reader.u64()? };
    let body = match kind {
        HELLO => {
            let known_epoch = reader.u32()?;
            let node = NodeId::new(reader.text(NODE_BYTES_MAX)?).ok_or(FrameError::Field("node"))?;
            Body::Hello { node, known_epoch }
        }
        MEDIA => read_media(&mut reader)?,
        REPORT => {
            let (first, delay_us, base_us) = (reader.u64()?, reader.u32()?, reader.u64()? as i64);
            let times = reader.rest();
            if !times.len().is_multiple_of(2) || times.len() / 2 > REPORT_MAX {
                return Err(FrameError::Field("arrival times"));
            }
            first.checked_add(REPORT_MAX as u64).ok_or(FrameError::Field("first"))?;
            Body::Report(Report { first, delay_us, base_us, times })
        }
        NACK => {
            let first = reader.u64()?;
            let mut missing = Vec::new();
            while !reader.is_empty() && missing.len() < NACK_MAX {
                missing.push(first.checked_add(reader.u32()?.into()).ok_or(FrameError::Field("missing"))?);
            }
            Body::Nack(missing)
        }
        TABLE => {
            let (table, version) = (read_table(&mut reader)?, reader.u32()?);
            let (part, last_part) = (reader.u8()?, reader.u8()?);
            let entries = reader.rest();
            if part > last_part || entries.len() > PART_BYTES_MAX {
                return Err(FrameError::Field("part"));
            }
            Body::Table { table, version, part, last_part, entries }
        }
        ACK => Body::Ack { table: read_table(&mut reader)?, version: reader.u32()?, part: reader.u8()? },
        KEYFRAME => Body::Keyframe { handle: Handle(reader.u32()?), layer: read_layer(&mut reader)? },
        RATES => {
            let mut rates = Vec::new();
            while !reader.is_empty() {
                let handle = Handle(reader.u32()?);
                rates.push((handle, [reader.u32()?, reader.u32()?, reader.u32()?, reader.u32()?]));
            }
            Body::Rates(rates)
        }
        LEVELS => {
            let mut levels = Vec::new();
            while !reader.is_empty() {
                levels.push((Handle(reader.u32()?), reader.u8()?));
            }
            Body::Levels(levels)
        }
        SENDER_REPORT => Body::SenderReport(SenderReport {
            handle: Handle(reader.u32()?),
            layer: read_layer(&mut reader)?,
            rtp: reader.u32()?,
            ntp: reader.u64()?,
        }),
        PADDING => Body::Padding,
        other => return Err(FrameError::Type(other)),
    };
    Ok((head, body))
}

fn read_media<'a>(reader: &mut Reader<'a>) -> Result<Body<'a>, FrameError> {
    let handle = Handle(reader.u32()?);
    let (codec, flags, extra) = (reader.u8()?, reader.u8()?, reader.u8()?);
    let layer = codec & LAYER_BITS;
    if usize::from(layer) >= LAYERS_MAX {
        return Err(FrameError::Field("layer"));
    }
    let packet = Packet {
        layer,
        codec: Codec::new(codec >> 4).ok_or(FrameError::Field("codec"))?,
        sequence: reader.u32()?.into(),
        time: reader.u32()?.into(),
        marker: flags & MARKER != 0,
        audio_level: (flags & HAS_LEVEL != 0).then_some((extra & 0x7f, flags & IS_SPEECH != 0)),
        orientation: (flags & HAS_ORIENTATION != 0).then_some(extra),
        payload: Arc::from(reader.rest()),
    };
    Ok(Body::Media { handle, packet })
}

fn read_table(reader: &mut Reader<'_>) -> Result<Table, FrameError> {
    match reader.u8()? {
        0 => Ok(Table::Tracks),
        1 => Ok(Table::Wants),
        2 => Ok(Table::Carried),
        _ => Err(FrameError::Field("table")),
    }
}

fn read_layer(reader: &mut Reader<'_>) -> Result<u8, FrameError> {
    reader
        .u8()
        .and_then(|layer| if usize::from(layer) < LAYERS_MAX { Ok(layer) } else { Err(FrameError::Field("layer")) })
}

impl TrackInfo {
    /// Appends the entry of this track.
    pub fn encode(&self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(&self.handle.0.to_be_bytes());
        bytes.extend_from_slice(&self.generation.to_be_bytes());
        bytes.push(self.index);
        let flags = [self.is_audio, self.is_muted, self.is_participant].map(u8::from);
        let screen = u8::from(self.is_screen) << SCREEN_AT;
        bytes.push(screen | self.layers << LAYERS_AT | flags[2] << 2 | flags[1] << 1 | flags[0]);
        push_text(bytes, &self.room);
        push_text(bytes, &self.member);
    }

    /// Reads all entries of a table of tracks.
    ///
    /// Errors: [`FrameError`] for an entry that is cut short or has an invalid field.
    pub fn decode_all(entries: &[u8]) -> Result<Vec<Self>, FrameError> {
        let mut reader = Reader(entries);
        let mut tracks = Vec::new();
        while !reader.is_empty() {
            let (handle, generation, index) = (Handle(reader.u32()?), reader.u64()?, reader.u8()?);
            let flags = reader.u8()?;
            let (layers, room, member) =
                (flags >> LAYERS_AT & TRACK_LAYERS_BITS, reader.text(NAME_BYTES_MAX)?, reader.text(NAME_BYTES_MAX)?);
            if usize::from(layers) > LAYERS_MAX || room.is_empty() || member.is_empty() {
                return Err(FrameError::Field("track"));
            }
            let (room, member) = (room.into(), member.into());
            let [is_audio, is_muted, is_participant, is_screen] = [0, 1, 2, SCREEN_AT].map(|bit| flags >> bit & 1 == 1);
            tracks.push(Self {
                handle,
                generation,
                room,
                member,
                index,
                is_audio,
                is_muted,
                is_participant,
                is_screen,
                layers,
            });
        }
        Ok(tracks)
    }
}

impl Want {
    pub fn encode(&self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(&self.handle.0.to_be_bytes());
        bytes.push(self.layers.0 | (u8::from(self.has_priority) * PRIORITY));
    }

    /// Reads all entries of a table of wants or of carried layers.
    ///
    /// Errors: [`FrameError`] for an entry that is cut short or has an invalid field.
    pub fn decode_all(entries: &[u8]) -> Result<Vec<Self>, FrameError> {
        let mut reader = Reader(entries);
        let mut wants = Vec::new();
        while !reader.is_empty() {
            let (handle, flags) = (Handle(reader.u32()?), reader.u8()?);
            if flags & !PRIORITY & !LAYER_BITS != 0 {
                return Err(FrameError::Field("layers"));
            }
            wants.push(Self { handle, layers: Layers(flags & LAYER_BITS), has_priority: flags & PRIORITY != 0 });
        }
        Ok(wants)
    }
}

fn push_text(bytes: &mut Vec<u8>, text: &str) {
    let text = &text.as_bytes()[..text.len().min(NAME_BYTES_MAX)];
    bytes.push(text.len() as u8);
    bytes.extend_from_slice(text);
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], FrameError> {
        let (array, rest) = self.0.split_first_chunk().ok_or(FrameError::Short)?;
        self.0 = rest;
        Ok(*array)
    }

    fn u8(&mut self) -> Result<u8, FrameError> {
        self.array().map(|[byte]| byte)
    }

    fn u32(&mut self) -> Result<u32, FrameError> {
        self.array().map(u32::from_be_bytes)
    }

    fn u64(&mut self) -> Result<u64, FrameError> {
        self.array().map(u64::from_be_bytes)
    }

    fn text(&mut self, max: usize) -> Result<&'a str, FrameError> {
        let length = usize::from(self.u8()?);
        if length > max {
            return Err(FrameError::Field("text"));
        }
        let (text, rest) = self.0.split_at_checked(length).ok_or(FrameError::Short)?;
        self.0 = rest;
        std::str::from_utf8(text).map_err(|_| FrameError::Field("text"))
    }

    fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: Head = Head { epoch: 7, sequence: 1 << 40 };

    fn packet() -> Packet {
        Packet {
            layer: 2,
            codec: Codec::new(1).unwrap(),
            sequence: 0xffff_fff0,
            time: 90_000,
            marker: true,
            audio_level: None,
            orientation: Some(3),
            payload: [1, 2, 3].into(),
        }
    }

    #[test]
    fn encoded_frames_decode_to_same_contents() {
        let node = NodeId::new("0a1b").unwrap();
        let sound = Packet { audio_level: Some((20, true)), orientation: None, layer: 0, ..packet() };
        let sender = SenderReport { handle: Handle(9), layer: 1, rtp: 5, ntp: u64::MAX };
        for (bytes, body) in [
            (hello(HEAD, &node, 3), Body::Hello { node: node.clone(), known_epoch: 3 }),
            (media(HEAD, Handle(4), &packet()).unwrap(), Body::Media { handle: Handle(4), packet: packet() }),
            (media(HEAD, Handle(4), &sound).unwrap(), Body::Media { handle: Handle(4), packet: sound }),
            (nack(HEAD, &[5, 6, 70_000]), Body::Nack(vec![5, 6, 70_000])),
            (
                table(HEAD, Table::Wants, 8, (1, 2), &[1, 2]),
                Body::Table { table: Table::Wants, version: 8, part: 1, last_part: 2, entries: &[1, 2] },
            ),
            (ack(HEAD, Table::Carried, 8, 1), Body::Ack { table: Table::Carried, version: 8, part: 1 }),
            (keyframe(HEAD, Handle(1), 3), Body::Keyframe { handle: Handle(1), layer: 3 }),
            (rates(HEAD, &[(Handle(1), [1, 2, 3, 4])]), Body::Rates(vec![(Handle(1), [1, 2, 3, 4])])),
            (levels(HEAD, &[(Handle(1), 60)]), Body::Levels(vec![(Handle(1), 60)])),
            (sender_report(HEAD, sender), Body::SenderReport(sender)),
            (padding(HEAD, 100), Body::Padding),
        ] {
            assert_eq!(decode(&bytes), Ok((HEAD, body)));
            for length in 0..HEAD_BYTES {
                assert_eq!(decode(&bytes[..length]), Err(FrameError::Short));
            }
        }
    }

    #[test]
    fn report_keeps_arrival_times() {
        let times = [Some(1_000_000), None, Some(1_000_160), Some(9_000_000)];
        let bytes = report(HEAD, 77, 5, times.into_iter());
        let Ok((_, Body::Report(report))) = decode(&bytes) else { panic!() };
        let mut seen = Vec::new();
        report.for_each(|number, time| seen.push((number, time)));
        let latest = 1_000_000 + i64::from(MISSING - 1) * TICK_US;
        assert_eq!(seen, [(77, Some(1_000_000)), (78, None), (79, Some(1_000_160)), (80, Some(latest))]);
    }

    #[test]
    fn tables_decode_and_reject_bad_entries() {
        let track = TrackInfo {
            handle: Handle(1),
            generation: 5,
            room: "r".into(),
            member: "m".into(),
            index: 1,
            is_audio: false,
            is_muted: true,
            is_participant: true,
            is_screen: true,
            layers: 3,
        };
        let want = Want { handle: Handle(1), layers: Layers(5), has_priority: true };
        let (mut tracks, mut wants) = (Vec::new(), Vec::new());
        track.encode(&mut tracks);
        want.encode(&mut wants);
        assert_eq!(TrackInfo::decode_all(&tracks), Ok(vec![track]));
        assert_eq!(Want::decode_all(&wants), Ok(vec![want]));
        assert_eq!(TrackInfo::decode_all(&tracks[..tracks.len() - 1]), Err(FrameError::Short));
        tracks[13] = 5 << LAYERS_AT;
        assert_eq!(TrackInfo::decode_all(&tracks), Err(FrameError::Field("track")));
        wants[4] = 0x20;
        assert_eq!(Want::decode_all(&wants), Err(FrameError::Field("layers")));
    }

    #[test]
    fn frames_out_of_range_are_refused() {
        let good = media(HEAD, Handle(4), &packet()).unwrap();
        let with = |at: usize, byte: u8| {
            let mut bytes = good.clone();
            bytes[at] = byte;
            decode(&bytes).map(|_| ()).unwrap_err()
        };
        assert_eq!(with(0, FIRST_BYTE + 2), FrameError::Version(2));
        assert_eq!(with(0, 22), FrameError::FirstByte(22), "DTLS");
        assert_eq!(with(1, 15), FrameError::Type(15));
        assert_eq!(with(18, 4), FrameError::Field("layer"));
        assert_eq!(decode(&[FIRST_BYTE + VERSION; FRAME_BYTES_MAX + 1]), Err(FrameError::Long(FRAME_BYTES_MAX + 1)));
        let large = Packet { payload: vec![0; FRAME_BYTES_MAX].into(), ..packet() };
        assert_eq!(media(HEAD, Handle(4), &large), None);
    }
}
