//! Error codes of refused requests, and their reason phrases. Source: RFC 8489, section 14.8; RFC 8656, section 19.

use super::message::{MESSAGE_INTEGRITY, Message};

pub const BAD_REQUEST: u16 = 400;
pub const UNAUTHORIZED: u16 = 401;
pub const FORBIDDEN: u16 = 403;
pub const UNKNOWN_ATTRIBUTE: u16 = 420;
pub const ALLOCATION_MISMATCH: u16 = 437;
pub const STALE_NONCE: u16 = 438;
pub const FAMILY_NOT_SUPPORTED: u16 = 440;
pub const WRONG_CREDENTIALS: u16 = 441;
pub const TRANSPORT_NOT_SUPPORTED: u16 = 442;
pub const FAMILY_MISMATCH: u16 = 443;
pub const QUOTA_REACHED: u16 = 486;
pub const CAPACITY: u16 = 508;

/// Reason why a request is refused.
pub enum RequestError {
    Code(u16),
    UnknownAttributes(Vec<u16>),
}

/// Checks that all mandatory attributes of a message are known. Types from 0x8000 on are optional. Source: RFC 8489,
/// section 14.
///
/// Errors: the types of the unknown mandatory attributes.
pub fn check_attributes(message: &Message<'_>, known: &[u16]) -> Result<(), RequestError> {
    let is_unknown = |kind: &u16| *kind < 0x8000 && *kind != MESSAGE_INTEGRITY && !known.contains(kind);
    let mut kinds: Vec<u16> = message.attributes().map(|(kind, _)| kind).filter(is_unknown).collect();
    // Limits the list to 8 types, so that the answer stays small compared with the request.
    kinds.dedup();
    kinds.truncate(8);
    if kinds.is_empty() { Ok(()) } else { Err(RequestError::UnknownAttributes(kinds)) }
}

pub fn reason(code: u16) -> &'static str {
    match code {
        BAD_REQUEST => "Bad Request",
        FORBIDDEN => "Forbidden",
        UNKNOWN_ATTRIBUTE => "Unknown Attribute",
        ALLOCATION_MISMATCH => "Allocation Mismatch",
        FAMILY_NOT_SUPPORTED => "Address Family not Supported",
        WRONG_CREDENTIALS => "Wrong Credentials",
        TRANSPORT_NOT_SUPPORTED => "Unsupported Transport Protocol",
        FAMILY_MISMATCH => "Peer Address Family Mismatch",
        QUOTA_REACHED => "Allocation Quota Reached",
        CAPACITY => "Insufficient Capacity",
        _ => "",
    }
}
