//! Packets for clients.

use crate::{
    Reason,
    packet::{Version, kind, write_varint},
};

/// Identifiers of properties. Source: MQTT 5.0, section 2.2.2.2.
mod property {
    pub const EXPIRY: u8 = 0x02;
    pub const SUBSCRIPTION_IDENTIFIER: u8 = 0x0b;
    pub const SESSION_EXPIRY: u8 = 0x11;
    pub const ASSIGNED_CLIENT_IDENTIFIER: u8 = 0x12;
    pub const SERVER_KEEP_ALIVE: u8 = 0x13;
    pub const RECEIVE_MAXIMUM: u8 = 0x21;
    pub const ALIAS_MAXIMUM: u8 = 0x22;
    pub const ALIAS: u8 = 0x23;
    pub const MAXIMUM_PACKET_SIZE: u8 = 0x27;
}

/// Answer to a CONNECT that is accepted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConnAck<'a> {
    pub is_resumed: bool,
    /// Set if it differs from what the client has asked for.
    pub session_expiry_s: Option<u32>,
    /// Set if the server has chosen it.
    pub client_id: Option<&'a str>,
    /// Set if it differs from what the client has asked for.
    pub keep_alive_s: Option<u16>,
    pub receive_max: u16,
    pub alias_max: u16,
    pub packet_bytes_max: u32,
}

/// Appends the answer to a CONNECT that is accepted.
pub fn conn_ack(out: &mut Vec<u8>, version: Version, ack: &ConnAck<'_>) {
    let flags = u8::from(ack.is_resumed);
    if version == Version::V311 {
        return out.extend_from_slice(&[kind::CONNACK << 4, 2, flags, 0]);
    }
    let mut properties = Vec::with_capacity(64);
    if let Some(expiry_s) = ack.session_expiry_s {
        properties.push(property::SESSION_EXPIRY);
        properties.extend_from_slice(&expiry_s.to_be_bytes());
    }
    if let Some(client_id) = ack.client_id {
        properties.push(property::ASSIGNED_CLIENT_IDENTIFIER);
        write_text(&mut properties, client_id);
    }
    if let Some(keep_alive_s) = ack.keep_alive_s {
        properties.push(property::SERVER_KEEP_ALIVE);
        properties.extend_from_slice(&keep_alive_s.to_be_bytes());
    }
    properties.push(property::RECEIVE_MAXIMUM);
    properties.extend_from_slice(&ack.receive_max.to_be_bytes());
    properties.push(property::ALIAS_MAXIMUM);
    properties.extend_from_slice(&ack.alias_max.to_be_bytes());
    properties.push(property::MAXIMUM_PACKET_SIZE);
    properties.extend_from_slice(&ack.packet_bytes_max.to_be_bytes());
    let mut body = vec![flags, Reason::SUCCESS.0];
    write_varint(&mut body, properties.len());
    body.extend_from_slice(&properties);
    packet(out, kind::CONNACK << 4, &body);
}

/// Appends the answer to a CONNECT that is refused.
pub fn conn_refused(out: &mut Vec<u8>, version: Version, reason: Reason) {
    match version {
        Version::V311 => out.extend_from_slice(&[kind::CONNACK << 4, 2, 0, reason.to_return_code()]),
        Version::V5 => out.extend_from_slice(&[kind::CONNACK << 4, 3, 0, reason.0, 0]),
    }
}

/// Kind of an acknowledgement of a publication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ack {
    Puback,
    Pubrec,
    Pubrel,
    Pubcomp,
}

pub(crate) fn ack(out: &mut Vec<u8>, version: Version, ack: Ack, id: u16, reason: Reason) {
    let first = match ack {
        Ack::Puback => kind::PUBACK << 4,
        Ack::Pubrec => kind::PUBREC << 4,
        Ack::Pubrel => kind::PUBREL << 4 | 0b0010,
        Ack::Pubcomp => kind::PUBCOMP << 4,
    };
    let [high, low] = id.to_be_bytes();
    match version == Version::V5 && reason != Reason::SUCCESS {
        true => out.extend_from_slice(&[first, 3, high, low, reason.0]),
        false => out.extend_from_slice(&[first, 2, high, low]),
    }
}

