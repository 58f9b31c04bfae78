//! Kernel counters of one TCP connection: `getsockopt(TCP_INFO)`. They are exact to the byte, work for any number of
//! connections without root, and include pure ACKs and retransmissions.
//!
//! Not included: options of SYN segments beyond timestamps ([`SYN_OPTION_BYTES`]), and options of selective ACKs (12
//! bytes or more for each duplicate ACK on a path that loses packets).

use std::os::fd::AsFd;

use nix::sys::socket::getsockopt;

use crate::wire_cost::{Bytes, DirectionalBytes};

/// Bytes of options that Linux adds to a SYN beyond timestamps: segment size, selective ACKs, window scale. 8 bytes
/// with padding.
pub const SYN_OPTION_BYTES: u64 = 8;
const IPV4_BYTES: u64 = 20;
const IPV6_BYTES: u64 = 40;
const TCP_BYTES: u64 = 20;
/// Timestamp option of RFC 7323, with its padding.
const TIMESTAMP_BYTES: u64 = 12;
const TCPI_OPT_TIMESTAMPS: u8 = 1;
/// States after the FIN of the other end, which the kernel counts as a byte: TIME_WAIT, CLOSE, CLOSE_WAIT, LAST_ACK,
/// CLOSING.
const AFTER_FIN: [u8; 5] = [6, 7, 8, 9, 11];

/// Counters since the start of the connection. `out` means sent by this end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpInfo {
    /// Bytes of IP and TCP headers of a segment.
    pub header_bytes: u64,
    /// Maximum data bytes of a segment.
    pub segment_bytes: u64,
    pub bytes_out: u64,
    pub bytes_in: u64,
    pub bytes_again: u64,
    pub segments_out: u64,
    pub segments_in: u64,
    pub data_segments_out: u64,
    pub data_segments_in: u64,
    /// Sent segments that are not yet acknowledged.
    pub unacknowledged: u64,
    /// Number of SYNs in each direction that are included in the counters.
    pub syns: u64,
}

impl TcpInfo {
    /// Reads the counters of a socket.
    ///
    /// Errors: the socket is not a TCP socket, or the kernel is older than 4.19.
    pub fn of(socket: &impl AsFd, is_ipv6: bool) -> anyhow::Result<TcpInfo> {
        let raw = getsockopt(&socket.as_fd(), option::Info)?;
        let ip = if is_ipv6 { IPV6_BYTES } else { IPV4_BYTES };
        let options = if raw.options & TCPI_OPT_TIMESTAMPS != 0 { TIMESTAMP_BYTES } else { 0 };
        Ok(TcpInfo {
            header_bytes: ip + TCP_BYTES + options,
            segment_bytes: raw.snd_mss.into(),
            bytes_out: raw.bytes_sent,
            bytes_in: raw.bytes_received.saturating_sub(u64::from(AFTER_FIN.contains(&raw.state))),
            bytes_again: raw.bytes_retrans,
            segments_out: raw.segs_out.into(),
            segments_in: raw.segs_in.into(),
            data_segments_out: raw.data_segs_out.into(),
            data_segments_in: raw.data_segs_in.into(),
            unacknowledged: raw.unacked.into(),
            syns: 1,
        })
    }

    /// Returns the difference from an earlier reading.
    pub fn since(&self, earlier: &TcpInfo) -> TcpInfo {
        TcpInfo {
            header_bytes: self.header_bytes,
            segment_bytes: self.segment_bytes,
            bytes_out: self.bytes_out - earlier.bytes_out,
            bytes_in: self.bytes_in - earlier.bytes_in,
            bytes_again: self.bytes_again - earlier.bytes_again,
            segments_out: self.segments_out - earlier.segments_out,
            segments_in: self.segments_in - earlier.segments_in,
            data_segments_out: self.data_segments_out - earlier.data_segments_out,
            data_segments_in: self.data_segments_in - earlier.data_segments_in,
            unacknowledged: self.unacknowledged,
            syns: self.syns - earlier.syns,
        }
    }

    /// Adds the counters of another period of the same connection.
    pub fn add(&mut self, other: &TcpInfo) {
        self.header_bytes = other.header_bytes;
        self.segment_bytes = other.segment_bytes;
        self.bytes_out += other.bytes_out;
        self.bytes_in += other.bytes_in;
        self.bytes_again += other.bytes_again;
        self.segments_out += other.segments_out;
        self.segments_in += other.segments_in;
        self.data_segments_out += other.data_segments_out;
        self.data_segments_in += other.data_segments_in;
        self.unacknowledged = other.unacknowledged;
        self.syns += other.syns;
    }

