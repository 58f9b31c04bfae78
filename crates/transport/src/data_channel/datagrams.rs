//! Datagrams that leave together: one call of the system for up to 64 of them, each to somebody else.

use std::{io::IoSlice, net::SocketAddr, os::fd::AsFd};

use rustix::{
    io::Errno,
    net::{MMsgHdr, SendAncillaryBuffer, SendFlags, SocketAddrAny, sendmmsg},
};

/// Sent with one call.
pub const BATCH: usize = 64;
/// While the system takes none, so many wait; the oldest give way, as on any full link.
const WAITING_MAX: usize = 4096;

#[derive(Default)]
pub struct Datagrams {
    waiting: std::collections::VecDeque<(SocketAddrAny, Vec<u8>)>,
    is_stuck: bool,
    /// Given up because nothing was taken for too long, or sent to where nothing can be.
    pub lost: u64,
}

impl Datagrams {
    pub fn push(&mut self, to: SocketAddr, datagram: Vec<u8>) {
        if self.waiting.len() >= WAITING_MAX {
            self.waiting.pop_front();
            self.lost += 1;
        }
        self.waiting.push_back((to.into(), datagram));
    }

    /// The system takes no more for now.
    pub fn is_stuck(&self) -> bool {
        self.is_stuck
    }

    pub fn is_due(&self) -> bool {
        self.waiting.len() >= BATCH && !self.is_stuck
    }

    /// Sends all, or as many as the system takes.
    pub fn send(&mut self, socket: impl AsFd) {
        self.is_stuck = false;
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
                    self.is_stuck = true;
                    return;
                }
                // Of the first: where it should go there is no way to, or somebody says that nobody is there.
                Err(_) => {
                    self.waiting.pop_front();
                    self.lost += 1;
                }
            }
        }
    }
}
