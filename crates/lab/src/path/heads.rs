//! Heads of the media packets (RTP and SRTP) at the near end of a link, also inside TURN.

use millrace_call::{IP_UDP_BYTES, packet::Header};
use millrace_link::{Direction, Time};
use millrace_sfu::egress::is_media;

use super::IpPacket;

/// Maximum number of packets, which take 110 MB.
const HEADS_MAX: usize = 2_000_000;
const UDP: u8 = 17;
const UDP_HEADER_BYTES: usize = 8;
/// Source: RFC 8656, section 12.4.
const CHANNEL_HEADER_BYTES: usize = 4;
/// Types of STUN messages with data: Send and Data indication. Source: RFC 8656, section 18.
const INDICATIONS: [u16; 2] = [0x0016, 0x0017];
const STUN_HEADER_BYTES: usize = 20;
const DATA: u16 = 0x0013;

/// Head of a media packet that the near end has sent (up) or received (down).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MediaHead {
    pub at: Time,
    pub direction: Direction,
    /// UDP port of the near end.
    pub port: u16,
    /// Bytes of TURN, without the media packet.
    pub turn_bytes: u16,
    /// Bytes of the media packet: head, payload and, for SRTP, tag.
    pub bytes: u16,
    /// Bytes of its head, with extensions.
    pub head_bytes: u16,
    pub header: Header,
}

impl MediaHead {
    /// Returns the head of a media packet; `None` for any other packet.
    pub fn read(packet: &IpPacket, direction: Direction, at: Time) -> Option<Self> {
        let (port, datagram) = datagram(packet.as_bytes(), direction)?;
        let media = inside_turn(datagram);
        let (header, rest) = Header::read_encrypted(media).filter(|_| is_media(media))?;
        Some(Self {
            at,
            direction,
            port,
            turn_bytes: (datagram.len() - media.len()) as u16,
            bytes: media.len() as u16,
            head_bytes: (media.len() - rest.len()) as u16,
            header,
        })
    }

    /// Returns the size of the packet on the link.
    pub fn ip_bytes(&self) -> usize {
        IP_UDP_BYTES + usize::from(self.turn_bytes) + usize::from(self.bytes)
    }
}

/// Returns the near port and the payload of a UDP packet. Source: RFC 791, section 3.1; RFC 768.
fn datagram(packet: &[u8], direction: Direction) -> Option<(u16, &[u8])> {
    let number = |at: usize| Some(u16::from_be_bytes(*packet.get(at..)?.first_chunk()?));
    let udp = usize::from(packet.first()? & 0x0f) * 4;
    // Parts of a fragmented packet have no head of their own.
    let is_whole = number(6)? & 0x3fff == 0;
    (is_whole && *packet.get(9)? == UDP).then_some(())?;
    let port = match direction {
        Direction::Up => number(udp)?,
        Direction::Down => number(udp + 2)?,
    };
    Some((port, packet.get(udp + UDP_HEADER_BYTES..)?))
}

/// Returns what a TURN message carries; the datagram itself if it is none. Source: RFC 8656, sections 11 and 12.
fn inside_turn(datagram: &[u8]) -> &[u8] {
    let number =
        |at: usize| datagram.get(at..).and_then(|bytes| bytes.first_chunk()).map(|two| u16::from_be_bytes(*two));
    match (number(0), number(2)) {
        (Some(0x4000..=0x4fff), Some(length)) => {
            datagram.get(CHANNEL_HEADER_BYTES..CHANNEL_HEADER_BYTES + usize::from(length)).unwrap_or_default()
        }
        (Some(kind), _) if INDICATIONS.contains(&kind) => {
            let mut at = STUN_HEADER_BYTES;
            while let (Some(attribute), Some(length)) = (number(at), number(at + 2)) {
                let value = at + 4..at + 4 + usize::from(length);
                if attribute == DATA {
                    return datagram.get(value).unwrap_or_default();
                }
                at = value.end.next_multiple_of(4);
            }
            &[]
        }
        _ => datagram,
    }
}

/// Heads in the order of time. It never has more than [`HEADS_MAX`].
#[derive(Clone, Debug, Default)]
pub struct Heads {
    heads: Vec<MediaHead>,
    is_cut: bool,
}

impl Heads {
    pub(super) fn record(&mut self, head: MediaHead) {
        if self.heads.len() < HEADS_MAX {
            self.heads.push(head);
        } else {
            self.is_cut = true;
        }
    }

    /// Returns all heads, or `None` if there were more than the maximum.
    pub fn all(&self) -> Option<&[MediaHead]> {
        (!self.is_cut).then_some(&self.heads)
    }
}

#[cfg(test)]
mod tests {
    use millrace_call::packet::VIDEO;

    use super::*;

    fn media() -> Vec<u8> {
        Header { payload_type: VIDEO, marker: true, sequence: 7, time: 1, ssrc: 5, number: Some(3) }.write(&[9; 100])
    }

    /// A datagram from 10.0.0.1:1000 to 10.0.0.2:3478.
    fn udp(payload: &[u8]) -> IpPacket {
        let total = (IP_UDP_BYTES + payload.len()) as u16;
        let mut bytes = vec![0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, UDP, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        bytes[2..4].copy_from_slice(&total.to_be_bytes());
        for field in [1000, 3478, total - 20, 0] {
            bytes.extend(field.to_be_bytes());
        }
        bytes.extend_from_slice(payload);
        IpPacket::parse(&bytes).expect("a packet")
    }

    fn read(payload: &[u8], direction: Direction) -> Option<MediaHead> {
        MediaHead::read(&udp(payload), direction, Time::ZERO)
    }

    #[test]
    fn heads_are_read_inside_turn() {
        let media = media();
        let length = (media.len() as u16).to_be_bytes();
        let channel = [&[0x40, 0][..], &length, &media].concat();
        let mut indication = [&[0, 0x16, 0, 0][..], &[0; 16], &[0, 0x12, 0, 8], &[0; 8], &[0, DATA as u8]].concat();
        indication.extend([&length[..], &media].concat());
        for (payload, turn_bytes) in [(media.clone(), 0), (channel, 4), (indication, 36)] {
            let head = read(&payload, Direction::Up).expect("a media packet");
            assert_eq!((head.turn_bytes, head.bytes, head.head_bytes), (turn_bytes, 120, 20));
            assert_eq!((head.header.ssrc, head.header.sequence, head.port), (5, 7, 1000));
            assert_eq!(head.ip_bytes(), udp(&payload).as_bytes().len());
            assert_eq!(read(&payload, Direction::Down).map(|head| head.port), Some(3478));
        }
    }

    #[test]
    fn other_packets_have_no_head() {
        let report = [&[0x80, 200, 0, 6][..], &[0; 24]].concat();
        let cut = [&[0x40, 0, 1, 0][..], &media()].concat();
        let request = [&[0, 1, 0, 0][..], &[0; 16]].concat();
        let endless = [&[0, 0x16, 0, 0][..], &[0; 16], &[0, 1, 0xff, 0xff]].concat();
        for payload in [&report[..], &cut, &request, &endless, &[], &[0x80], &[0x40, 0], &[22, 254, 253]] {
            assert_eq!(read(payload, Direction::Up), None, "{payload:?}");
        }
        let mut fragment = udp(&media()).as_bytes().to_vec();
        fragment[6] = 0x20;
        assert_eq!(MediaHead::read(&IpPacket::parse(&fragment).expect("a packet"), Direction::Up, Time::ZERO), None);
    }
}
