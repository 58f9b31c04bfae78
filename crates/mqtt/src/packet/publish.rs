use millrace_protocol::{PROPERTIES_BYTES_MAX, TraceContext, encoding::record::TRACE_PROPERTY};

use super::{Version, varint};
use crate::Reason;

/// PUBLISH of a client. It borrows its topic and its payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Publish<'a> {
    pub dup: bool,
    pub qos: u8,
    pub is_retained: bool,
    /// Empty if the alias stands for it.
    pub topic: &'a str,
    pub alias: Option<u16>,
    /// 0 without quality of service.
    pub id: u16,
    pub expiry_s: Option<u32>,
    /// The payload is declared as UTF-8 text.
    pub is_text: bool,
    /// Properties for the receivers: all but the expiry, the alias and the trace context.
    pub properties: Vec<u8>,
    /// Context of the first user property [`TRACE_PROPERTY`], if it is a sampled one.
    pub trace: Option<TraceContext>,
    pub payload: &'a [u8],
}

/// Identifiers of the properties that a PUBLISH of a client may have. Source: MQTT 5.0, section 3.3.2.3.
mod property {
    pub const PAYLOAD_FORMAT: u8 = 0x01;
    pub const EXPIRY: u8 = 0x02;
    pub const CONTENT_TYPE: u8 = 0x03;
    pub const RESPONSE_TOPIC: u8 = 0x08;
    pub const CORRELATION_DATA: u8 = 0x09;
    pub const ALIAS: u8 = 0x23;
    pub const USER: u8 = 0x26;
}

impl<'a> Publish<'a> {
    /// Decodes the body of a PUBLISH.
    ///
    /// Errors: the reason to close the connection.
    pub fn decode(version: Version, flags: u8, body: &'a [u8]) -> Result<Self, Reason> {
        let (dup, qos, is_retained) = (flags & 8 != 0, flags >> 1 & 3, flags & 1 != 0);
        if qos == 3 || (qos == 0 && dup) {
            return Err(Reason::MALFORMED_PACKET);
        }
        let mut rest = body;
        let topic = text(&mut rest)?;
        let id = if qos > 0 { u16::from_be_bytes(*take(&mut rest)?) } else { 0 };
        if qos > 0 && id == 0 {
            return Err(Reason::MALFORMED_PACKET);
        }
        let mut publish = Self { dup, qos, is_retained, topic, id, ..Self::with_payload(&[]) };
        if version == Version::V5 {
            let (length, taken) = varint::read(rest).ok().flatten().ok_or(Reason::MALFORMED_PACKET)?;
            let (properties, payload) =
                rest[taken..].split_at_checked(length as usize).ok_or(Reason::MALFORMED_PACKET)?;
            publish.read_properties(properties)?;
            rest = payload;
        }
        publish.payload = rest;
        if publish.is_text && std::str::from_utf8(rest).is_err() {
            return Err(Reason::PAYLOAD_FORMAT_INVALID);
        }
        Ok(publish)
    }

    /// A packet with default fields, such as a will has them.
    pub(super) fn with_payload(payload: &'a [u8]) -> Self {
        Self {
            dup: false,
            qos: 0,
            is_retained: false,
            topic: "",
            alias: None,
            id: 0,
            expiry_s: None,
            is_text: false,
            properties: Vec::new(),
            trace: None,
            payload,
        }
    }

    /// Reads the properties of a PUBLISH or of a will.
    pub(super) fn read_properties(&mut self, properties: &[u8]) -> Result<(), Reason> {
        let (mut rest, mut seen, mut has_trace) = (properties, 0_u64, false);
        while let Some((&id, after)) = rest.split_first() {
            let before = rest;
            rest = after;
            let is_kept = match id {
                property::PAYLOAD_FORMAT => {
                    match take(&mut rest)? {
                        [0] => {}
                        [1] => self.is_text = true,
                        _ => return Err(Reason::PROTOCOL_ERROR),
                    }
                    true
                }
                property::EXPIRY => {
                    self.expiry_s = Some(u32::from_be_bytes(*take(&mut rest)?));
                    false
                }
                property::CONTENT_TYPE => text(&mut rest).map(|_| true)?,
                property::RESPONSE_TOPIC => {
                    let topic = text(&mut rest)?;
                    if topic.is_empty() || topic.contains(['+', '#']) {
                        return Err(Reason::PROTOCOL_ERROR);
                    }
                    true
                }
                property::CORRELATION_DATA => binary(&mut rest).map(|_| true)?,
                property::ALIAS => {
                    self.alias = Some(u16::from_be_bytes(*take(&mut rest)?));
                    false
                }
                property::USER => {
                    let (name, value) = (text(&mut rest)?, text(&mut rest)?);
                    let is_trace = name == TRACE_PROPERTY;
                    if is_trace && !has_trace {
                        has_trace = true;
                        self.trace = TraceContext::parse(value.as_bytes()).ok();
                    }
                    !is_trace
                }
                // A client must not send a subscription identifier.
                _ => return Err(Reason::PROTOCOL_ERROR),
            };
            let bit = 1 << id;
            if id != property::USER && seen & bit != 0 {
                return Err(Reason::PROTOCOL_ERROR);
            }
            seen |= bit;
            if is_kept {
                self.properties.extend_from_slice(&before[..before.len() - rest.len()]);
            }
        }
        if self.properties.len() > PROPERTIES_BYTES_MAX { Err(Reason::PACKET_TOO_LARGE) } else { Ok(()) }
    }
}

