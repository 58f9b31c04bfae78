use millrace_protocol::TraceContext;
use mqtt_protocol_core::mqtt::packet::{Property, v3_1_1::Connect as ConnectV4, v5_0::Connect as ConnectV5};
use mqtt_protocol_core::mqtt::result_code::MqttError;

use super::{Frame, Publish, Version};
use crate::Reason;

/// CONNECT of a client, the first packet of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connect {
    pub version: Version,
    /// Empty if the server must choose it.
    pub client_id: String,
    /// The client begins a new session.
    pub is_clean: bool,
    /// Maximum seconds between two packets of the client; 0: no limit.
    pub keep_alive_s: u16,
    /// Seconds for which the session outlives its connection; `u32::MAX`: without end.
    pub session_expiry_s: u32,
    /// Maximum number of publications with quality of service that the client takes unacknowledged.
    pub receive_max: u16,
    /// Maximum size of a packet for the client.
    pub packet_bytes_max: u32,
    /// Maximum topic alias for the client.
    pub alias_max: u16,
    pub user_name: Option<String>,
    pub password: Option<Vec<u8>>,
    pub will: Option<ConnectWill>,
}

/// Publication for the case that the connection ends without DISCONNECT.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectWill {
    pub topic: String,
    pub qos: u8,
    pub is_retained: bool,
    pub delay_s: u32,
    pub expiry_s: Option<u32>,
    /// Properties for the receivers.
    pub properties: Vec<u8>,
    pub trace: Option<TraceContext>,
    pub payload: Vec<u8>,
}

/// Refused CONNECT. The answer has the version of the client as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectError {
    /// `None`: the client speaks no MQTT, or an unknown version, so the connection closes without an answer.
    pub version: Option<Version>,
    pub reason: Reason,
}

impl Connect {
    /// Decodes the first packet of a connection.
    ///
    /// Errors: the reason of the refusal.
    pub fn decode(frame: Frame<'_>) -> Result<Self, ConnectError> {
        let refused = |version, reason| ConnectError { version, reason };
        if !frame.is_connect() {
            return Err(refused(None, Reason::PROTOCOL_ERROR));
        }
        let head = frame.body.first_chunk::<8>().ok_or(refused(None, Reason::MALFORMED_PACKET))?;
        let version = match head {
            [0, 4, b'M', b'Q', b'T', b'T', 4, _] => Version::V311,
            [0, 4, b'M', b'Q', b'T', b'T', 5, _] => Version::V5,
            // A client of MQTT 3.1 (`MQIsdp`) or of a future version understands the answer of MQTT 3.1.1.
            [0, 6, b'M', b'Q', b'I', b's', b'd', b'p'] | [0, 4, b'M', b'Q', b'T', b'T', ..] => {
                return Err(refused(Some(Version::V311), Reason::UNSUPPORTED_PROTOCOL_VERSION));
            }
            _ => return Err(refused(None, Reason::PROTOCOL_ERROR)),
        };
        let connect = match version {
            Version::V311 => decode_v4(frame.body),
            Version::V5 => decode_v5(frame.body),
        };
        connect.map_err(|reason| refused(Some(version), reason))
    }
}

/// Checks the bits of the flags that belong together. Source: MQTT 5.0, section 3.1.2.3 to 3.1.2.7.
fn check_flags(flags: u8) -> Result<(), Reason> {
    let (has_will, qos, is_retained) = (flags & 4 != 0, flags >> 3 & 3, flags & 0x20 != 0);
    match flags & 1 != 0 || qos == 3 || (!has_will && (qos > 0 || is_retained)) {
        true => Err(Reason::MALFORMED_PACKET),
        false => Ok(()),
    }
}

fn check_text(text: &str) -> Result<String, Reason> {
    if text.contains('\0') { Err(Reason::MALFORMED_PACKET) } else { Ok(text.to_owned()) }
}

