//! Forward error correction: one packet that is the XOR of up to 16 others replaces any one of them. Source: RFC 5109,
//! with one level of protection and a mask of 16 bits.

use crate::packet::FIXED_BYTES;

/// Maximum number of packets that one packet protects.
pub const GROUP_MAX: usize = 16;
/// Bytes of the FEC header and of the level header.
const HEAD_BYTES: usize = 14;

/// Returns the payload of the packet that protects these packets. `None`: there are no packets, too many, or they are
/// more than 16 sequence numbers apart.
pub fn protect(packets: &[Vec<u8>]) -> Option<Vec<u8>> {
    let sequence = |packet: &[u8]| Some(u16::from_be_bytes(*packet.get(2..)?.first_chunk()?));
    let base = sequence(packets.first().filter(|_| packets.len() <= GROUP_MAX)?)?;
    let (mut head, mut body, mut mask) = ([0_u8; 8], Vec::new(), 0_u16);
    for packet in packets {
        let offset = sequence(packet)?.wrapping_sub(base);
        mask |= 1_u16.checked_shl(15_u32.checked_sub(offset.into())?)?;
        xor_head(&mut head, packet)?;
        xor(&mut body, packet.get(FIXED_BYTES..)?);
    }
    let [flags, kind, time @ .., high, low] = head;
    let mut payload = Vec::with_capacity(HEAD_BYTES + body.len());
    payload.extend([flags & 0x3f, kind]);
    payload.extend(base.to_be_bytes());
    payload.extend(time);
    payload.extend([high, low]);
    payload.extend((body.len() as u16).to_be_bytes());
    payload.extend(mask.to_be_bytes());
    payload.extend(body);
    Some(payload)
}

/// Returns the sequence numbers that a packet protects.
pub fn protected(payload: &[u8]) -> impl Iterator<Item = u16> {
    let base = payload.get(2..4).and_then(|bytes| bytes.first_chunk()).map_or(0, |bytes| u16::from_be_bytes(*bytes));
    let mask = payload.get(12..14).and_then(|bytes| bytes.first_chunk()).map_or(0, |bytes| u16::from_be_bytes(*bytes));
    (0..16).filter(move |bit| mask >> (15 - bit) & 1 == 1).map(move |bit| base.wrapping_add(bit))
}

/// Restores the packet `missing` from the payload of the packet that protects it and from all others that it protects.
/// `None`: the bytes contradict each other.
pub fn restore<'a>(payload: &[u8], missing: u16, ssrc: u32, others: impl Iterator<Item = &'a [u8]>) -> Option<Vec<u8>> {
    let (head, body) = payload.split_at_checked(HEAD_BYTES)?;
    let mut fields = [head[0], head[1], head[4], head[5], head[6], head[7], head[8], head[9]];
    let mut body = body.to_vec();
    for other in others {
        xor_head(&mut fields, other)?;
        xor(&mut body, other.get(FIXED_BYTES..)?);
    }
    let [flags, kind, time @ .., high, low] = fields;
    let mut packet = vec![0x80 | flags & 0x3f, kind];
    packet.extend(missing.to_be_bytes());
    packet.extend(time);
    packet.extend(ssrc.to_be_bytes());
    packet.extend_from_slice(body.get(..usize::from(u16::from_be_bytes([high, low])))?);
    Some(packet)
}

/// Adds flags, payload type, timestamp, and the length behind the fixed header.
fn xor_head(head: &mut [u8; 8], packet: &[u8]) -> Option<()> {
    let length = u16::try_from(packet.len().checked_sub(FIXED_BYTES)?).ok()?.to_be_bytes();
    let fields = packet[..2].iter().chain(&packet[4..8]).chain(&length);
    head.iter_mut().zip(fields).for_each(|(sum, byte)| *sum ^= byte);
    Some(())
}

fn xor(sum: &mut Vec<u8>, bytes: &[u8]) {
    if sum.len() < bytes.len() {
        sum.resize(bytes.len(), 0);
    }
    sum.iter_mut().zip(bytes).for_each(|(sum, byte)| *sum ^= byte);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::{Header, VIDEO};

    fn packets() -> Vec<Vec<u8>> {
        let header = |n: u16| Header {
            payload_type: VIDEO,
            marker: n == 3,
            sequence: 65_534_u16.wrapping_add(n),
            time: 1000 * u32::from(n),
            ssrc: 5,
            number: (n != 2).then_some(n),
        };
        (0..5).map(|n| header(n).write(&vec![n as u8 + 1; 10 * usize::from(n) + 3])).collect()
    }

    #[test]
    fn any_one_packet_is_restored() {
        let packets = packets();
        let payload = protect(&packets).expect("five packets");
        assert_eq!(protected(&payload).collect::<Vec<_>>(), [65_534, 65_535, 0, 1, 2]);
        for (missing, packet) in packets.iter().enumerate() {
            let others = packets.iter().enumerate().filter(|(n, _)| *n != missing).map(|(_, packet)| &packet[..]);
            let restored = restore(&payload, 65_534_u16.wrapping_add(missing as u16), 5, others);
            assert_eq!(restored.as_ref(), Some(packet));
        }
    }

    #[test]
    fn impossible_groups_and_truncated_payloads_are_refused() {
        let packets = packets();
        assert_eq!(protect(&[]), None);
        assert_eq!(protect(&vec![packets[0].clone(); 17]), None);
        let far =
            Header { payload_type: VIDEO, marker: false, sequence: 16, time: 0, ssrc: 5, number: None }.write(&[]);
        assert_eq!(protect(&[packets[0].clone(), far]), None, "18 numbers apart");
        assert_eq!(protect(&[vec![0; 11]]), None);
        let payload = protect(&packets).expect("five packets");
        for length in 0..payload.len() {
            let _ = protected(&payload[..length]).count();
            assert!(restore(&payload[..length], 0, 5, std::iter::empty()).is_none_or(|packet| packet.len() < 100));
        }
    }
}
