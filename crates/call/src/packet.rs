//! RTP packets of a call: writing and reading. Source: RFC 3550, section 5.1; RFC 8285 (header extensions).

/// Payload types of the three streams of a sender.
pub const VIDEO: u8 = 96;
pub const RTX: u8 = 97;
pub const FEC: u8 = 98;

/// Distance of the SSRC of retransmissions and of forward error correction from that of the video.
pub const RTX_SSRC: u32 = 1;
pub const FEC_SSRC: u32 = 2;

/// Bytes of a header without extensions.
pub const FIXED_BYTES: usize = 12;
/// ID of the header extension with the transport-wide sequence number.
const NUMBER_ID: u8 = 3;
/// Marker of a block of extensions with one-byte headers.
const ONE_BYTE_HEADS: [u8; 2] = [0xbe, 0xde];
const VERSION: u8 = 0x80;
const WITH_EXTENSIONS: u8 = 0x10;
const WITH_PADDING: u8 = 0x20;

/// Header of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub payload_type: u8,
    pub marker: bool,
    pub sequence: u16,
    pub time: u32,
    pub ssrc: u32,
    /// Transport-wide sequence number, if the packet has one.
    pub number: Option<u16>,
}

impl Header {
    pub fn write(&self, payload: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(FIXED_BYTES + 8 + payload.len());
        let extensions = if self.number.is_some() { WITH_EXTENSIONS } else { 0 };
        bytes.extend([VERSION | extensions, self.payload_type & 0x7f | u8::from(self.marker) << 7]);
        bytes.extend(self.sequence.to_be_bytes());
        bytes.extend(self.time.to_be_bytes());
        bytes.extend(self.ssrc.to_be_bytes());
        if let Some(number) = self.number {
            let [high, low] = number.to_be_bytes();
            bytes.extend(ONE_BYTE_HEADS);
            // One word: ID and length, two bytes of the number, one byte of padding.
            bytes.extend([0, 1, NUMBER_ID << 4 | 1, high, low, 0]);
        }
        bytes.extend_from_slice(payload);
        bytes
    }

    /// Returns the header and the payload without padding. `None`: the bytes are no RTP packet.
    pub fn read(packet: &[u8]) -> Option<(Header, &[u8])> {
        let (header, mut payload) = Self::read_encrypted(packet)?;
        if packet[0] & WITH_PADDING != 0 {
            let padding = usize::from(*payload.last()?);
            payload = payload.get(..payload.len().checked_sub(padding).filter(|_| padding > 0)?)?;
        }
        Some((header, payload))
    }

    /// Returns the header and all bytes behind it. In SRTP, these are the encrypted payload with its padding, whose
    /// length is encrypted, too, and the tag. `None`: the bytes are no RTP packet. Source: RFC 3711, section 3.1.
    pub fn read_encrypted(packet: &[u8]) -> Option<(Header, &[u8])> {
        let [flags, kind, ..] = *packet else { return None };
        if flags >> 6 != 2 {
            return None;
        }
        let mut payload = packet.get(FIXED_BYTES + 4 * usize::from(flags & 0xf)..)?;
        let mut number = None;
        if flags & WITH_EXTENSIONS != 0 {
            let [_, _, high, low] = *payload.first_chunk()?;
            let (extensions, rest) =
                payload.get(4..)?.split_at_checked(4 * usize::from(u16::from_be_bytes([high, low])))?;
            number = payload.starts_with(&ONE_BYTE_HEADS).then(|| read_number(extensions)).flatten();
            payload = rest;
        }
        let header = Header {
            payload_type: kind & 0x7f,
            marker: kind >> 7 == 1,
            sequence: u16::from_be_bytes(*packet.get(2..)?.first_chunk()?),
            time: u32::from_be_bytes(*packet.get(4..)?.first_chunk()?),
            ssrc: u32::from_be_bytes(*packet.get(8..)?.first_chunk()?),
            number,
        };
        Some((header, payload))
    }
}

fn read_number(mut extensions: &[u8]) -> Option<u16> {
    while let [head, rest @ ..] = extensions {
        match head >> 4 {
            // Padding is one byte.
            0 => extensions = rest,
            NUMBER_ID => return rest.first_chunk().map(|number| u16::from_be_bytes(*number)),
            _ => extensions = rest.get(usize::from(head & 0xf) + 1..)?,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_round_trip() {
        for number in [None, Some(0), Some(65_535)] {
            let header =
                Header { payload_type: VIDEO, marker: true, sequence: 65_535, time: u32::MAX, ssrc: 7, number };
            let bytes = header.write(b"payload");
            assert_eq!(Header::read(&bytes), Some((header, &b"payload"[..])));
            assert!(millrace_sfu::egress::is_media(&bytes));
            // A shorter packet is another payload, or no packet.
            for length in 0..bytes.len() - 7 {
                assert_eq!(Header::read(&bytes[..length]), None, "{length}");
            }
        }
    }

    #[test]
    fn padding_and_other_extensions_are_skipped() {
        let header = Header { payload_type: FEC, marker: false, sequence: 1, time: 2, ssrc: 3, number: None };
        let mut bytes = header.write(&[9, 9, 0, 2]);
        bytes[0] |= WITH_PADDING;
        assert_eq!(Header::read(&bytes), Some((header, &[9, 9][..])));
        for padding in [0, 200] {
            *bytes.last_mut().expect("bytes") = padding;
            assert_eq!(Header::read(&bytes), None);
            assert_eq!(Header::read_encrypted(&bytes), Some((header, &[9, 9, 0, padding][..])), "not readable in SRTP");
        }
        // An extension of two bytes, padding, then the number.
        let mut bytes = header.write(&[0xbe, 0xde, 0, 2, 0x51, 7, 7, 0, 0x31, 1, 2, 0, 9]);
        bytes[0] |= WITH_EXTENSIONS;
        assert_eq!(Header::read(&bytes), Some((Header { number: Some(258), ..header }, &[9][..])));
    }
}
