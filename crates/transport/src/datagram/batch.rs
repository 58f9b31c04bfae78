//! Sends and receives datagrams in batches: one system call for up to 64 datagrams, each of another peer.

use std::{
    collections::{HashMap, VecDeque},
    io::{self, IoSlice, IoSliceMut},
    net::SocketAddr,
    os::fd::{AsFd, AsRawFd},
    rc::Rc,
};

use nix::sys::socket::{MsgFlags, MultiHeaders, SockaddrStorage, recvmmsg};
use rustix::{
    io::Errno,
    net::{MMsgHdr, SendAncillaryBuffer, SendFlags, SocketAddrAny, sendmmsg},
};

use super::framed::{Outgoing, OverflowPolicy};

/// Maximum number of datagrams per system call.
pub const BATCH: usize = 64;
/// Maximum number of queued datagrams while the socket is blocked; the oldest are dropped, as on any full link.
const QUEUE_MAX: usize = 4096;

/// Datagrams received by the last system call.
pub struct Arrivals {
    /// One buffer for each datagram of a batch, in one allocation. The system provides its pages when they are used.
    buffers: Vec<u8>,
    buffer_bytes: usize,
    headers: MultiHeaders<SockaddrStorage>,
    /// Source address and length of the datagram in each buffer.
    came: Vec<(SocketAddr, usize)>,
}

impl Arrivals {
    /// Creates buffers for datagrams of at most this size. The rest of a longer datagram is cut off.
    pub fn new(datagram_bytes_max: usize) -> Self {
        let (headers, came) = (MultiHeaders::preallocate(BATCH, None), Vec::with_capacity(BATCH));
        Self { buffers: vec![0; BATCH * datagram_bytes_max], buffer_bytes: datagram_bytes_max, headers, came }
    }

    /// Receives up to [`BATCH`] datagrams and returns their number. A smaller number means that the socket is empty.
    ///
    /// Errors: `WouldBlock` if there is no datagram; otherwise the error of the socket.
    pub fn receive(&mut self, socket: impl AsFd) -> io::Result<usize> {
        let Self { buffers, buffer_bytes, headers, came } = self;
        came.clear();
        let mut slices: Vec<_> =
            buffers.chunks_exact_mut(*buffer_bytes).map(|buffer| [IoSliceMut::new(buffer)]).collect();
        let socket = socket.as_fd().as_raw_fd();
        let received = recvmmsg(socket, headers, slices.iter_mut(), MsgFlags::MSG_DONTWAIT, None)?;
        // A source that is neither IPv4 nor IPv6 matches no peer, so use the unspecified address.
        let nobody = SocketAddr::from(([0; 4], 0));
        came.extend(received.map(|one| (one.address.as_ref().and_then(address).unwrap_or(nobody), one.bytes)));
        Ok(came.len())
    }

    pub fn iter(&self) -> impl Iterator<Item = (SocketAddr, &[u8])> {
        let buffers = self.buffers.chunks_exact(self.buffer_bytes);
        self.came.iter().zip(buffers).map(|((from, length), buffer)| (*from, &buffer[..*length]))
    }
}

fn address(storage: &SockaddrStorage) -> Option<SocketAddr> {
    let v4 = storage.as_sockaddr_in().map(|v4| SocketAddr::V4((*v4).into()));
    v4.or_else(|| storage.as_sockaddr_in6().map(|v6| SocketAddr::V6((*v6).into())))
}

/// Datagrams that leave at the end of the turn, or when the socket has room again.
#[derive(Default)]
pub struct SendQueue {
    waiting: VecDeque<(SocketAddrAny, Vec<u8>)>,
    /// TCP streams by remote address. Datagrams to such an address are sent over its stream.
    pub streams: HashMap<SocketAddr, Rc<Outgoing>>,
    is_blocked: bool,
    /// Number of datagrams dropped because the queue was full or the destination unreachable.
    pub lost: u64,
}

impl SendQueue {
    pub fn push(&mut self, to: SocketAddr, datagram: Vec<u8>) {
        if !self.streams.is_empty()
            && let Some(stream) = self.streams.get(&to)
        {
            let length = u16::try_from(datagram.len()).ok();
            let push = |length: u16| stream.push(&[&length.to_be_bytes(), &datagram], OverflowPolicy::Loses);
            self.lost += u64::from(!length.is_some_and(push));
            return;
        }
        if self.waiting.len() >= QUEUE_MAX {
            self.waiting.pop_front();
            self.lost += 1;
        }
        self.waiting.push_back((to.into(), datagram));
    }

    /// Returns true if the socket accepts no datagrams at the moment.
    pub fn is_blocked(&self) -> bool {
        self.is_blocked
    }

    pub fn is_due(&self) -> bool {
        self.waiting.len() >= BATCH && !self.is_blocked
    }

    /// Sends all queued datagrams, or as many as the socket accepts.
    pub fn send(&mut self, socket: impl AsFd) {
        self.is_blocked = false;
        while !self.waiting.is_empty() {
            let slices: Vec<[IoSlice<'_>; 1]> =
                self.waiting.iter().take(BATCH).map(|(_, bytes)| [IoSlice::new(bytes)]).collect();
            let mut controls: Vec<SendAncillaryBuffer<'_, '_, '_>> =
                slices.iter().map(|_| SendAncillaryBuffer::default()).collect();
            let parts = self.waiting.iter().zip(&slices).zip(&mut controls);
            let mut messages: Vec<MMsgHdr<'_>> =
                parts.map(|(((to, _), slice), control)| MMsgHdr::new_with_addr(to, slice, control)).collect();
            match sendmmsg(&socket, &mut messages, SendFlags::DONTWAIT) {
                Ok(sent) => drop(self.waiting.drain(..sent)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    self.is_blocked = true;
                    return;
                }
                // The error concerns the first datagram: no route to its address, or an ICMP error for an earlier
                // datagram.
                Err(_) => {
                    self.waiting.pop_front();
                    self.lost += 1;
                }
            }
        }
    }
}
