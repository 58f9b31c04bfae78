//! An IPv4 packet on an emulated link.

use std::net::Ipv4Addr;

use millrace_link::{Flow, Packet};

const TCP: u8 = 6;
const UDP: u8 = 17;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const ACK: u8 = 0x10;
const IP_HEADER_BYTES: usize = 20;
const TCP_HEADER_BYTES: usize = 20;

/// A packet as a TUN device delivers it. Source: RFC 791, section 3.1; RFC 9293, section 3.1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IpPacket(Box<[u8]>);

impl IpPacket {
    /// Returns `None` if the bytes are no IPv4 packet, or are cut off.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let header_bytes = usize::from(bytes.first()? & 0x0f) * 4;
        let is_ipv4 = bytes[0] >> 4 == 4 && header_bytes >= IP_HEADER_BYTES && bytes.len() >= header_bytes;
        (is_ipv4 && usize::from(u16_at(bytes, 2)) == bytes.len()).then(|| Self(bytes.into()))
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    pub fn source(&self) -> Ipv4Addr {
        self.addresses().0
    }

    pub fn destination(&self) -> Ipv4Addr {
        self.addresses().1
    }

    /// Replaces the source address and corrects the checksums.
    pub fn set_source(&mut self, address: Ipv4Addr) {
        self.set_address(12, address);
    }

    /// Replaces the destination address and corrects the checksums.
    pub fn set_destination(&mut self, address: Ipv4Addr) {
        self.set_address(16, address);
    }

    /// Reduces the time to live by 1 and corrects the checksum, as a router does. Returns false if the packet must not
    /// be forwarded any more.
    pub fn hop(&mut self) -> bool {
        let old = u32_at(&self.0, 8);
        if old >> 24 <= 1 {
            return false;
        }
        self.0[8] -= 1;
        self.correct_checksum(10, old & 0xffff_0000, (old & 0xffff_0000) - (1 << 24));
        true
    }

    fn set_address(&mut self, at: usize, address: Ipv4Addr) {
        let old = u32_at(&self.0, at);
        self.0[at..at + 4].copy_from_slice(&address.octets());
        self.correct_checksum(10, old, address.to_bits());
        let transport = self.transport();
        let offset = match self.protocol() {
            TCP if transport.len() >= TCP_HEADER_BYTES => 16,
            // A checksum of 0 means that the sender computed no checksum. Source: RFC 768.
            UDP if transport.len() >= 8 && u16_at(transport, 6) != 0 => 6,
            _ => return,
        };
        let start = self.0.len() - transport.len();
        self.correct_checksum(start + offset, old, address.to_bits());
    }

    /// Corrects a checksum after 32 bits have changed. Source: RFC 1624, section 3.
    fn correct_checksum(&mut self, at: usize, old: u32, new: u32) {
        let halves = |bits: u32| (bits >> 16) + (bits & 0xffff);
        let mut sum = u32::from(!u16_at(&self.0, at)) + halves(!old) + halves(new);
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        let checksum = !(sum as u16);
        self.0[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
    }

    fn protocol(&self) -> u8 {
        self.0[9]
    }

    fn addresses(&self) -> (Ipv4Addr, Ipv4Addr) {
        let address = |at: usize| Ipv4Addr::from_bits(u32_at(&self.0, at));
        (address(12), address(16))
    }

    /// Returns the part behind the IP header. It is empty for a fragment that is not the first.
    fn transport(&self) -> &[u8] {
        match u16_at(&self.0, 6) & 0x1fff {
            0 => &self.0[usize::from(self.0[0] & 0x0f) * 4..],
            _ => &[],
        }
    }

    fn ports(&self) -> Option<(u16, u16)> {
        let transport = self.transport();
        (matches!(self.protocol(), TCP | UDP) && transport.len() >= 8)
            .then(|| (u16_at(transport, 0), u16_at(transport, 2)))
    }

    fn tcp(&self) -> Option<&[u8]> {
        let transport = self.transport();
        (self.protocol() == TCP && transport.len() >= TCP_HEADER_BYTES).then_some(transport)
    }
}

impl Packet for IpPacket {
    fn bytes(&self) -> usize {
        self.0.len()
    }

    fn flow(&self) -> Option<Flow> {
        let ((source, destination), (from, to)) = (self.addresses(), self.ports()?);
        let end = |address: Ipv4Addr, port: u16| u128::from(address.to_bits()) << 16 | u128::from(port);
        let (one, other) = (end(source, from), end(destination, to));
        Some(Flow(u128::from(self.protocol()) << 96 | one.min(other) << 48 | one.max(other)))
    }

    fn is_opening(&self) -> bool {
        self.tcp().is_none_or(|tcp| tcp[13] & (SYN | ACK) == SYN)
    }

    fn corrupt(&mut self, bit: usize) {
        self.0[bit / 8] ^= 0x80 >> (bit % 8);
    }

