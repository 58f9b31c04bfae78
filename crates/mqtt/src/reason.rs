use std::fmt;

use millrace_protocol::{Code, Error};

/// Reason code of MQTT 5. A code from 0x80 on is an error.
///
/// Source: MQTT 5.0, section 2.4.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Reason(pub u8);

impl Reason {
    pub const SUCCESS: Self = Self(0x00);
    pub const DISCONNECT_WITH_WILL: Self = Self(0x04);
    pub const NO_SUBSCRIPTION_EXISTED: Self = Self(0x11);
    pub const UNSPECIFIED: Self = Self(0x80);
    pub const MALFORMED_PACKET: Self = Self(0x81);
    pub const PROTOCOL_ERROR: Self = Self(0x82);
    pub const UNSUPPORTED_PROTOCOL_VERSION: Self = Self(0x84);
    pub const CLIENT_IDENTIFIER_NOT_VALID: Self = Self(0x85);
    pub const BAD_USER_NAME_OR_PASSWORD: Self = Self(0x86);
    pub const NOT_AUTHORIZED: Self = Self(0x87);
    pub const SERVER_UNAVAILABLE: Self = Self(0x88);
    pub const SERVER_BUSY: Self = Self(0x89);
    pub const SERVER_SHUTTING_DOWN: Self = Self(0x8b);
    pub const BAD_AUTHENTICATION_METHOD: Self = Self(0x8c);
    pub const KEEP_ALIVE_TIMEOUT: Self = Self(0x8d);
    pub const SESSION_TAKEN_OVER: Self = Self(0x8e);
    pub const TOPIC_FILTER_INVALID: Self = Self(0x8f);
    pub const TOPIC_NAME_INVALID: Self = Self(0x90);
    pub const PACKET_IDENTIFIER_NOT_FOUND: Self = Self(0x92);
    pub const RECEIVE_MAXIMUM_EXCEEDED: Self = Self(0x93);
    pub const TOPIC_ALIAS_INVALID: Self = Self(0x94);
    pub const PACKET_TOO_LARGE: Self = Self(0x95);
    pub const MESSAGE_RATE_TOO_HIGH: Self = Self(0x96);
    pub const QUOTA_EXCEEDED: Self = Self(0x97);
    pub const PAYLOAD_FORMAT_INVALID: Self = Self(0x99);

    pub fn is_error(self) -> bool {
        self.0 >= 0x80
    }

    /// Returns the reason of an error in a PUBACK, PUBREC or SUBACK.
    pub fn of(error: &Error) -> Self {
        match error.code {
            Code::Unauthorized | Code::Forbidden | Code::Refused => Self::NOT_AUTHORIZED,
            Code::BadChannel => Self::TOPIC_NAME_INVALID,
            Code::TooLarge => Self::PACKET_TOO_LARGE,
            Code::TooMany | Code::RateLimited | Code::Congested => Self::QUOTA_EXCEEDED,
            _ => Self::UNSPECIFIED,
        }
    }

    /// Returns the reason for the close code of a WebSocket. Smaller numbers are reason codes already.
    pub fn of_close(code: u16) -> Self {
        match code {
            0..=0xff => Self(code as u8),
            1001 | 1012 => Self::SERVER_SHUTTING_DOWN,
            1009 => Self::PACKET_TOO_LARGE,
            1013 => Self::SERVER_BUSY,
            4000..=4999 => Self::NOT_AUTHORIZED,
            _ => Self::UNSPECIFIED,
        }
    }

    /// Returns the return code of a CONNACK of MQTT 3.1.1. Source: MQTT 3.1.1, section 3.2.2.3.
    pub fn to_return_code(self) -> u8 {
        match self {
            Self::SUCCESS => 0,
            Self::UNSUPPORTED_PROTOCOL_VERSION => 1,
            Self::CLIENT_IDENTIFIER_NOT_VALID => 2,
            Self::BAD_USER_NAME_OR_PASSWORD => 4,
            Self::NOT_AUTHORIZED => 5,
            _ => 3,
        }
    }
}

impl fmt::Debug for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#04x}", self.0)
    }
}
