//! Listening sockets that one process passes to the next.

use std::{
    collections::BTreeMap,
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    net::{SocketAddr, TcpListener, UdpSocket},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::{UnixDatagram, UnixStream},
    },
};

use millrace_transport::datagram::RelaySockets;
use rustix::{
    io::retry_on_intr,
    net::{
        RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
        recvmsg, sendmsg,
    },
};
use tokio::sync::watch;

/// Maximum number of descriptors in one message. Source: unix(7), SCM_MAX_FD is 253.
const DESCRIPTORS_MAX: usize = 64;

/// Sockets by name, such as `http/0`.
#[derive(Debug, Default)]
pub struct SocketSet(BTreeMap<String, OwnedFd>);

impl SocketSet {
    /// Adds a duplicate of a socket.
    ///
    /// Errors: the process has no descriptor left.
    pub fn keep(&mut self, name: String, socket: &impl AsFd) -> io::Result<()> {
        self.0.insert(name, socket.as_fd().try_clone_to_owned()?);
        Ok(())
    }

    pub fn names(&self) -> Vec<String> {
        self.0.keys().cloned().collect()
    }

    pub fn take(&mut self, name: &str) -> Option<OwnedFd> {
        self.0.remove(name)
    }

    /// Sends all sockets, in the order of [`SocketSet::names`].
    ///
    /// Errors: the other process has ended.
    pub fn send(&self, stream: &UnixStream) -> io::Result<()> {
        let sockets: Vec<BorrowedFd<'_>> = self.0.values().map(AsFd::as_fd).collect();
        for part in sockets.chunks(DESCRIPTORS_MAX) {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
            let mut ancillary = SendAncillaryBuffer::new(&mut space);
            ancillary.push(SendAncillaryMessage::ScmRights(part));
            // With a write timeout, a signal interrupts even a call that the system would restart. Source: signal(7).
            retry_on_intr(|| sendmsg(stream, &[IoSlice::new(&[0])], &mut ancillary, SendFlags::empty()))?;
        }
        Ok(())
    }

