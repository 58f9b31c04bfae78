//! Wire format of STUN messages. Source: RFC 8489, sections 5, 6 and 14; RFC 8656, section 18.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use ring::hmac;

pub const BINDING: u16 = 1;
pub const ALLOCATE: u16 = 3;
pub const REFRESH: u16 = 4;
pub const SEND: u16 = 6;
pub const DATA_INDICATION: u16 = 7;
pub const CREATE_PERMISSION: u16 = 8;
pub const CHANNEL_BIND: u16 = 9;

pub const USERNAME: u16 = 0x06;
pub const MESSAGE_INTEGRITY: u16 = 0x08;
pub const ERROR_CODE: u16 = 0x09;
pub const UNKNOWN_ATTRIBUTES: u16 = 0x0a;
pub const CHANNEL_NUMBER: u16 = 0x0c;
pub const LIFETIME: u16 = 0x0d;
pub const XOR_PEER_ADDRESS: u16 = 0x12;
pub const DATA: u16 = 0x13;
pub const REALM: u16 = 0x14;
pub const NONCE: u16 = 0x15;
pub const XOR_RELAYED_ADDRESS: u16 = 0x16;
pub const REQUESTED_ADDRESS_FAMILY: u16 = 0x17;
pub const EVEN_PORT: u16 = 0x18;
pub const REQUESTED_TRANSPORT: u16 = 0x19;
pub const XOR_MAPPED_ADDRESS: u16 = 0x20;
pub const RESERVATION_TOKEN: u16 = 0x22;
pub const FINGERPRINT: u16 = 0x8028;

pub const HEAD_BYTES: usize = 20;
const COOKIE: [u8; 4] = [0x21, 0x12, 0xa4, 0x42];
/// Length of an HMAC-SHA1, in bytes. The MESSAGE-INTEGRITY attribute adds a header of 4 bytes.
const MAC_BYTES: usize = 20;
const INTEGRITY_BYTES: usize = 4 + MAC_BYTES;
const FINGERPRINT_XOR: u32 = 0x5354_554e;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    Request,
    Indication,
    Success,
    Error,
}

/// One well-formed message.
#[derive(Clone, Copy)]
pub struct Message<'a> {
    bytes: &'a [u8],
    pub class: Class,
    pub method: u16,
    /// End of the attributes that are used: the start of the integrity attribute, if the message has one.
    end: usize,
    integrity: Option<usize>,
}

impl<'a> Message<'a> {
    /// Parses one complete STUN message. Returns `None` if the bytes are not one, or if the fingerprint is wrong.
    pub fn parse(bytes: &'a [u8]) -> Option<Self> {
        let head = bytes.get(..HEAD_BYTES)?;
        let (kind, length) = (number(&head[..2]), usize::from(number(&head[2..4])));
        if kind & 0xc000 != 0 || head[4..8] != COOKIE || length % 4 != 0 || bytes.len() != HEAD_BYTES + length {
            return None;
        }
        let class = match (kind >> 7 & 2) | (kind >> 4 & 1) {
            0 => Class::Request,
            1 => Class::Indication,
            2 => Class::Success,
            _ => Class::Error,
        };
        let method = kind & 0xf | kind >> 1 & 0x70 | kind >> 2 & 0xf80;
        let (mut at, mut integrity) = (HEAD_BYTES, None);
        while at < bytes.len() {
            let (kind, value) = attribute(bytes, at)?;
            match kind {
                MESSAGE_INTEGRITY if integrity.is_none() => integrity = Some(at).filter(|_| value.len() == MAC_BYTES),
                FINGERPRINT => {
                    let good = at + 8 == bytes.len() && value == fingerprint(&bytes[..at]);
                    return good.then(|| Self { bytes, class, method, end: integrity.unwrap_or(at), integrity });
                }
                _ => {}
            }
            at += 4 + value.len().next_multiple_of(4);
        }
        Some(Self { bytes, class, method, end: integrity.unwrap_or(bytes.len()), integrity })
    }

    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    pub fn transaction(&self) -> [u8; 12] {
        self.bytes[8..HEAD_BYTES].try_into().expect("twelve bytes of a head")
    }

