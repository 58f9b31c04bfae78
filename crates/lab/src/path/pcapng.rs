//! Writer of packet logs that Wireshark opens.
//!
//! Source: draft-ietf-opsawg-pcapng.

use std::io::{self, Write};

/// Link type of packets that begin with their IP header. Source: tcpdump.org/linktypes.html, LINKTYPE_RAW.
const RAW_IP: u16 = 101;
const SECTION: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const PACKET: u32 = 6;
const BYTE_ORDER: u32 = 0x1a2b_3c4d;
const OPTION_COMMENT: u16 = 1;
const OPTION_NAME: u16 = 2;
const OPTION_RESOLUTION: u16 = 9;

/// A log with one interface per name.
pub struct PcapNg<W> {
    out: W,
}

impl<W: Write> PcapNg<W> {
    /// Writes the head of the log.
    ///
    /// Errors: those of `out`.
    pub fn new(mut out: W, interfaces: &[&str]) -> io::Result<Self> {
        let mut section = Vec::new();
        section.extend(BYTE_ORDER.to_le_bytes());
        section.extend([1, 0, 0, 0]);
        section.extend(u64::MAX.to_le_bytes());
        block(&mut out, SECTION, &section)?;
        for name in interfaces {
            let mut interface = Vec::new();
            interface.extend(RAW_IP.to_le_bytes());
            interface.extend([0; 6]);
            option(&mut interface, OPTION_NAME, name.as_bytes());
            // Times are in units of 10^-9 s.
            option(&mut interface, OPTION_RESOLUTION, &[9]);
            interface.extend([0; 4]);
            block(&mut out, INTERFACE, &interface)?;
        }
        Ok(Self { out })
    }

    /// Writes one packet. `time_ns`: since 1970, or since the start.
    ///
    /// Errors: those of the output.
    pub fn packet(&mut self, interface: u32, time_ns: u64, bytes: &[u8], comment: &str) -> io::Result<()> {
        let mut packet = Vec::with_capacity(32 + bytes.len());
        packet.extend(interface.to_le_bytes());
        packet.extend(((time_ns >> 32) as u32).to_le_bytes());
        packet.extend((time_ns as u32).to_le_bytes());
        packet.extend((bytes.len() as u32).to_le_bytes());
        packet.extend((bytes.len() as u32).to_le_bytes());
        packet.extend(bytes);
        pad(&mut packet);
        if !comment.is_empty() {
            option(&mut packet, OPTION_COMMENT, comment.as_bytes());
            packet.extend([0; 4]);
        }
        block(&mut self.out, PACKET, &packet)
    }

    /// Errors: those of the output.
    pub fn finish(mut self) -> io::Result<W> {
        self.out.flush()?;
        Ok(self.out)
    }
}

fn block(out: &mut impl Write, kind: u32, body: &[u8]) -> io::Result<()> {
    let length = (12 + body.len() as u32).to_le_bytes();
    out.write_all(&kind.to_le_bytes())?;
    out.write_all(&length)?;
    out.write_all(body)?;
    out.write_all(&length)
}

fn option(out: &mut Vec<u8>, code: u16, value: &[u8]) {
    out.extend(code.to_le_bytes());
    out.extend((value.len() as u16).to_le_bytes());
    out.extend(value);
    pad(out);
}

fn pad(out: &mut Vec<u8>) {
    out.resize(out.len().next_multiple_of(4), 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_have_their_lengths_and_are_padded() {
        let mut log = PcapNg::new(Vec::new(), &["up", "down"]).expect("a log");
        log.packet(1, 5_000_000_007, &[0x45, 1, 2], "lost: channel").expect("a packet");
        let bytes = log.finish().expect("a log");
        let (mut at, mut kinds) = (0, Vec::new());
        let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        while at < bytes.len() {
            let length = u32_at(at + 4) as usize;
            assert!(length.is_multiple_of(4) && u32_at(at + length - 4) as usize == length);
            kinds.push(u32_at(at));
            at += length;
        }
        assert_eq!(kinds, [SECTION, INTERFACE, INTERFACE, PACKET]);
        let packet = bytes.len() - u32_at(bytes.len() - 4) as usize;
        assert_eq!(u64::from(u32_at(packet + 12)) << 32 | u64::from(u32_at(packet + 16)), 5_000_000_007);
        assert_eq!((u32_at(packet + 8), u32_at(packet + 20)), (1, 3));
    }
}
