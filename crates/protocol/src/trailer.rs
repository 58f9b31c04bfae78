//! The trailer of a publication: what follows its payload in memory and in engines. Most publications have none.
//!
//! ```text
//! trailer  trace context (25)                           the last byte, the flags of the trace, is below 128
//!          trace context (25)?, publisher (4)?,
//!            properties, length of the properties (2)?,
//!            flags (1)                                  128, + 64: trace, + 32: properties, + 16: retained,
//!                                                       + 8: publisher, + quality of service (0 to 2)
//! ```
//!
//! Numbers are big-endian. The length is found from the end, so that the payload needs no length.

use crate::trace::TraceContext;

/// Maximum length of a trailer in bytes. An engine in the network stores a publication with a longer one without it.
pub const TRAILER_BYTES_MAX: usize = u16::MAX as usize;

/// Maximum bytes of the properties of one publication.
pub const PROPERTIES_BYTES_MAX: usize = 32 * 1024;

const ATTRIBUTES: u8 = 1 << 7;
const TRACE: u8 = 1 << 6;
const PROPERTIES: u8 = 1 << 5;
const RETAINED: u8 = 1 << 4;
const PUBLISHER: u8 = 1 << 3;
const QOS: u8 = 0b11;

/// Fields of a publication that only MQTT uses. Other transports do not deliver them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attributes<'a> {
    /// Quality of service with which the publication was published, 0 to 2.
    pub qos: u8,
    /// True if the client has published it as retained.
    pub is_retained: bool,
    /// Session that has published it, if it has a subscription without its own publications; 0: none.
    pub publisher: u32,
    /// Properties for the receiver, in the encoding of MQTT 5, without their length.
    pub properties: &'a [u8],
}

/// Returns the length of the trailer at the end of these bytes.
pub(crate) fn bytes(whole: &[u8]) -> usize {
    wanted(whole).min(whole.len())
}

/// Returns true if these bytes are one trailer.
pub(crate) fn is_whole(trailer: &[u8]) -> bool {
    !trailer.is_empty() && wanted(trailer) == trailer.len()
}

fn wanted(whole: &[u8]) -> usize {
    let Some(&flags) = whole.last() else { return 0 };
    if flags & ATTRIBUTES == 0 {
        return TraceContext::BYTES;
    }
    let fixed =
        1 + if flags & PUBLISHER == 0 { 0 } else { 4 } + if flags & TRACE == 0 { 0 } else { TraceContext::BYTES };
    let properties = match flags & PROPERTIES {
        0 => 0,
        _ => 2 + whole[..whole.len() - 1].last_chunk().map_or(0, |length| u16::from_be_bytes(*length).into()),
    };
    fixed + properties
}

pub(crate) fn encode(trace: Option<TraceContext>, attributes: Option<Attributes<'_>>) -> Vec<u8> {
    let trace = trace.map(TraceContext::to_bytes);
    let flagged = trace.filter(|trace| trace[TraceContext::BYTES - 1] & ATTRIBUTES != 0);
    let Some(Attributes { qos, is_retained, publisher, properties }) =
        attributes.or(flagged.map(|_| Attributes { qos: QOS, ..Attributes::default() }))
    else {
        return trace.map_or_else(Vec::new, |trace| trace.to_vec());
    };
    let mut flags = ATTRIBUTES | (qos & QOS);
    let mut out = Vec::with_capacity(TraceContext::BYTES + 7 + properties.len());
    if let Some(trace) = trace {
        flags |= TRACE;
        out.extend_from_slice(&trace);
    }
    if publisher != 0 {
        flags |= PUBLISHER;
        out.extend_from_slice(&publisher.to_be_bytes());
    }
    if let Ok(length @ 1..) = u16::try_from(properties.len()) {
        flags |= PROPERTIES;
        out.extend_from_slice(properties);
        out.extend_from_slice(&length.to_be_bytes());
    }
    if is_retained {
        flags |= RETAINED;
    }
    out.push(flags);
    out
}

pub(crate) fn trace(trailer: &[u8]) -> Option<TraceContext> {
    match trailer.last()? & (ATTRIBUTES | TRACE) {
        ATTRIBUTES => None,
        _ => TraceContext::from_bytes(trailer.first_chunk::<{ TraceContext::BYTES }>()?).ok(),
    }
}

pub(crate) fn attributes(trailer: &[u8]) -> Option<Attributes<'_>> {
    let (&flags, rest) = trailer.split_last()?;
    if flags & ATTRIBUTES == 0 || flags & QOS == QOS {
        return None;
    }
    let rest = if flags & TRACE == 0 { rest } else { rest.get(TraceContext::BYTES..)? };
    let (publisher, rest) = match flags & PUBLISHER {
        0 => (0, rest),
        _ => rest.split_first_chunk().map(|(publisher, rest)| (u32::from_be_bytes(*publisher), rest))?,
    };
    let properties = if flags & PROPERTIES == 0 { &[][..] } else { &rest[..rest.len().checked_sub(2)?] };
    Some(Attributes { qos: flags & QOS, is_retained: flags & RETAINED != 0, publisher, properties })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Kind, NewPublication};

    #[test]
    fn attributes_and_trace_round_trip() {
        let trace = TraceContext { trace_id: [7; 16], span_id: [9; 8], flags: 1 };
        let full = Attributes { qos: 2, is_retained: true, publisher: 0x0102_0304, properties: b"\x26\0\x01a\0\x01b" };
        let all = [None, Some(Attributes::default()), Some(Attributes { qos: 1, ..full }), Some(full)];
        for attributes in all {
            for trace in [None, Some(trace), Some(TraceContext { flags: 0xff, ..trace })] {
                let mut publication = NewPublication::new(Kind::Text, "hello").traced(trace);
                if let Some(attributes) = attributes {
                    publication = publication.with_attributes(attributes);
                }
                assert_eq!(&*publication.data, b"hello", "{attributes:?} {trace:?}");
                assert_eq!((publication.attributes(), publication.trace()), (attributes, trace));
                let untraced = publication.clone().traced(None);
                assert_eq!(
                    (untraced.attributes(), untraced.trace(), &*untraced.data),
                    (attributes, None, &b"hello"[..])
                );
                let copy = NewPublication::new(Kind::Text, "hello").with_trailer(publication.trailer());
                assert_eq!((copy.attributes(), copy.trace(), &*copy.data), (attributes, trace, &b"hello"[..]));
            }
        }
    }

    #[test]
    fn publication_of_quality_zero_costs_one_byte() {
        assert_eq!(encode(None, Some(Attributes::default())), [ATTRIBUTES]);
    }

    #[test]
    fn malformed_trailer_is_dropped() {
        for trailer in [&[0xff][..], &[0xa0], &[1, 2, 0xe0], &[0; 24], &[0; 26]] {
            let publication = NewPublication::new(Kind::Text, "x").with_trailer(trailer);
            assert_eq!((&*publication.data, publication.trailer().len()), (&b"x"[..], 0), "{trailer:?}");
        }
    }
}
