//! Ethernet frames around IPv4 packets, for the ports of a bridge.

use std::net::Ipv4Addr;

use super::packet::IpPacket;

/// Source: IEEE 802.3: two MAC addresses and a type.
const HEADER_BYTES: usize = 14;
const TYPE_IPV4: [u8; 2] = [0x08, 0x00];
/// First bytes of all MAC addresses: locally administered, so that no manufacturer has them.
const PREFIX: [u8; 2] = [0x02, 0x00];

/// Returns the IPv4 packet in a frame. `None`: the frame contains something else.
pub fn packet(frame: &[u8]) -> Option<IpPacket> {
    (frame.get(12..HEADER_BYTES)? == TYPE_IPV4).then(|| IpPacket::parse(&frame[HEADER_BYTES..]))?
}

/// Returns a frame between the MAC addresses that belong to the addresses of the packet.
pub fn frame(packet: &IpPacket) -> Vec<u8> {
    let mut frame = Vec::with_capacity(HEADER_BYTES + packet.as_bytes().len());
    frame.extend(mac(packet.destination()));
    frame.extend(mac(packet.source()));
    frame.extend(TYPE_IPV4);
    frame.extend(packet.as_bytes());
    frame
}

fn mac(address: Ipv4Addr) -> [u8; 6] {
    let [a, b, c, d] = address.octets();
    [PREFIX[0], PREFIX[1], a, b, c, d]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packet_passes_a_frame_unchanged() {
        let mut bytes = [0; 28];
        bytes[0] = 0x45;
        bytes[3] = 28;
        bytes[12..20].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
        let sent = IpPacket::parse(&bytes).expect("a packet");
        let frame = frame(&sent);
        assert_eq!(frame[..6], [2, 0, 10, 0, 0, 2]);
        assert_eq!(packet(&frame), Some(sent));
        for other in [&frame[..13], &[], &frame[..20]] {
            assert_eq!(packet(other), None);
        }
        let arp = [&frame[..12], &[0x08, 0x06], &frame[14..]].concat();
        assert_eq!(packet(&arp), None);
    }
}