    /// Returns the attributes before the integrity attribute. Attributes after it are ignored.
    pub fn attributes(&self) -> impl Iterator<Item = (u16, &'a [u8])> {
        let (bytes, end, mut at) = (self.bytes, self.end, HEAD_BYTES);
        std::iter::from_fn(move || {
            let (kind, value) = (at < end).then(|| attribute(bytes, at))??;
            at += 4 + value.len().next_multiple_of(4);
            Some((kind, value))
        })
    }

    /// Returns the value of the first attribute of this type.
    pub fn get(&self, wanted: u16) -> Option<&'a [u8]> {
        self.attributes().find(|(kind, _)| *kind == wanted).map(|(_, value)| value)
    }

    pub fn is_signed(&self) -> bool {
        self.integrity.is_some()
    }

    /// Returns true if the message was signed with this key. Source: RFC 8489, section 14.5.
    pub fn verify(&self, key: &[u8]) -> bool {
        let Some(at) = self.integrity else { return false };
        let mac = &self.bytes[at + 4..at + INTEGRITY_BYTES];
        let key = hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, key);
        let mut signed = self.bytes[..at].to_vec();
        set_length(&mut signed, INTEGRITY_BYTES);
        hmac::verify(&key, &signed, mac).is_ok()
    }

    /// Decodes an XOR-encoded address. The encoding protects the address from NATs that rewrite addresses in
    /// payloads. Source: RFC 8489, section 14.2.
    pub fn address(&self, value: &[u8]) -> Option<SocketAddr> {
        let port = number(value.get(2..4)?) ^ number(&COOKIE[..2]);
        let mask: [u8; 16] = self.bytes[4..HEAD_BYTES].try_into().expect("cookie and transaction");
        let ip = match (value[1], value.len()) {
            (1, 8) => {
                let bytes: [u8; 4] = std::array::from_fn(|i| value[4 + i] ^ mask[i]);
                IpAddr::V4(Ipv4Addr::from(bytes))
            }
            (2, 20) => {
                let bytes: [u8; 16] = std::array::from_fn(|i| value[4 + i] ^ mask[i]);
                IpAddr::V6(Ipv6Addr::from(bytes))
            }
            _ => return None,
        };
        Some(SocketAddr::new(ip, port))
    }
}

/// Encoder of one message, which replaces the previous content of the buffer.
pub struct Writer<'a> {
    out: &'a mut Vec<u8>,
}

impl<'a> Writer<'a> {
    pub fn new(out: &'a mut Vec<u8>, class: Class, method: u16, transaction: [u8; 12]) -> Self {
        let class = match class {
            Class::Request => 0,
            Class::Indication => 0x010,
            Class::Success => 0x100,
            Class::Error => 0x110,
        };
        let kind = method & 0xf | (method & 0x70) << 1 | (method & 0xf80) << 2 | class;
        out.clear();
        out.extend(kind.to_be_bytes());
        out.extend([0, 0]);
        out.extend(COOKIE);
        out.extend(transaction);
        Self { out }
    }

    /// Starts the answer to a request.
    pub fn answer(out: &'a mut Vec<u8>, class: Class, request: &Message<'_>) -> Self {
        Self::new(out, class, request.method, request.transaction())
    }

    pub fn attribute(self, kind: u16, value: &[u8]) -> Self {
        let length = u16::try_from(value.len()).expect("no attribute of ours is as long");
        self.out.extend(kind.to_be_bytes());
        self.out.extend(length.to_be_bytes());
        self.out.extend_from_slice(value);
        self.out.resize(self.out.len().next_multiple_of(4), 0);
        self
    }