    /// Returns the bytes of IP packets, split by purpose, from the view of the end that opened the connection.
    /// `payload_out` and `payload_in` are the payload bytes among them.
    pub fn bytes(&self, payload_out: u64, payload_in: u64) -> DirectionalBytes {
        let split = |payload: u64, bytes: u64, data_segments: u64, segments: u64| Bytes {
            payload: payload as f64,
            framing: (bytes - payload) as f64,
            tls: 0.0,
            headers: (data_segments * self.header_bytes) as f64,
            acks: ((segments - data_segments) * self.header_bytes + self.syns * SYN_OPTION_BYTES) as f64,
        };
        DirectionalBytes {
            up: split(payload_out, self.bytes_out, self.data_segments_out, self.segments_out),
            down: split(payload_in, self.bytes_in, self.data_segments_in, self.segments_in),
        }
    }
}

/// Socket option. The module is private, because the macro makes all items public.
mod option {
    use nix::{getsockopt_impl, libc, sockopt_impl};

    /// Start of Linux' `struct tcp_info`, up to the last field needed. Every kernel since 4.19 fills it, and later
    /// kernels only append fields.
    #[repr(C)]
    #[derive(Clone, Copy, Debug)]
    pub struct Raw {
        pub state: u8,
        pub congestion_to_backoff: [u8; 4],
        pub options: u8,
        pub window_scales: [u8; 2],
        pub timers: [u32; 2],
        pub snd_mss: u32,
        pub rcv_mss: u32,
        pub unacked: u32,
        pub sacked_to_total_retrans: [u32; 19],
        pub pacing_rates: [u64; 2],
        pub bytes_acked: u64,
        pub bytes_received: u64,
        pub segs_out: u32,
        pub segs_in: u32,
        pub notsent_bytes: u32,
        pub min_rtt: u32,
        pub data_segs_in: u32,
        pub data_segs_out: u32,
        pub delivery_rate: u64,
        pub limits: [u64; 3],
        pub delivered: [u32; 2],
        pub bytes_sent: u64,
        pub bytes_retrans: u64,
    }

    sockopt_impl!(Info, GetOnly, libc::IPPROTO_TCP, libc::TCP_INFO, Raw);
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        net::{TcpListener, TcpStream},
    };

    use super::*;

    #[test]
    fn both_ends_count_the_same_bytes() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near_socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut far_socket, _) = listener.accept().unwrap();
        near_socket.write_all(&[7; 1000]).unwrap();
        far_socket.read_exact(&mut [0; 1000]).unwrap();
        far_socket.write_all(&[7; 10]).unwrap();
        near_socket.read_exact(&mut [0; 10]).unwrap();
        let (near, far) = (TcpInfo::of(&near_socket, false).unwrap(), TcpInfo::of(&far_socket, false).unwrap());
        assert_eq!((near.bytes_out, near.bytes_in, near.bytes_again), (1000, 10, 0));
        assert_eq!((far.bytes_out, far.bytes_in), (10, 1000));
        assert_eq!((near.data_segments_out, near.data_segments_in), (1, 1));
        assert!(near.header_bytes == 52 || near.header_bytes == 40, "{near:?}");
        // At least three segments: SYN, ACK of the SYN, data.
        assert!(near.segments_out >= 3 && near.segments_in >= 2, "{near:?}");
        let bytes = near.bytes(900, 0).up;
        assert_eq!((bytes.payload, bytes.framing, bytes.headers), (900.0, 100.0, near.header_bytes as f64));
        drop(far_socket);
        assert_eq!(near_socket.read(&mut [0; 10]).unwrap(), 0);
        let closed = TcpInfo::of(&near_socket, false).unwrap();
        assert_eq!(closed.bytes_in, 10, "a FIN is no byte");
        let again = near.since(&near);
        assert_eq!((again.bytes(0, 0), again.syns), (DirectionalBytes::default(), 0));
        let mut sum = TcpInfo::default();
        sum.add(&near);
        sum.add(&again);
        assert_eq!(sum, near);
    }
}