fn take<'a, const N: usize>(bytes: &mut &'a [u8]) -> Result<&'a [u8; N], Reason> {
    let (taken, rest) = bytes.split_first_chunk().ok_or(Reason::MALFORMED_PACKET)?;
    *bytes = rest;
    Ok(taken)
}

fn binary<'a>(bytes: &mut &'a [u8]) -> Result<&'a [u8], Reason> {
    let length = u16::from_be_bytes(*take(bytes)?);
    let (taken, rest) = bytes.split_at_checked(length.into()).ok_or(Reason::MALFORMED_PACKET)?;
    *bytes = rest;
    Ok(taken)
}

/// Takes a string. Source: MQTT 5.0, section 1.5.4.
fn text<'a>(bytes: &mut &'a [u8]) -> Result<&'a str, Reason> {
    let text = std::str::from_utf8(binary(bytes)?).map_err(|_| Reason::MALFORMED_PACKET)?;
    if text.contains('\0') { Err(Reason::MALFORMED_PACKET) } else { Ok(text) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn publish_is_decoded() {
        let body = b"\0\x01a\0\x09\x12\x02\0\0\0\x05\x23\0\x02\x01\x01\x26\0\x01k\0\x01vhi";
        let publish = Publish::decode(Version::V5, 0b0101, body);
        // The length of the properties is wrong: 17 bytes.
        assert!(publish.is_err());
        let body = b"\0\x01a\0\x09\x11\x02\0\0\0\x05\x23\0\x02\x01\x01\x26\0\x01k\0\x01vhi";
        let publish = Publish::decode(Version::V5, 0b0011, body).unwrap();
        let expected = Publish {
            dup: false,
            qos: 1,
            is_retained: true,
            topic: "a",
            alias: Some(2),
            id: 9,
            expiry_s: Some(5),
            is_text: true,
            properties: b"\x01\x01\x26\0\x01k\0\x01v".to_vec(),
            trace: None,
            payload: b"hi",
        };
        assert_eq!(publish, expected);
        let v4 = Publish::decode(Version::V311, 0, b"\0\x01a\0").unwrap();
        assert_eq!((v4.topic, v4.payload), ("a", &[0][..]));
    }

    /// Encodes a PUBLISH with these user properties.
    fn with_user_properties(all: &[(&str, &str)]) -> Vec<u8> {
        let mut properties = Vec::new();
        for (name, value) in all {
            properties.push(property::USER);
            for text in [name, value] {
                properties.extend_from_slice(&(text.len() as u16).to_be_bytes());
                properties.extend_from_slice(text.as_bytes());
            }
        }
        let mut body = b"\0\x01a".to_vec();
        varint::write_varint(&mut body, properties.len());
        [&body[..], &properties, b"hi"].concat()
    }

    #[test]
    fn trace_context_is_taken_out_of_user_properties() {
        let context = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let other = context.replace("b7-01", "b8-01");
        let unsampled = context.replace("-01", "-00");
        for (values, trace) in [
            (&[context][..], Some(context)),
            (&[context, &other], Some(context)),
            (&["malformed", context], None),
            (&[&unsampled], None),
            (&[""], None),
            (&[], None),
        ] {
            let traces = values.iter().map(|value| (TRACE_PROPERTY, *value));
            let all: Vec<_> = [("before", "1")].into_iter().chain(traces).chain([("after", "2")]).collect();
            let body = with_user_properties(&all);
            let publish = Publish::decode(Version::V5, 0, &body).unwrap();
            assert_eq!(publish.trace, trace.map(|trace| trace.parse().unwrap()), "{values:?}");
            let kept = &with_user_properties(&[("before", "1"), ("after", "2")])[4..];
            assert_eq!([&publish.properties[..], publish.payload].concat(), kept, "{values:?}");
        }
        // The name is compared exactly, as MQTT compares names.
        let body = with_user_properties(&[("Traceparent", context)]);
        let publish = Publish::decode(Version::V5, 0, &body).unwrap();
        assert!(publish.trace.is_none() && !publish.properties.is_empty());
    }

    #[test]
    fn malformed_publish_is_refused() {
        for (flags, body) in [
            (0b0110, &b"\0\x01a\0\x01\0"[..]),
            (0b1000, b"\0\x01a\0"),
            (0b0010, b"\0\x01a\0\0\0"),
            (0b0010, b"\0\x01a\0"),
            (0, b"\0\x02a"),
            (0, b"\0\x01\xff\0"),
            (0, b"\0\x01\0\0"),
            (0, b"\0\x01a\x02\x01\x02"),
            (0, b"\0\x01a\x04\x01\x01\x01\x01x"),
            (0, b"\0\x01a\x02\x0b\x01"),
            (0, b"\0\x01a\x02\x01\x01\xff"),
            (0, b"\0\x01a\x80"),
        ] {
            assert!(Publish::decode(Version::V5, flags, body).is_err(), "{flags:#b} {body:?}");
        }
    }
}
