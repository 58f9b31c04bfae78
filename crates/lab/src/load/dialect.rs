//! What a client says and hears on one connection, without the connection: bytes in, bytes out.

use std::net::SocketAddr;

/// One connection's side of a conversation. A state machine without sockets or clocks.
pub trait Dialect: Send {
    /// Appends what a fresh connection says first. True: it is ready at once, no [`Event::Ready`] follows. Called again after the
    /// connection broke: then it goes on from where it was, if the protocol can.
    fn open(&mut self, out: &mut Vec<u8>) -> bool;

    /// Takes bytes that have come and returns how many it has used up; the rest is offered again, with what comes next.
    /// `out`: what has to be answered at once (a pong, the next poll).
    ///
    /// Errors: the server refused, or does not keep the protocol. The connection is closed.
    fn feed(
        &mut self,
        bytes: &[u8],
        now_ns: u64,
        out: &mut Vec<u8>,
        hear: &mut dyn FnMut(Event<'_>),
    ) -> anyhow::Result<usize>;

    /// Appends a publication. Only for a role that publishes, when ready and [`Dialect::can_publish`].
    fn publish(&mut self, payload: &[u8], out: &mut Vec<u8>);

    /// False while so many publications are unanswered that the next one has to wait.
    fn can_publish(&self) -> bool {
        true
    }

    /// When [`Dialect::wake`] wants to be called, by the clock of [`Dialect::feed`].
    fn wake_at_ns(&self) -> Option<u64> {
        None
    }

    /// Time has come: the next poll.
    fn wake(&mut self, _now_ns: u64, _out: &mut Vec<u8>) {}

    /// Appends bytes that somebody else says on this connection, as they go over the wire.
    fn wrap(&mut self, plain: &[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(plain);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// From now on everything that is published will be heard, and publications are taken.
    Ready,
    Message(&'a [u8]),
    /// A publication was taken.
    Accepted,
    /// A publication was refused.
    Refused,
    /// The server says that something is missing.
    Gap,
    /// The server has ended this connection; connect again.
    Closed,
    /// From now on datagrams to and from there: each is fed whole, and said by [`say_datagram`]. The connection ends.
    Datagrams(SocketAddr),
}

/// Appends a datagram to what is said, behind its length.
pub fn say_datagram(datagram: &[u8], out: &mut Vec<u8>) {
    let length = u16::try_from(datagram.len()).expect("a datagram is no longer");
    out.extend_from_slice(&length.to_be_bytes());
    out.extend_from_slice(datagram);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Subscriber,
    Publisher,
    /// Both on one connection.
    Both,
}

impl Role {
    pub fn subscribes(self) -> bool {
        self != Role::Publisher
    }

    pub fn publishes(self) -> bool {
        self != Role::Subscriber
    }
}

/// Where the load goes: a server, by one of its transports.
pub trait Wire: Sync {
    fn address(&self) -> SocketAddr;

    /// Where a connection goes that only publishes.
    fn publish_address(&self) -> SocketAddr {
        self.address()
    }

    /// True if one connection can be [`Role::Both`]; else who publishes has a second one.
    fn is_duplex(&self) -> bool;

    fn dialect(&self, role: Role, channel: &str) -> Box<dyn Dialect>;
}

#[cfg(test)]
pub mod script {
    //! What every dialect has to stand: its input in pieces of any size.

    use super::*;

    /// Owned events, and all that was said.
    #[derive(Debug, PartialEq, Eq, Default)]
    pub struct Heard {
        pub events: Vec<String>,
        pub said: String,
    }

    /// Opens the dialect and feeds it the script in pieces of `size` bytes.
    pub fn hear(dialect: &mut dyn Dialect, script: &[u8], size: usize) -> anyhow::Result<Heard> {
        let (mut out, mut events, mut rest) = (Vec::new(), Vec::new(), Vec::new());
        dialect.open(&mut out);
        for piece in script.chunks(size) {
            rest.extend_from_slice(piece);
            let used = dialect.feed(&rest, 0, &mut out, &mut |event| {
                events.push(match event {
                    Event::Message(payload) => String::from_utf8_lossy(payload).into_owned(),
                    other => format!("{other:?}"),
                });
            })?;
            rest.drain(..used);
        }
        Ok(Heard { events, said: String::from_utf8_lossy(&out).into_owned() })
    }

    /// What a server says on a WebSocket: the answer to the handshake, then frames by their first byte and their payload.
    pub fn websocket(frames: &[(u8, &[u8])]) -> Vec<u8> {
        let accept = crate::load::websocket::ACCEPT;
        let mut out = format!("HTTP/1.1 101 Switching\r\nSec-Websocket-Accept: {accept}\r\n\r\n").into_bytes();
        for (first, payload) in frames {
            out.push(*first);
            match payload.len() {
                short @ 0..126 => out.push(short as u8),
                long => {
                    out.push(126);
                    out.extend_from_slice(&(long as u16).to_be_bytes());
                }
            }
            out.extend_from_slice(payload);
        }
        out
    }

    /// Whole, byte by byte, and in every size between: the same is heard and said. Returns that.
    pub fn in_pieces(dialect: impl Fn() -> Box<dyn Dialect>, script: &[u8]) -> Heard {
        let whole = hear(&mut *dialect(), script, script.len().max(1)).expect("a good script");
        for size in 1..script.len().min(200) {
            let heard = hear(&mut *dialect(), script, size).expect("a good script in pieces");
            assert_eq!(heard, whole, "in pieces of {size} bytes");
        }
        whole
    }
}