/// Appends the answer to a SUBSCRIBE: per filter the granted quality of service, or the reason of the refusal.
pub fn sub_ack(out: &mut Vec<u8>, version: Version, id: u16, outcomes: &[Result<u8, Reason>]) {
    let mut body = id.to_be_bytes().to_vec();
    if version == Version::V5 {
        body.push(0);
    }
    body.extend(outcomes.iter().map(|outcome| match outcome {
        Ok(qos) => *qos,
        Err(_) if version == Version::V311 => Reason::UNSPECIFIED.0,
        Err(reason) => reason.0,
    }));
    packet(out, kind::SUBACK << 4, &body);
}

/// Appends the answer to an UNSUBSCRIBE.
pub fn unsub_ack(out: &mut Vec<u8>, version: Version, id: u16, outcomes: &[Reason]) {
    let mut body = id.to_be_bytes().to_vec();
    if version == Version::V5 {
        body.push(0);
        body.extend(outcomes.iter().map(|reason| reason.0));
    }
    packet(out, kind::UNSUBACK << 4, &body);
}

pub fn ping_resp(out: &mut Vec<u8>) {
    out.extend_from_slice(&[kind::PINGRESP << 4, 0]);
}

/// Appends the reason for which the server closes the connection. MQTT 3.1.1 has no such packet.
pub fn disconnect(out: &mut Vec<u8>, version: Version, reason: Reason) {
    if version == Version::V5 {
        out.extend_from_slice(&[kind::DISCONNECT << 4, 2, reason.0, 0]);
    }
}

/// PUBLISH to a client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outgoing<'a> {
    pub dup: bool,
    pub qos: u8,
    pub is_retained: bool,
    /// Empty if the alias stands for it.
    pub topic: &'a str,
    pub alias: Option<u16>,
    pub id: u16,
    pub expiry_s: Option<u32>,
    pub identifiers: &'a [u32],
    pub properties: &'a [u8],
    /// Trace context as a user property; empty: none.
    pub trace: &'a [u8],
    pub payload: &'a [u8],
}

impl Outgoing<'_> {
    fn properties_bytes(&self) -> usize {
        let varint = |value: u32| 1 + (32 - (value | 1).leading_zeros() as usize).div_ceil(7);
        self.alias.map_or(0, |_| 3)
            + self.expiry_s.map_or(0, |_| 5)
            + self.identifiers.iter().map(|identifier| varint(*identifier)).sum::<usize>()
            + self.properties.len()
            + self.trace.len()
    }

    /// Appends the packet, unless it has more than `bytes_max` bytes. Returns whether it was appended. A packet that is
    /// too large because of its trace context is appended without the context.
    pub fn encode(&self, out: &mut Vec<u8>, version: Version, bytes_max: u32) -> bool {
        let begin = out.len();
        let of_properties = if version == Version::V5 { self.properties_bytes() } else { 0 };
        let length_bytes = |length: usize| (usize::BITS - (length | 1).leading_zeros()).div_ceil(7) as usize;
        let mut length = 2 + self.topic.len() + self.payload.len() + if self.qos > 0 { 2 } else { 0 };
        if version == Version::V5 {
            length += length_bytes(of_properties) + of_properties;
        }
        if 1 + length_bytes(length) + length > bytes_max as usize || length >= 1 << 28 {
            return !self.trace.is_empty() && Self { trace: &[], ..*self }.encode(out, version, bytes_max);
        }
        out.reserve(5 + length);
        out.push(kind::PUBLISH << 4 | u8::from(self.dup) << 3 | self.qos << 1 | u8::from(self.is_retained));
        write_varint(out, length);
        write_text(out, self.topic);
        if self.qos > 0 {
            out.extend_from_slice(&self.id.to_be_bytes());
        }
        if version == Version::V5 {
            write_varint(out, of_properties);
            if let Some(alias) = self.alias {
                out.push(property::ALIAS);
                out.extend_from_slice(&alias.to_be_bytes());
            }
            if let Some(expiry_s) = self.expiry_s {
                out.push(property::EXPIRY);
                out.extend_from_slice(&expiry_s.to_be_bytes());
            }
            for identifier in self.identifiers {
                out.push(property::SUBSCRIPTION_IDENTIFIER);
                write_varint(out, *identifier as usize);
            }
            out.extend_from_slice(self.properties);
            out.extend_from_slice(self.trace);
        }
        out.extend_from_slice(self.payload);
        debug_assert_eq!(out.len() - begin, 1 + length_bytes(length) + length);
        true
    }
}

