//! Kernel counters of a TCP connection. The kernel counts in any case, so they cost nothing until they are read.

use std::os::fd::AsFd;

use nix::sys::socket::getsockopt;

/// Returns the bytes sent on a TCP connection, without retransmissions. `None` for a socket of another kind, or on a
/// kernel older than 4.19.
pub fn bytes_sent(socket: &impl AsFd) -> Option<u64> {
    let info = getsockopt(&socket.as_fd(), option::Info).ok()?;
    Some(info.bytes_sent.saturating_sub(info.bytes_retrans))
}

/// Socket option. The module is private, because the macro makes all items public.
mod option {
    use nix::{getsockopt_impl, libc, sockopt_impl};

    /// Start of Linux' `struct tcp_info`, up to the last field needed. Every kernel since 4.19 fills it, and later
    /// kernels only append fields.
    #[repr(C)]
    #[derive(Clone, Copy, Debug)]
    pub struct Raw {
        pub before: [u8; 104],
        pub pacing_to_received: [u64; 4],
        pub segments: [u32; 6],
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
    fn bytes_sent_are_those_of_the_sender() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut far, _) = listener.accept().unwrap();
        near.write_all(&[7; 1000]).unwrap();
        far.read_exact(&mut [0; 1000]).unwrap();
        assert_eq!((bytes_sent(&near), bytes_sent(&far)), (Some(1000), Some(0)));
        let (other, _) = std::os::unix::net::UnixStream::pair().unwrap();
        assert_eq!(bytes_sent(&other), None);
    }
}
