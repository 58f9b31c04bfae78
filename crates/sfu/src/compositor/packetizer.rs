use std::sync::Arc;

use super::{
    depacketizer::{FRAGMENT, FRAGMENT_END, FRAGMENT_START},
    nal::nal_units,
};

/// Maximum size of a payload. With the headers of RTP, SRTP and UDP the packet fits into 1,280 bytes, which every path
/// carries.
const PAYLOAD_BYTES_MAX: usize = 1150;

/// Splits an encoded frame into the payloads of RTP packets.
///
/// Source: RFC 6184, sections 5.6 and 5.8.
pub fn packetize(access_unit: &[u8]) -> Vec<Arc<[u8]>> {
    let mut payloads = Vec::new();
    for unit in nal_units(access_unit) {
        let Some((head, rest)) = unit.split_first().filter(|_| unit.len() > PAYLOAD_BYTES_MAX) else {
            payloads.push(unit.into());
            continue;
        };
        let count = rest.len().div_ceil(PAYLOAD_BYTES_MAX - 2);
        // Fragments of about the same size.
        for (at, chunk) in rest.chunks(rest.len().div_ceil(count)).enumerate() {
            let start = if at == 0 { FRAGMENT_START } else { 0 };
            let end = if at == count - 1 { FRAGMENT_END } else { 0 };
            let heads = [head & !0x1f | FRAGMENT, start | end | head & 0x1f];
            payloads.push([&heads, chunk].concat().into());
        }
    }
    payloads
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_units_are_fragmented() {
        let slice: Vec<u8> = [0x65].into_iter().chain((0..5000).map(|at| (at % 251 + 1) as u8)).collect();
        let payloads = packetize(&[&[0, 0, 0, 1, 0x67, 5][..], &[0, 0, 0, 1], &slice].concat());
        assert_eq!(*payloads[0], [0x67, 5]);
        assert_eq!(payloads.len(), 6);
        assert!(payloads.iter().all(|payload| payload.len() <= PAYLOAD_BYTES_MAX));
        let flags: Vec<[u8; 2]> = payloads[1..].iter().map(|payload| [payload[0], payload[1]]).collect();
        assert_eq!(flags, [[0x7c, 0x85], [0x7c, 0x05], [0x7c, 0x05], [0x7c, 0x05], [0x7c, 0x45]]);
        let joined: Vec<u8> = payloads[1..].iter().flat_map(|payload| &payload[2..]).copied().collect();
        assert_eq!(joined, slice[1..]);
    }
}