fn write_text(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(&(text.len() as u16).to_be_bytes());
    out.extend_from_slice(text.as_bytes());
}

fn packet(out: &mut Vec<u8>, first: u8, body: &[u8]) {
    out.push(first);
    write_varint(out, body.len());
    out.extend_from_slice(body);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn publish_has_the_size_that_it_announces() {
        let payload = vec![b'x'; 200];
        let packet = Outgoing {
            dup: true,
            qos: 1,
            is_retained: true,
            topic: "a/b",
            alias: Some(7),
            id: 9,
            expiry_s: Some(5),
            identifiers: &[1, 127, 128, 268_435_455],
            properties: b"\x01\x01",
            trace: b"",
            payload: &payload,
        };
        for version in [Version::V311, Version::V5] {
            let mut out = Vec::new();
            assert!(packet.encode(&mut out, version, u32::MAX));
            let bytes = out.len() as u32;
            assert!(packet.encode(&mut Vec::new(), version, bytes), "{version:?}");
            let mut none = Vec::new();
            assert!(!packet.encode(&mut none, version, bytes - 1) && none.is_empty(), "{version:?}");
        }
    }

    #[test]
    fn trace_context_gives_way_to_the_maximum_packet_size() {
        let untraced = Outgoing {
            dup: false,
            qos: 0,
            is_retained: false,
            topic: "a",
            alias: None,
            id: 0,
            expiry_s: None,
            identifiers: &[],
            properties: b"\x26\0\x01k\0\x01v",
            trace: b"",
            payload: b"x",
        };
        let traced = Outgoing { trace: b"\x26\0\x01t\0\x02tt", ..untraced };
        let encode = |packet: Outgoing<'_>, version, bytes_max| {
            let mut out = Vec::new();
            packet.encode(&mut out, version, bytes_max).then_some(out)
        };
        let (without, with) = (encode(untraced, Version::V5, 100).unwrap(), encode(traced, Version::V5, 100).unwrap());
        assert_eq!(with, [b"\x30\x14\0\x01a\x0f".as_slice(), traced.properties, traced.trace, b"x"].concat());
        let limit = with.len() as u32;
        assert_eq!(encode(traced, Version::V5, limit).as_ref(), Some(&with));
        assert_eq!(encode(traced, Version::V5, limit - 1).as_ref(), Some(&without));
        assert_eq!(encode(traced, Version::V5, without.len() as u32 - 1), None);
        assert_eq!(encode(traced, Version::V311, 100), encode(untraced, Version::V311, 100));
    }

    #[test]
    fn refusals_of_version_three_use_its_codes() {
        let mut out = Vec::new();
        conn_refused(&mut out, Version::V311, Reason::NOT_AUTHORIZED);
        sub_ack(&mut out, Version::V311, 1, &[Ok(1), Err(Reason::TOPIC_FILTER_INVALID)]);
        assert_eq!(out, [0x20, 2, 0, 5, 0x90, 4, 0, 1, 1, 0x80]);
        out.clear();
        sub_ack(&mut out, Version::V5, 1, &[Ok(1), Err(Reason::TOPIC_FILTER_INVALID)]);
        assert_eq!(out, [0x90, 5, 0, 1, 0, 1, 0x8f]);
    }
}
