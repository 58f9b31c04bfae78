//! Records: publications and events between a hub and an MQTT session of the same process. They never leave it.
//!
//! ```text
//! record       length of the rest (4), kind (1), rest
//! publication  epoch (4), offset (8), time (8), expiry (8; 0: none), quality of service (1; 3: any),
//!              flags (1; 1: retained, 2: trace), publisher (4), length of the name (1), length of the properties (2),
//!              name, properties, trace (71)?, payload
//! gap          epoch (4), offset (8) of its end, name
//! close        code (2)
//! ```
//!
//! A session adds what differs per client: packet identifier, quality of service, aliases, subscription identifiers.

use crate::{ChannelName, Epoch, Position, Publication, TraceContext};

const PUBLICATION: u8 = 1;
const GAP: u8 = 2;
const CLOSE: u8 = 3;

/// Bytes of a record of a publication before its name.
const HEAD_BYTES: usize = 4 + 1 + 4 + 8 + 8 + 8 + 1 + 1 + 4 + 1 + 2;

/// Flags of a publication.
const RETAINED: u8 = 1;
const TRACE: u8 = 1 << 1;

/// Name of the user property that holds a trace context.
///
/// Source: docs/reference/protocol.md, "Trace contexts".
pub const TRACE_PROPERTY: &str = "traceparent";
/// Identifier of a user property. Source: MQTT 5.0, section 2.2.2.2.
const USER_PROPERTY: u8 = 0x26;
/// Bytes that [`encode_trace`] appends.
const TRACE_PROPERTY_BYTES: usize = 1 + 2 + TRACE_PROPERTY.len() + 2 + TraceContext::TEXT_BYTES;

/// Quality of service of a publication of another transport: each subscription gets its own.
pub const QOS_ANY: u8 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record<'a> {
    Publication(PublicationRecord<'a>),
    /// Publications up to this position are missing.
    Gap {
        channel: &'a str,
        to: Position,
    },
    /// The connection ends, with a close code of a WebSocket or a reason code of MQTT.
    Close(u16),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PublicationRecord<'a> {
    pub channel: &'a str,
    pub position: Position,
    pub time_ms: u64,
    pub expires_ms: Option<u64>,
    /// 0 to 2, or [`QOS_ANY`].
    pub qos: u8,
    pub is_retained: bool,
    pub publisher: u32,
    pub properties: &'a [u8],
    /// Trace context as a user property; empty: none.
    pub trace: &'a [u8],
    pub payload: &'a [u8],
}

pub fn encode_publication(out: &mut Vec<u8>, channel: &ChannelName, epoch: Epoch, publication: &Publication) {
    let (name, payload, attributes) = (channel.as_str(), publication.data(), publication.attributes());
    let (qos, is_retained, publisher, properties) =
        attributes.map_or((QOS_ANY, false, 0, &[][..]), |a| (a.qos, a.is_retained, a.publisher, a.properties));
    let trace = publication.trace();
    let mut head = [0; HEAD_BYTES];
    let trace_bytes = if trace.is_some() { TRACE_PROPERTY_BYTES } else { 0 };
    let length = HEAD_BYTES - 4 + name.len() + properties.len() + trace_bytes + payload.len();
    head[..4].copy_from_slice(&(length as u32).to_be_bytes());
    head[4] = PUBLICATION;
    head[5..9].copy_from_slice(&epoch.0.to_be_bytes());
    head[9..17].copy_from_slice(&publication.offset.to_be_bytes());
    head[17..25].copy_from_slice(&publication.time_ms.to_be_bytes());
    head[25..33].copy_from_slice(&publication.expires_ms.unwrap_or(0).to_be_bytes());
    head[33] = qos;
    head[34] = if is_retained { RETAINED } else { 0 } | if trace.is_some() { TRACE } else { 0 };
    head[35..39].copy_from_slice(&publisher.to_be_bytes());
    head[39] = name.len() as u8;
    head[40..].copy_from_slice(&(properties.len() as u16).to_be_bytes());
    out.reserve(4 + length);
    out.extend_from_slice(&head);
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(properties);
    if let Some(trace) = trace {
        encode_trace(out, trace);
    }
    out.extend_from_slice(payload);
}

/// Appends a trace context as a user property of MQTT 5.
pub fn encode_trace(out: &mut Vec<u8>, trace: TraceContext) {
    out.push(USER_PROPERTY);
    out.extend_from_slice(&(TRACE_PROPERTY.len() as u16).to_be_bytes());
    out.extend_from_slice(TRACE_PROPERTY.as_bytes());
    out.extend_from_slice(&(TraceContext::TEXT_BYTES as u16).to_be_bytes());
    trace.write(out);
}

pub fn encode_gap(out: &mut Vec<u8>, channel: &ChannelName, to: Position) {
    let name = channel.as_str();
    out.extend_from_slice(&(13 + name.len() as u32).to_be_bytes());
    out.push(GAP);
    out.extend_from_slice(&to.epoch.0.to_be_bytes());
    out.extend_from_slice(&to.offset.to_be_bytes());
    out.extend_from_slice(name.as_bytes());
}

