//! A socket of a connection: reads and writes, through TLS if it has a TLS session, and its registration with epoll.

use std::{io, os::fd::OwnedFd};

use bytes::BytesMut;
use millrace_delivery::ConnId;
use millrace_engine::LogRateLimit;
use rustix::{
    event::epoll::{self, EventData, EventFlags},
    net::{RecvFlags, SendFlags},
};

use super::{CommandQueue, ConnectionProtocol};
use crate::tls::{Received, Session};

/// A file descriptor, with the decoder state of the bytes read from it.
pub(crate) struct Socket {
    pub(super) generation: u32,
    pub(crate) fd: OwnedFd,
    pub(crate) decoder: millrace_protocol::websocket::Decoder,
    pub(crate) protocol: ConnectionProtocol,
    /// True if the client may send compressed messages.
    pub(crate) deflate: bool,
    /// Second in which the hub was last notified of bytes from the peer. One notification per second is enough.
    received_s: u32,
    /// Queued commands. While this is `Some`, the connection is not read. Boxed, because it is rare and an endpoint
    /// must fit into one cache line.
    pub(super) commands: Option<Box<CommandQueue>>,
    /// Low bits of the epoll flags of this descriptor. `ET` is not included, because it is always set.
    watched: u16,
    pub(crate) tls: Option<Box<Session>>,
}

impl Socket {
    pub(super) fn new(
        generation: u32,
        fd: OwnedFd,
        tls: Option<Box<Session>>,
        protocol: ConnectionProtocol,
        deflate: bool,
    ) -> Self {
        let decoder = Default::default();
        Self { generation, fd, decoder, protocol, deflate, received_s: 0, commands: None, watched: 0, tls }
    }

    pub(super) fn write(&mut self, id: ConnId, bytes: &[u8], epoll: &OwnedFd) -> usize {
        if let ConnectionProtocol::Mqtt(link) = &self.protocol {
            let taken = link.borrow_mut().take_records(bytes);
            self.flush_mqtt(id, epoll);
            return taken;
        }
        self.write_raw(id, bytes, epoll)
    }

    /// Sends what an MQTT link has for its client. Returns the number of bytes sent.
    pub(super) fn flush_mqtt(&mut self, id: ConnId, epoll: &OwnedFd) -> usize {
        let ConnectionProtocol::Mqtt(link) = &self.protocol else { return 0 };
        let (link, mut sent) = (link.clone(), 0);
        link.borrow_mut().flush(|bytes| {
            let taken = self.write_raw(id, bytes, epoll);
            sent += taken;
            taken
        });
        sent
    }

    fn write_raw(&mut self, id: ConnId, bytes: &[u8], epoll: &OwnedFd) -> usize {
        if self.tls.is_some() {
            return self.write_tls(id, bytes, epoll);
        }
        let taken = loop {
            match send(&self.fd, bytes) {
                Ok(taken) => break taken,
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => break 0,
                // The connection is dead. The event loop receives the error, too, and removes the connection.
                Err(_) => return bytes.len(),
            }
        };
        if taken < bytes.len() && !self.watched().contains(EventFlags::OUT) {
            self.change(id, self.watched() | EventFlags::OUT, epoll);
        }
        taken
    }

    /// Writes through TLS. The last accepted record may stay queued in the TLS session.
    #[inline(never)]
    fn write_tls(&mut self, id: ConnId, bytes: &[u8], epoll: &OwnedFd) -> usize {
        let Self { fd, tls: Some(tls), .. } = self else { return bytes.len() };
        let Ok(taken) = tls.write(bytes, |bytes| Ok(send(fd, bytes)?)) else { return bytes.len() };
        if (taken < bytes.len() || tls.is_pending()) && !self.watched().contains(EventFlags::OUT) {
            self.change(id, self.watched() | EventFlags::OUT, epoll);
        }
        taken
    }

    pub(crate) fn is_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Receives through TLS and sends the responses that the TLS protocol requires.
    ///
    /// Errors: those of the socket; `WouldBlock` if no bytes are available; `InvalidData` for bytes that are not
    /// TLS.
    pub(crate) fn read_tls(&mut self, id: ConnId, plain: &mut BytesMut, epoll: &OwnedFd) -> io::Result<Received> {
        let Self { fd, tls: Some(tls), .. } = self else { return Ok(Received::End) };
        let received = tls.read(plain, |buffer| Ok(rustix::net::recv(&*fd, buffer, RecvFlags::DONTWAIT)?.1));
        tls.flush(|bytes| Ok(send(fd, bytes)?))?;
        if tls.is_pending() && !self.watched().contains(EventFlags::OUT) {
            self.change(id, self.watched() | EventFlags::OUT, epoll);
        }
        received
    }

    pub(super) fn watched(&self) -> EventFlags {
        EventFlags::from_bits_retain(self.watched.into())
    }

    pub(super) fn is_pending(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.is_pending())
    }

    /// Changes the events that epoll reports. Events that are ready now are reported once more. This matters because
    /// the descriptors are edge-triggered: epoll does not report a readiness twice by itself.
    pub(super) fn change(&mut self, id: ConnId, wanted: EventFlags, epoll: &OwnedFd) {
        let data = EventData::new_u64(u64::from(id.generation) << 32 | u64::from(id.slot));
        let wanted = wanted | EventFlags::RDHUP | EventFlags::ET;
        let changed = match self.watched == 0 {
            true => epoll::add(epoll, &self.fd, data, wanted),
            false => epoll::modify(epoll, &self.fd, data, wanted),
        };
        match changed {
            Ok(()) => self.watched = wanted.bits() as u16,
            Err(error) => {
                static LOGGED: LogRateLimit = LogRateLimit::new();
                if LOGGED.is_due() {
                    tracing::error!(%error, "cannot register a socket with epoll");
                }
            }
        }
    }

    /// Removes the descriptor from epoll.
    pub(super) fn unwatch(&self, epoll: &OwnedFd) {
        if self.watched != 0 {
            let _ = epoll::delete(epoll, &self.fd);
        }
    }

    /// Returns true at the first call in each second. Call it when bytes from the peer arrive.
    pub(crate) fn is_first_of_second(&mut self, now_s: u32) -> bool {
        std::mem::replace(&mut self.received_s, now_s) != now_s
    }

    /// Handles room in the send buffer: flushes TLS, and stops watching for room until the next partial write.
    /// Returns false if queued TLS bytes have filled the send buffer again.
    pub(crate) fn unblocked(&mut self, id: ConnId, epoll: &OwnedFd) -> bool {
        if let Self { fd, tls: Some(tls), .. } = self
            && matches!(tls.flush(|bytes| Ok(send(fd, bytes)?)), Ok(false))
        {
            return false;
        }
        self.change(id, self.watched() - EventFlags::OUT, epoll);
        if let ConnectionProtocol::Mqtt(link) = &self.protocol {
            let link = link.clone();
            self.flush_mqtt(id, epoll);
            return link.borrow().pending_bytes() == 0;
        }
        true
    }
}

fn send(fd: &OwnedFd, bytes: &[u8]) -> rustix::io::Result<usize> {
    rustix::net::send(fd, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)
}