fn decode_v4(body: &[u8]) -> Result<Connect, Reason> {
    check_flags(body[7])?;
    let (packet, taken) = ConnectV4::parse(body).map_err(reason_of)?;
    if taken != body.len() {
        return Err(Reason::MALFORMED_PACKET);
    }
    let will = packet.will_topic().map(|topic| ConnectWill {
        topic: topic.to_owned(),
        qos: packet.will_qos() as u8,
        is_retained: packet.will_retain(),
        delay_s: 0,
        expiry_s: None,
        properties: Vec::new(),
        trace: None,
        payload: packet.will_payload().unwrap_or_default().to_vec(),
    });
    let is_clean = packet.clean_session();
    Ok(Connect {
        version: Version::V311,
        client_id: check_text(packet.client_id())?,
        is_clean,
        keep_alive_s: packet.keep_alive(),
        session_expiry_s: if is_clean { 0 } else { u32::MAX },
        receive_max: u16::MAX,
        packet_bytes_max: u32::MAX,
        alias_max: 0,
        user_name: packet.user_name().map(str::to_owned),
        password: packet.password().map(<[u8]>::to_vec),
        will,
    })
}

fn decode_v5(body: &[u8]) -> Result<Connect, Reason> {
    const PASSWORD: u8 = 0x40;
    const USER_NAME: u8 = 0x80;
    let flags = body[7];
    check_flags(flags)?;
    // The library refuses a password without a user name, which MQTT 5 allows. The password is the last field then.
    let is_alone = flags & (PASSWORD | USER_NAME) == PASSWORD;
    let mut without = Vec::new();
    let parsed = match is_alone {
        true => {
            without.extend_from_slice(body);
            without[7] &= !PASSWORD;
            ConnectV5::parse(&without)
        }
        false => ConnectV5::parse(body),
    };
    let (packet, taken) = parsed.map_err(reason_of)?;
    let rest = &body[taken.min(body.len())..];
    let password = match (is_alone, rest) {
        (false, []) => packet.password().map(<[u8]>::to_vec),
        (true, [a, b, password @ ..]) if password.len() == usize::from(u16::from_be_bytes([*a, *b])) => {
            Some(password.to_vec())
        }
        _ => return Err(Reason::MALFORMED_PACKET),
    };
    let mut connect = Connect {
        version: Version::V5,
        client_id: check_text(packet.client_id())?,
        is_clean: packet.clean_start(),
        keep_alive_s: packet.keep_alive(),
        session_expiry_s: 0,
        receive_max: u16::MAX,
        packet_bytes_max: u32::MAX,
        alias_max: 0,
        user_name: packet.user_name().map(str::to_owned),
        password,
        will: None,
    };
    for property in packet.props() {
        match property {
            Property::SessionExpiryInterval(property) => connect.session_expiry_s = property.val(),
            Property::ReceiveMaximum(property) => connect.receive_max = property.val(),
            Property::MaximumPacketSize(property) => connect.packet_bytes_max = property.val(),
            Property::TopicAliasMaximum(property) => connect.alias_max = property.val(),
            Property::AuthenticationMethod(_) => return Err(Reason::BAD_AUTHENTICATION_METHOD),
            _ => {}
        }
    }
    if connect.receive_max == 0 || connect.packet_bytes_max == 0 {
        return Err(Reason::PROTOCOL_ERROR);
    }
    if let Some(topic) = packet.will_topic() {
        let mut will = ConnectWill {
            topic: topic.to_owned(),
            qos: packet.will_qos() as u8,
            is_retained: packet.will_retain(),
            delay_s: 0,
            expiry_s: None,
            properties: Vec::new(),
            trace: None,
            payload: packet.will_payload().unwrap_or_default().to_vec(),
        };
        let mut kept = Vec::new();
        for property in packet.will_props() {
            match property {
                Property::WillDelayInterval(property) => will.delay_s = property.val(),
                other => kept.extend_from_slice(&other.to_continuous_buffer()),
            }
        }
        let mut checked = Publish::with_payload(&will.payload);
        checked.read_properties(&kept)?;
        if checked.is_text && std::str::from_utf8(&will.payload).is_err() {
            return Err(Reason::PAYLOAD_FORMAT_INVALID);
        }
        (will.expiry_s, will.properties, will.trace) = (checked.expiry_s, checked.properties, checked.trace);
        connect.will = Some(will);
    }
    Ok(connect)
}

