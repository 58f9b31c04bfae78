//! Finds the peer for a datagram from an unknown address.

/// Type of a STUN binding request, and of the attribute that names both ends. Source: RFC 8489, sections 5 and 14.3.
const BINDING_REQUEST: [u8; 2] = [0, 1];
const USERNAME: u16 = 6;
const HEAD_BYTES: usize = 20;
const COOKIE: [u8; 4] = [0x21, 0x12, 0xa4, 0x42];

/// Returns the server's half of the username in a STUN binding request. `None`: the datagram is no such request. The
/// name proves nothing: the peer that it names verifies the message.
///
/// Source: RFC 8445, section 7.2.2: `server:client`.
pub fn ufrag(datagram: &[u8]) -> Option<&str> {
    let head = datagram.get(..HEAD_BYTES)?;
    if head[..2] != BINDING_REQUEST || head[4..8] != COOKIE {
        return None;
    }
    let mut rest = &datagram[HEAD_BYTES..];
    loop {
        let kind = u16::from_be_bytes(rest.get(..2)?.try_into().ok()?);
        let length = usize::from(u16::from_be_bytes(rest.get(2..4)?.try_into().ok()?));
        let value = rest.get(4..4 + length)?;
        if kind == USERNAME {
            return std::str::from_utf8(value).ok()?.split_once(':').map(|(ours, _)| ours);
        }
        rest = rest.get(4 + length.next_multiple_of(4)..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(attributes: &[(u16, &[u8])]) -> Vec<u8> {
        let mut bytes = [BINDING_REQUEST.as_slice(), &[0, 0], &COOKIE, &[7; 12]].concat();
        for (kind, value) in attributes {
            bytes.extend(kind.to_be_bytes());
            bytes.extend((value.len() as u16).to_be_bytes());
            bytes.extend_from_slice(value);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
        }
        bytes
    }

    #[test]
    fn ufrag_is_found_after_other_attributes() {
        let bytes = request(&[(0x24, &[1, 2, 3, 4]), (0x8022, b"odd"), (USERNAME, b"ours:theirs")]);
        assert_eq!(ufrag(&bytes), Some("ours"));
        for cut in 0..bytes.len() {
            let found = ufrag(&bytes[..cut]);
            assert!(found.is_none() || cut >= bytes.len() - 1, "{cut}: {found:?}");
        }
    }

    #[test]
    fn non_request_has_no_ufrag() {
        let good = request(&[(USERNAME, b"ours:theirs")]);
        for (at, wrong) in [(0, 1), (1, 17), (4, 0)] {
            let mut bytes = good.clone();
            bytes[at] = wrong;
            assert_eq!(ufrag(&bytes), None, "{at}");
        }
        assert_eq!(ufrag(&request(&[(USERNAME, b"no colon")])), None);
        assert_eq!(ufrag(&request(&[])), None);
    }
}