pub fn encode_close(out: &mut Vec<u8>, code: u16) {
    out.extend_from_slice(&3_u32.to_be_bytes());
    out.push(CLOSE);
    out.extend_from_slice(&code.to_be_bytes());
}

impl<'a> Record<'a> {
    /// Decodes the first record. Returns it with its length, or `None` if it is incomplete.
    pub fn decode(bytes: &'a [u8]) -> Option<(Self, usize)> {
        let (length, rest) = bytes.split_first_chunk()?;
        let length = u32::from_be_bytes(*length) as usize;
        let (&kind, rest) = rest.get(..length)?.split_first()?;
        let record = match kind {
            PUBLICATION => Self::publication(rest)?,
            GAP => {
                let (to, name) = position(rest)?;
                Record::Gap { channel: std::str::from_utf8(name).ok()?, to }
            }
            _ => Record::Close(u16::from_be_bytes(*rest.first_chunk()?)),
        };
        Some((record, 4 + length))
    }

    fn publication(rest: &'a [u8]) -> Option<Self> {
        let (position, rest) = position(rest)?;
        let (time_ms, rest) = rest.split_first_chunk()?;
        let (expires_ms, rest) = rest.split_first_chunk()?;
        let ([qos, flags], rest) = rest.split_first_chunk()?;
        let (publisher, rest) = rest.split_first_chunk()?;
        let (&name, rest) = rest.split_first()?;
        let (properties, rest) = rest.split_first_chunk()?;
        let (name, rest) = rest.split_at_checked(name.into())?;
        let (properties, rest) = rest.split_at_checked(u16::from_be_bytes(*properties).into())?;
        let (trace, payload) = rest.split_at_checked(if flags & TRACE == 0 { 0 } else { TRACE_PROPERTY_BYTES })?;
        let expires_ms = u64::from_be_bytes(*expires_ms);
        Some(Record::Publication(PublicationRecord {
            channel: std::str::from_utf8(name).ok()?,
            position,
            time_ms: u64::from_be_bytes(*time_ms),
            expires_ms: (expires_ms > 0).then_some(expires_ms),
            qos: *qos,
            is_retained: flags & RETAINED != 0,
            publisher: u32::from_be_bytes(*publisher),
            properties,
            trace,
            payload,
        }))
    }
}

fn position(bytes: &[u8]) -> Option<(Position, &[u8])> {
    let (epoch, rest) = bytes.split_first_chunk()?;
    let (offset, rest) = rest.split_first_chunk()?;
    Some((Position { epoch: Epoch(u32::from_be_bytes(*epoch)), offset: u64::from_be_bytes(*offset) }, rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Attributes, Kind, NewPublication, PublicationHead};

    #[test]
    fn records_round_trip() {
        let channel = ChannelName::parse("a/b").unwrap();
        let attributes = Attributes { qos: 1, is_retained: true, publisher: 9, properties: b"\x01\x01" };
        let trace = TraceContext { trace_id: [7; 16], span_id: [9; 8], flags: 1 };
        let new = NewPublication::new(Kind::Binary, [0, 255, 7]).traced(Some(trace)).with_attributes(attributes);
        let (key, is_traced, is_deletion) = Default::default();
        let head = PublicationHead {
            offset: 7,
            time_ms: 5,
            expires_ms: Some(9),
            kind: Kind::Binary,
            key,
            is_traced,
            is_deletion,
        };
        let publication = Publication::placed(head, new.data);
        let mut bytes = Vec::new();
        encode_publication(&mut bytes, &channel, Epoch(3), &publication);
        let first = bytes.len();
        let to = Position { epoch: Epoch(3), offset: 6 };
        encode_gap(&mut bytes, &channel, to);
        encode_close(&mut bytes, 1012);
        let (record, length) = Record::decode(&bytes).unwrap();
        assert_eq!(length, first);
        let expected = PublicationRecord {
            channel: "a/b",
            position: Position { epoch: Epoch(3), offset: 7 },
            time_ms: 5,
            expires_ms: Some(9),
            qos: 1,
            is_retained: true,
            publisher: 9,
            properties: b"\x01\x01",
            trace: b"\x26\0\x0btraceparent\0\x3700-07070707070707070707070707070707-0909090909090909-01",
            payload: &[0, 255, 7],
        };
        assert_eq!(record, Record::Publication(expected));
        let (gap, length) = Record::decode(&bytes[first..]).unwrap();
        assert_eq!(gap, Record::Gap { channel: "a/b", to });
        assert_eq!(Record::decode(&bytes[first + length..]).unwrap(), (Record::Close(1012), 7));
        for cut in 0..first {
            assert_eq!(Record::decode(&bytes[..cut]), None, "{cut}");
        }
    }
}
