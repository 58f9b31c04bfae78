//! Packets of clients, from bytes. The library `mqtt-protocol-core` decodes all of them except PUBLISH, which this
//! crate decodes without copying its payload.

mod connect;
mod publish;
mod varint;

use mqtt_protocol_core::mqtt::packet::{Property, SubEntry, v3_1_1 as v4, v5_0 as v5};

pub use connect::{Connect, ConnectError, ConnectWill};
pub use publish::Publish;
pub(crate) use varint::write_varint;

use crate::Reason;

/// Protocol version of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// MQTT 3.1.1.
    V311,
    V5,
}

/// Packet of a client, except CONNECT.
#[derive(Debug, PartialEq, Eq)]
pub enum Packet<'a> {
    Publish(Publish<'a>),
    PubAck { id: u16 },
    PubRec { id: u16, is_error: bool },
    PubRel { id: u16 },
    PubComp { id: u16 },
    Subscribe { id: u16, identifier: u32, filters: Vec<(String, Options)> },
    Unsubscribe { id: u16, filters: Vec<String> },
    PingReq,
    Disconnect { reason: Reason, session_expiry_s: Option<u32> },
}

/// Options of a subscription.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Maximum quality of service, 0 to 2.
    pub qos: u8,
    /// Publications of the session itself are not delivered.
    pub no_local: bool,
    /// Publications keep their retain flag.
    pub retain_as_published: bool,
    /// 0: retained publications are sent; 1: only for a new subscription; 2: never.
    pub retain_handling: u8,
}

/// Type of a packet, the upper four bits of its first byte.
pub(crate) mod kind {
    pub const CONNECT: u8 = 1;
    pub const CONNACK: u8 = 2;
    pub const PUBLISH: u8 = 3;
    pub const PUBACK: u8 = 4;
    pub const PUBREC: u8 = 5;
    pub const PUBREL: u8 = 6;
    pub const PUBCOMP: u8 = 7;
    pub const SUBSCRIBE: u8 = 8;
    pub const SUBACK: u8 = 9;
    pub const UNSUBSCRIBE: u8 = 10;
    pub const UNSUBACK: u8 = 11;
    pub const PINGREQ: u8 = 12;
    pub const PINGRESP: u8 = 13;
    pub const DISCONNECT: u8 = 14;
}

/// A whole packet: its first byte, the bytes after its length, and its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    pub first: u8,
    pub body: &'a [u8],
    pub bytes: usize,
}

impl<'a> Frame<'a> {
    /// Returns the first packet of `input`, or `None` while it is incomplete.
    ///
    /// Errors: [`Reason::MALFORMED_PACKET`] for a length of more than four bytes; [`Reason::PACKET_TOO_LARGE`] for a
    /// packet of more than `bytes_max` bytes.
    pub fn decode(input: &'a [u8], bytes_max: usize) -> Result<Option<Self>, Reason> {
        let Some((&first, rest)) = input.split_first() else { return Ok(None) };
        let Some((length, taken)) = varint::read(rest).map_err(|()| Reason::MALFORMED_PACKET)? else {
            return Ok(None);
        };
        let bytes = 1 + taken + length as usize;
        if bytes > bytes_max {
            return Err(Reason::PACKET_TOO_LARGE);
        }
        Ok(input.get(1 + taken..bytes).map(|body| Self { first, body, bytes }))
    }

    pub fn is_connect(&self) -> bool {
        self.first == kind::CONNECT << 4
    }
}

impl<'a> Packet<'a> {
    /// Decodes a packet of a connected client.
    ///
    /// Errors: the reason to close the connection: malformed packets, and packets that a client must not send.
    pub fn decode(version: Version, frame: Frame<'a>) -> Result<Self, Reason> {
        let Frame { first, body, .. } = frame;
        let (kind, flags) = (first >> 4, first & 0x0f);
        if kind == kind::PUBLISH {
            return Publish::decode(version, flags, body).map(Packet::Publish);
        }
        let wanted = if matches!(kind, kind::PUBREL | kind::SUBSCRIBE | kind::UNSUBSCRIBE) { 0b0010 } else { 0 };
        if flags != wanted {
            return Err(Reason::MALFORMED_PACKET);
        }
        let packet = match version {
            Version::V311 => Self::decode_v4(kind, body),
            Version::V5 => Self::decode_v5(kind, body),
        };
        packet.and_then(Self::check)
    }