fn reason_of(error: MqttError) -> Reason {
    match error {
        MqttError::ClientIdentifierNotValid => Reason::CLIENT_IDENTIFIER_NOT_VALID,
        MqttError::BadUserNameOrPassword => Reason::BAD_USER_NAME_OR_PASSWORD,
        MqttError::ProtocolError => Reason::PROTOCOL_ERROR,
        _ => Reason::MALFORMED_PACKET,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(body: &[u8]) -> Result<Connect, ConnectError> {
        Connect::decode(Frame { first: 0x10, body, bytes: body.len() + 2 })
    }

    #[test]
    fn connect_of_both_versions_is_decoded() {
        let v4 = decode(b"\0\x04MQTT\x04\xc2\0\x3c\0\x02id\0\x01u\0\x02pw").unwrap();
        assert_eq!((v4.client_id.as_str(), v4.is_clean, v4.keep_alive_s), ("id", true, 60));
        assert_eq!((v4.session_expiry_s, v4.password.as_deref()), (0, Some(&b"pw"[..])));
        let v5 = decode(
            b"\0\x04MQTT\x05\x2c\0\x05\x0b\x11\0\0\0\x07\x21\0\x02\x22\0\x03\0\0\x0a\x18\0\0\0\x04\x02\0\0\0\x09\0\x01t\0\x01w",
        );
        let v5 = v5.unwrap();
        assert_eq!((v5.session_expiry_s, v5.receive_max, v5.alias_max, v5.is_clean), (7, 2, 3, false));
        let will = v5.will.unwrap();
        assert_eq!((will.topic.as_str(), will.qos, will.is_retained, will.delay_s), ("t", 1, true, 4));
        assert_eq!((will.expiry_s, &*will.payload), (Some(9), &b"w"[..]));
    }

    #[test]
    fn password_needs_no_user_name_in_version_five() {
        let connect = decode(b"\0\x04MQTT\x05\x42\0\0\0\0\0\0\x05token").unwrap();
        assert_eq!((connect.user_name, connect.password.as_deref()), (None, Some(&b"token"[..])));
        assert!(decode(b"\0\x04MQTT\x05\x42\0\0\0\0\0\0\x06token").is_err());
    }

    #[test]
    fn malformed_connect_is_refused() {
        for (body, version, reason) in [
            (&b""[..], None, Reason::MALFORMED_PACKET),
            (b"\0\x02hj\x04\x02\0\0\0\0", None, Reason::PROTOCOL_ERROR),
            (b"\0\x06MQIsdp\x03\x02\0\0\0\0", Some(Version::V311), Reason::UNSUPPORTED_PROTOCOL_VERSION),
            (b"\0\x04MQTT\x06\x02\0\0\0\0", Some(Version::V311), Reason::UNSUPPORTED_PROTOCOL_VERSION),
            (b"\0\x04MQTT\x04\x03\0\0\0\0", Some(Version::V311), Reason::MALFORMED_PACKET),
            (b"\0\x04MQTT\x04\x22\0\0\0\0", Some(Version::V311), Reason::MALFORMED_PACKET),
            (b"\0\x04MQTT\x04\x02\0\0\0\0x", Some(Version::V311), Reason::MALFORMED_PACKET),
            (b"\0\x04MQTT\x04\x02\0\0\0\x01\0", Some(Version::V311), Reason::MALFORMED_PACKET),
            (b"\0\x04MQTT\x05\x02\0\0\x03\x21\0\0\0\0", Some(Version::V5), Reason::PROTOCOL_ERROR),
        ] {
            let error = decode(body).unwrap_err();
            assert_eq!(error.version, version, "{body:?}");
            assert!(error.reason == reason || error.reason.is_error(), "{body:?} {:?}", error.reason);
        }
    }
}