    fn reset(&self) -> Option<Self> {
        let (tcp, (source, destination)) = (self.tcp()?, self.addresses());
        if tcp[13] & RST != 0 {
            return None;
        }
        let payload_bytes = tcp.len() - (usize::from(tcp[12] >> 4) * 4).min(tcp.len());
        let length = payload_bytes as u32 + u32::from(tcp[13] & 0x03 != 0);
        let mut packet = [0; IP_HEADER_BYTES + TCP_HEADER_BYTES];
        let total = packet.len() as u16;
        packet[0] = 0x45;
        packet[2..4].copy_from_slice(&total.to_be_bytes());
        packet[8] = 64;
        packet[9] = TCP;
        packet[12..16].copy_from_slice(&destination.octets());
        packet[16..20].copy_from_slice(&source.octets());
        let sum = checksum(&packet[..IP_HEADER_BYTES], 0);
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
        packet[20..22].copy_from_slice(&tcp[2..4]);
        packet[22..24].copy_from_slice(&tcp[0..2]);
        // A reset is valid if its sequence number is the one that the receiver expects.
        packet[24..28].copy_from_slice(&tcp[8..12]);
        packet[28..32].copy_from_slice(&u32_at(tcp, 4).wrapping_add(length).to_be_bytes());
        packet[32] = 5 << 4;
        packet[33] = RST | ACK;
        let pseudo = u32::from(TCP) + TCP_HEADER_BYTES as u32 + sum_of(&packet[12..20]);
        let sum = checksum(&packet[IP_HEADER_BYTES..], pseudo);
        packet[36..38].copy_from_slice(&sum.to_be_bytes());
        Some(Self(packet.into()))
    }
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn sum_of(bytes: &[u8]) -> u32 {
    bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0))).sum()
}

/// Source: RFC 1071.
fn checksum(bytes: &[u8], start: u32) -> u16 {
    let mut sum = start + sum_of(bytes);
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A segment from 10.0.0.1:1000 to 10.0.0.2:80 with the sequence number 100 and the acknowledgement 200.
    fn segment(flags: u8, payload: &[u8]) -> IpPacket {
        let mut bytes =
            vec![0x45, 0, 0, 40 + payload.len() as u8, 0, 0, 0x40, 0, 64, TCP, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        bytes.extend([3, 232, 0, 80, 0, 0, 0, 100, 0, 0, 0, 200, 5 << 4, flags, 0, 0, 0, 0, 0, 0]);
        bytes.extend(payload);
        IpPacket::parse(&bytes).expect("a packet")
    }

    #[test]
    fn both_directions_of_a_connection_are_one_flow() {
        let there = segment(SYN, b"");
        let back = there.reset().expect("a reset");
        assert_eq!(there.flow(), back.flow());
        assert!(there.flow().is_some());
        assert!(there.is_opening() && !segment(SYN | ACK, b"").is_opening() && !segment(ACK, b"x").is_opening());
    }

    #[test]
    fn reset_is_what_the_sender_expects() {
        let reset = segment(ACK, b"hello").reset().expect("a reset");
        let bytes = reset.as_bytes();
        assert_eq!(reset.addresses(), (Ipv4Addr::new(10, 0, 0, 2), Ipv4Addr::new(10, 0, 0, 1)));
        assert_eq!(reset.ports(), Some((80, 1000)));
        assert_eq!((u32_at(bytes, 24), u32_at(bytes, 28)), (200, 105));
        assert_eq!(checksum(&bytes[..20], 0), 0, "the checksum of the header");
        assert_eq!(checksum(&bytes[20..], 6 + 20 + sum_of(&bytes[12..20])), 0, "the checksum of the segment");
        assert!(reset.reset().is_none(), "a reset is not answered");
    }

    #[test]
    fn checksums_are_right_after_an_address_has_changed() {
        let mut packet = segment(ACK, b"hello").reset().expect("a reset");
        packet.set_source(Ipv4Addr::new(127, 0, 0, 1));
        packet.set_destination(Ipv4Addr::new(255, 255, 255, 254));
        assert_eq!(packet.addresses(), (Ipv4Addr::new(127, 0, 0, 1), Ipv4Addr::new(255, 255, 255, 254)));
        let bytes = packet.as_bytes();
        assert_eq!(checksum(&bytes[..20], 0), 0, "the checksum of the header");
        assert_eq!(checksum(&bytes[20..], 6 + 20 + sum_of(&bytes[12..20])), 0, "the checksum of the segment");
    }

    #[test]
    fn hop_reduces_the_time_to_live_until_it_is_used_up() {
        let mut packet = segment(ACK, b"hello").reset().expect("a reset");
        for left in (1..64).rev() {
            assert!(packet.hop());
            assert_eq!(packet.as_bytes()[8], left);
            assert_eq!(checksum(&packet.as_bytes()[..20], 0), 0, "the checksum of the header");
        }
        assert!(!packet.hop());
    }

    #[test]
    fn other_bytes_are_no_packets() {
        let good = segment(ACK, b"hello");
        for length in 0..good.bytes() {
            assert!(IpPacket::parse(&good.as_bytes()[..length]).is_none(), "{length}");
        }
        let mut ipv6 = good.as_bytes().to_vec();
        ipv6[0] = 0x65;
        assert!(IpPacket::parse(&ipv6).is_none());
    }

    #[test]
    fn fragments_and_other_protocols_have_no_flow() {
        let mut bytes = segment(ACK, b"hello").as_bytes().to_vec();
        bytes[7] = 1;
        let fragment = IpPacket::parse(&bytes).expect("a packet");
        assert!(fragment.flow().is_none() && fragment.reset().is_none());
        bytes[7] = 0;
        bytes[9] = 1;
        assert!(IpPacket::parse(&bytes).expect("a packet").flow().is_none(), "ICMP");
    }
}