    fn decode_v4(kind: u8, body: &[u8]) -> Result<Self, Reason> {
        Ok(match kind {
            kind::PUBACK => Packet::PubAck { id: whole(body, v4::Puback::parse(body))?.packet_id() },
            kind::PUBREC => Packet::PubRec { id: whole(body, v4::Pubrec::parse(body))?.packet_id(), is_error: false },
            kind::PUBREL => Packet::PubRel { id: whole(body, v4::Pubrel::parse(body))?.packet_id() },
            kind::PUBCOMP => Packet::PubComp { id: whole(body, v4::Pubcomp::parse(body))?.packet_id() },
            kind::SUBSCRIBE => {
                let packet = whole(body, v4::Subscribe::parse(body))?;
                let filters: Vec<_> = packet.entries().iter().map(filter).collect();
                // The other bits are reserved in this version.
                if filters.iter().any(|(_, options)| *options != Options { qos: options.qos, ..Options::default() }) {
                    return Err(Reason::MALFORMED_PACKET);
                }
                Packet::Subscribe { id: packet.packet_id(), identifier: 0, filters }
            }
            kind::UNSUBSCRIBE => {
                let packet = whole(body, v4::Unsubscribe::parse(body))?;
                let filters = packet.entries().iter().map(|filter| filter.as_str().to_owned()).collect();
                Packet::Unsubscribe { id: packet.packet_id(), filters }
            }
            kind::PINGREQ if body.is_empty() => Packet::PingReq,
            kind::DISCONNECT if body.is_empty() => {
                Packet::Disconnect { reason: Reason::SUCCESS, session_expiry_s: None }
            }
            kind::PINGREQ | kind::DISCONNECT => return Err(Reason::MALFORMED_PACKET),
            _ => return Err(Reason::PROTOCOL_ERROR),
        })
    }

    fn decode_v5(kind: u8, body: &[u8]) -> Result<Self, Reason> {
        Ok(match kind {
            kind::PUBACK => Packet::PubAck { id: whole(body, v5::Puback::parse(body))?.packet_id() },
            kind::PUBREC => {
                let packet = whole(body, v5::Pubrec::parse(body))?;
                let is_error = packet.reason_code().is_some_and(|reason| reason as u8 >= 0x80);
                Packet::PubRec { id: packet.packet_id(), is_error }
            }
            kind::PUBREL => Packet::PubRel { id: whole(body, v5::Pubrel::parse(body))?.packet_id() },
            kind::PUBCOMP => Packet::PubComp { id: whole(body, v5::Pubcomp::parse(body))?.packet_id() },
            kind::SUBSCRIBE => {
                let packet = whole(body, v5::Subscribe::parse(body))?;
                let identifier = |property: &Property| match property {
                    Property::SubscriptionIdentifier(identifier) => Some(identifier.val()),
                    _ => None,
                };
                let identifiers: Vec<u32> = packet.props().iter().filter_map(identifier).collect();
                if identifiers.len() > 1 || identifiers == [0] {
                    return Err(Reason::PROTOCOL_ERROR);
                }
                let identifier = identifiers.first().copied().unwrap_or(0);
                Packet::Subscribe {
                    id: packet.packet_id(),
                    identifier,
                    filters: packet.entries().iter().map(filter).collect(),
                }
            }
            kind::UNSUBSCRIBE => {
                let packet = whole(body, v5::Unsubscribe::parse(body))?;
                let filters = packet.entries().iter().map(|filter| filter.as_str().to_owned()).collect();
                Packet::Unsubscribe { id: packet.packet_id(), filters }
            }
            kind::PINGREQ if body.is_empty() => Packet::PingReq,
            kind::PINGREQ => return Err(Reason::MALFORMED_PACKET),
            kind::DISCONNECT => {
                let packet = whole(body, v5::Disconnect::parse(body))?;
                let reason = packet.reason_code().map_or(Reason::SUCCESS, |reason| Reason(reason as u8));
                let expiry = |property: &Property| match property {
                    Property::SessionExpiryInterval(expiry) => Some(expiry.val()),
                    _ => None,
                };
                let session_expiry_s = packet.props().iter().flatten().find_map(expiry);
                Packet::Disconnect { reason, session_expiry_s }
            }
            // No authentication method was agreed upon.
            _ => return Err(Reason::PROTOCOL_ERROR),
        })
    }