    pub fn address(self, kind: u16, address: SocketAddr) -> Self {
        let mask: [u8; 16] = self.out[4..HEAD_BYTES].try_into().expect("cookie and transaction");
        let mut value = [0; 20];
        value[2..4].copy_from_slice(&(address.port() ^ number(&COOKIE[..2])).to_be_bytes());
        let length = match address.ip() {
            IpAddr::V4(ip) => {
                value[1] = 1;
                value[4..8].copy_from_slice(&ip.octets());
                8
            }
            IpAddr::V6(ip) => {
                value[1] = 2;
                value[4..].copy_from_slice(&ip.octets());
                20
            }
        };
        value[4..length].iter_mut().zip(mask).for_each(|(byte, mask)| *byte ^= mask);
        self.attribute(kind, &value[..length])
    }

    /// Adds an error code with its reason phrase. Source: RFC 8489, section 14.8.
    pub fn error(self, code: u16, reason: &str) -> Self {
        let head = [0, 0, (code / 100) as u8, (code % 100) as u8];
        self.attribute(ERROR_CODE, &[&head, reason.as_bytes()].concat())
    }

    /// Signs the message with a key that the other side knows. Must be the last call before [`Writer::end`].
    pub fn sign(self, key: &[u8]) -> Self {
        set_length(self.out, INTEGRITY_BYTES);
        let key = hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, key);
        let mac = hmac::sign(&key, self.out);
        self.attribute(MESSAGE_INTEGRITY, mac.as_ref())
    }

    pub fn end(self) {
        set_length(self.out, 0);
    }

    #[cfg(test)]
    pub fn end_with_fingerprint(self) {
        set_length(self.out, 8);
        let value = fingerprint(self.out);
        self.attribute(FINGERPRINT, &value).end();
    }
}

/// Returns the type and value of the attribute that starts at `at`.
fn attribute(bytes: &[u8], at: usize) -> Option<(u16, &[u8])> {
    let head = bytes.get(at..at + 4)?;
    let length = usize::from(number(&head[2..]));
    // The padding must be complete too.
    bytes.get(..at + 4 + length.next_multiple_of(4))?;
    Some((number(&head[..2]), &bytes[at + 4..at + 4 + length]))
}

/// Returns the fingerprint of all bytes before it. The length field must already include the fingerprint
/// attribute. Source: RFC 8489, section 14.7.
fn fingerprint(before: &[u8]) -> [u8; 4] {
    (crc32fast::hash(before) ^ FINGERPRINT_XOR).to_be_bytes()
}

/// Sets the length field of a message to which `coming` more bytes will be added.
fn set_length(message: &mut [u8], coming: usize) {
    let length = u16::try_from(message.len() - HEAD_BYTES + coming).expect("no message of ours is as long");
    message[2..4].copy_from_slice(&length.to_be_bytes());
}