    /// Receives the sockets with these names.
    ///
    /// Errors: the other process has ended, or sent fewer sockets.
    pub fn receive(stream: &UnixStream, names: Vec<String>) -> io::Result<Self> {
        let mut sockets = Vec::with_capacity(names.len());
        while sockets.len() < names.len() {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
            let mut ancillary = RecvAncillaryBuffer::new(&mut space);
            let mut byte = [0];
            let received = retry_on_intr(|| {
                recvmsg(stream, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)
            })?;
            let before = sockets.len();
            for message in ancillary.drain() {
                if let RecvAncillaryMessage::ScmRights(received) = message {
                    sockets.extend(received);
                }
            }
            if received.bytes == 0 || sockets.len() == before {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(Self(names.into_iter().zip(sockets).collect()))
    }
}

/// Opens the sockets of a server: takes those of the old process, and binds the others. It keeps a duplicate of each,
/// to pass them on to the next process.
#[derive(Debug, Default)]
pub struct Opener {
    pub inherited: SocketSet,
    pub kept: SocketSet,
}

/// Kinds of sockets that a process can take over.
pub trait Socket: From<OwnedFd> + AsFd {
    fn address(&self) -> io::Result<SocketAddr>;
}

impl Socket for TcpListener {
    fn address(&self) -> io::Result<SocketAddr> {
        self.local_addr()
    }
}

impl Socket for UdpSocket {
    fn address(&self) -> io::Result<SocketAddr> {
        self.local_addr()
    }
}

impl Opener {
    /// Returns the old process's socket of this name if it has the wanted address (any port, if that is 0), and binds
    /// one otherwise.
    ///
    /// Errors: those of `bind`, and a lack of descriptors.
    pub fn open<S: Socket>(
        &mut self,
        name: &str,
        wanted: SocketAddr,
        bind: impl FnOnce() -> io::Result<S>,
    ) -> io::Result<S> {
        let socket = match self.take(name, wanted) {
            Some(socket) => socket,
            None => bind()?,
        };
        self.kept.keep(name.to_owned(), &socket)?;
        Ok(socket)
    }

    /// Opens a socket for datagrams like [`Opener::open`], and the listener on the same port that may belong to it.
    ///
    /// Errors: those of `bind`, and a lack of descriptors.
    pub fn open_pair(
        &mut self,
        name: &str,
        wanted: SocketAddr,
        has_listener: bool,
        bind: impl FnOnce() -> io::Result<(UdpSocket, Option<TcpListener>)>,
    ) -> io::Result<(UdpSocket, Option<TcpListener>)> {
        let names = [format!("{name}/udp"), format!("{name}/tcp")];
        let (datagrams, listener) = (self.take(&names[0], wanted), self.take(&names[1], wanted));
        let (datagrams, listener) = match (datagrams, listener) {
            (Some(datagrams), listener) if listener.is_some() == has_listener => (datagrams, listener),
            _ => bind()?,
        };
        let [datagrams_name, listener_name] = names;
        self.kept.keep(datagrams_name, &datagrams)?;
        listener.iter().try_for_each(|listener| self.kept.keep(listener_name.clone(), listener))?;
        Ok((datagrams, listener))
    }

    /// Opens the relay of a datagram port: takes the end that the old process has left for this one, and keeps one for
    /// the next process.
    ///
    /// Errors: a lack of descriptors.
    pub fn open_relay(&mut self, name: &str, handed_over: watch::Receiver<bool>) -> io::Result<RelaySockets> {
        let name = format!("{name}/relay");
        let predecessor = self.inherited.take(&name).map(UnixDatagram::from);
        let (incoming, next) = RelaySockets::pair()?;
        self.kept.keep(name, &next)?;
        Ok(RelaySockets { incoming, predecessor, handed_over })
    }

    fn take<S: Socket>(&mut self, name: &str, wanted: SocketAddr) -> Option<S> {
        let socket = S::from(self.inherited.take(name)?);
        let is_wanted = |at: SocketAddr| at.ip() == wanted.ip() && (wanted.port() == 0 || at.port() == wanted.port());
        socket.address().is_ok_and(is_wanted).then_some(socket)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_arrive_with_their_names() {
        let (old, new) = UnixStream::pair().unwrap();
        let mut opener = Opener::default();
        let any = "127.0.0.1:0".parse().unwrap();
        let listeners: Vec<TcpListener> =
            (0..100).map(|i| opener.open(&format!("http/{i}"), any, || TcpListener::bind(any)).unwrap()).collect();
        let udp = opener.open("udp", any, || UdpSocket::bind(any)).unwrap();
        opener.kept.send(&old).unwrap();
        let inherited = SocketSet::receive(&new, opener.kept.names()).unwrap();
        let mut opener = Opener { inherited, ..Opener::default() };
        let not_bound = || -> io::Result<TcpListener> { panic!("the inherited socket has the address") };
        for (i, listener) in listeners.iter().enumerate() {
            let address = listener.local_addr().unwrap();
            let wanted = if i % 2 == 0 { address } else { any };
            let taken = opener.open(&format!("http/{i}"), wanted, not_bound).unwrap();
            assert_eq!(taken.local_addr().unwrap(), address);
        }
        // Another address is bound anew.
        let other = "127.0.0.2:0".parse().unwrap();
        let bound = opener.open("udp", other, || UdpSocket::bind(other)).unwrap();
        assert!(bound.local_addr().unwrap().ip() == other.ip() && udp.local_addr().is_ok());
        assert_eq!(opener.kept.names().len(), 101);
    }

    #[test]
    fn missing_sockets_are_an_error() {
        let (old, new) = UnixStream::pair().unwrap();
        SocketSet::default().send(&old).unwrap();
        drop(old);
        assert!(SocketSet::receive(&new, vec!["http/0".into()]).is_err());
    }
}