    fn check(self) -> Result<Self, Reason> {
        let id = match &self {
            Packet::PubAck { id }
            | Packet::PubRec { id, .. }
            | Packet::PubRel { id }
            | Packet::PubComp { id }
            | Packet::Subscribe { id, .. }
            | Packet::Unsubscribe { id, .. } => *id,
            Packet::Publish(_) | Packet::PingReq | Packet::Disconnect { .. } => return Ok(self),
        };
        if id == 0 { Err(Reason::MALFORMED_PACKET) } else { Ok(self) }
    }
}

fn filter(entry: &SubEntry) -> (String, Options) {
    let options = entry.sub_opts();
    let options = Options {
        qos: options.qos() as u8,
        no_local: options.nl(),
        retain_as_published: options.rap(),
        retain_handling: options.rh() as u8,
    };
    (entry.topic_filter().to_owned(), options)
}

/// Returns the packet if it takes all bytes of the body.
fn whole<P, E>(body: &[u8], parsed: Result<(P, usize), E>) -> Result<P, Reason> {
    match parsed {
        Ok((packet, taken)) if taken == body.len() => Ok(packet),
        _ => Err(Reason::MALFORMED_PACKET),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(version: Version, bytes: &[u8]) -> Result<Packet<'_>, Reason> {
        Packet::decode(version, Frame::decode(bytes, 1 << 20)?.unwrap())
    }

    #[test]
    fn frames_are_cut_at_their_length() {
        assert_eq!(Frame::decode(&[0xc0], 10), Ok(None));
        assert_eq!(Frame::decode(&[0x30, 3, 0, 1], 10), Ok(None));
        let frame = Frame::decode(&[0x30, 3, 0, 1, b'a', 0xc0], 10).unwrap().unwrap();
        assert_eq!((frame.first, frame.body, frame.bytes), (0x30, &[0, 1, b'a'][..], 5));
        assert_eq!(Frame::decode(&[0x30, 9], 10), Err(Reason::PACKET_TOO_LARGE));
        assert_eq!(Frame::decode(&[0x30, 0xff, 0xff, 0xff, 0xff], 10), Err(Reason::MALFORMED_PACKET));
    }

    #[test]
    fn subscribe_is_decoded_in_both_versions() {
        let filters = vec![("a/+".to_owned(), Options { qos: 1, ..Options::default() })];
        let v4 = decode(Version::V311, &[0x82, 8, 0, 7, 0, 3, b'a', b'/', b'+', 1]);
        assert_eq!(v4, Ok(Packet::Subscribe { id: 7, identifier: 0, filters }));
        let options = Options { qos: 2, no_local: true, retain_as_published: true, retain_handling: 2 };
        let filters = vec![("a".to_owned(), options)];
        let v5 = decode(Version::V5, &[0x82, 9, 0, 7, 2, 0x0b, 5, 0, 1, b'a', 0b10_1110]);
        assert_eq!(v5, Ok(Packet::Subscribe { id: 7, identifier: 5, filters }));
        for malformed in [&[0x80, 6, 0, 7, 0, 1, b'a', 1][..], &[0x82, 6, 0, 7, 0, 1, b'a', 4], &[0x82, 2, 0, 7]] {
            assert!(decode(Version::V311, malformed).is_err(), "{malformed:?}");
        }
    }

    #[test]
    fn malformed_packets_are_refused() {
        for bytes in [
            &[0x40, 2, 0, 0][..],
            &[0x40, 1, 0],
            &[0x60, 2, 0, 1],
            &[0xc0, 1, 0],
            &[0xc1, 0],
            &[0xf0, 0],
            &[0x20, 2, 0, 0],
            &[0x10, 0],
            &[0x00, 0],
        ] {
            for version in [Version::V311, Version::V5] {
                assert!(decode(version, bytes).is_err(), "{bytes:?}");
            }
        }
    }
}