fn number(bytes: &[u8]) -> u16 {
    u16::from_be_bytes([bytes[0], bytes[1]])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(hex: &str) -> Vec<u8> {
        let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
        let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
        digits.chunks(2).map(byte).collect()
    }

    /// Password of all short-term examples.
    const PASSWORD: &[u8] = b"VOkJxbRl1RmTxUk/WvJxBt";
    /// Source: RFC 5769, section 2.1.
    const REQUEST: &str = "00010058 2112a442 b7e7a701bc34d686fa87dfae 80220010 5354554e207465737420636c69656e74 00240004 6e0001ff
        80290008 932ff9b151263b36 00060009 6576746a3a68367659202020 00080014 9aeaa70cbfd8cb56781ef2b5b2d3f249c1b571a2 80280004 e57a3bcf";
    /// Source: RFC 5769, section 2.2.
    const ANSWER_V4: &str =
        "0101003c 2112a442 b7e7a701bc34d686fa87dfae 8022000b 7465737420766563746f7220 00200008 0001a147e112a643
        00080014 2b91f599fd9e90c38c7489f92af9ba53f06be7d7 80280004 c07d4c96";
    /// Source: RFC 5769, section 2.3.
    const ANSWER_V6: &str = "01010048 2112a442 b7e7a701bc34d686fa87dfae 8022000b 7465737420766563746f7220
        00200014 0002a147 0113a9faa5d3f179bc25f4b5bed2b9d9 00080014 a382954e4be67bf11784c97c8292c275bfe3ed41 80280004 c8fb0b4c";
    /// Source: RFC 5769, section 2.4.
    const LONG_TERM: &str =
        "00010060 2112a442 78ad3433c6ad72c029da412e 00060012 e3839ee38388e383aae38383e382afe382b90000
        0015001c 662f2f3439396b39353464364f4c33346f4c39465354767936347341 0014000b 6578616d706c652e6f726700
        00080014 f67024656dd64a3e02b8e0712e85c9a28ca89666";

    #[test]
    fn rfc_request_is_parsed_and_verified() {
        let request = bytes(REQUEST);
        let message = Message::parse(&request).unwrap();
        assert_eq!((message.class, message.method), (Class::Request, BINDING));
        assert_eq!(message.get(USERNAME), Some(&b"evtj:h6vY"[..]));
        assert!(message.verify(PASSWORD) && !message.verify(b"another"));
    }

    #[test]
    fn rfc_responses_are_parsed_and_written() {
        for (answer, address) in
            [(ANSWER_V4, "192.0.2.1:32853"), (ANSWER_V6, "[2001:db8:1234:5678:11:2233:4455:6677]:32853")]
        {
            let (answer, address) = (bytes(answer), address.parse().unwrap());
            let message = Message::parse(&answer).unwrap();
            assert_eq!(message.class, Class::Success);
            assert_eq!(message.address(message.get(XOR_MAPPED_ADDRESS).unwrap()), Some(address));
            assert!(message.verify(PASSWORD));
            let mut written = Vec::new();
            let writer = Writer::answer(&mut written, Class::Success, &message).attribute(0x8022, b"test vector");
            writer.address(XOR_MAPPED_ADDRESS, address).sign(PASSWORD).end_with_fingerprint();
            let again = Message::parse(&written).unwrap();
            assert!(again.verify(PASSWORD), "signed and with a fingerprint, as the example");
            // The example pads with a space, this encoder with zero. All other bytes before the signature are the same.
            written[35] = b' ';
            let unsigned = answer.len() - INTEGRITY_BYTES - 8;
            assert_eq!(written[..unsigned], answer[..unsigned]);
        }
    }

    #[test]
    fn long_term_key_matches_rfc() {
        let request = bytes(LONG_TERM);
        let message = Message::parse(&request).unwrap();
        let username = std::str::from_utf8(message.get(USERNAME).unwrap()).unwrap();
        let key = super::super::credentials::long_term_key(username, "example.org", "TheMatrIX");
        assert!(message.verify(&key));
        let again = |kind| (kind, message.get(kind).unwrap());
        let mut written = Vec::new();
        let mut writer = Writer::answer(&mut written, Class::Request, &message);
        for (kind, value) in [USERNAME, NONCE, REALM].map(again) {
            writer = writer.attribute(kind, value);
        }
        writer.sign(&key).end();
        assert_eq!(written, request);
    }

    #[test]
    fn malformed_messages_are_rejected() {
        let request = bytes(REQUEST);
        for cut in 0..request.len() {
            assert!(Message::parse(&request[..cut]).is_none(), "{cut}");
        }
        // The last 8 bytes are the fingerprint. A message without a fingerprint is valid too.
        for at in 0..request.len() - 8 {
            for bit in 0..8 {
                let mut changed = request.clone();
                changed[at] ^= 1 << bit;
                let read = Message::parse(&changed);
                assert!(!read.is_some_and(|message| message.verify(PASSWORD)), "{at}");
            }
        }
        assert!(Message::parse(&[&request[..], &[0; 4]].concat()).is_none());
    }

    #[test]
    fn attributes_after_integrity_are_ignored() {
        let mut out = Vec::new();
        let writer = Writer::new(&mut out, Class::Request, ALLOCATE, [7; 12]).attribute(LIFETIME, &[0, 0, 0, 1]);
        writer.sign(b"key").attribute(USERNAME, b"somebody else").end();
        let message = Message::parse(&out).unwrap();
        assert!(message.verify(b"key"));
        assert_eq!(message.attributes().map(|(kind, _)| kind).collect::<Vec<_>>(), [LIFETIME]);
    }
}
