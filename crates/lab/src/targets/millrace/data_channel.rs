//! A session over WebRTC: the client sends an offer by `POST`, then a WebRTC peer carries a stream of lines in its
//! reliable channel.

use std::{
    net::{Ipv4Addr, SocketAddr},
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use memchr::memchr_iter;
use millrace_rtc::{Lane, Offer, Outputs, Peer};

use super::session::Session;
use crate::{
    load::{
        Dialect, Event,
        dialect::append_datagram,
        http::{Answer, post},
        websocket::Subprotocol,
    },
    targets::ClientOptions,
};

/// Maximum number of bytes that the server has not acknowledged. Above it, the next publication waits.
const BUFFERED_MAX: usize = 64 * 1024;
/// Placeholder for the address of this peer. The server sees the real address.
const SOMEWHERE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 9);

pub struct DataChannel {
    session: Session,
    /// Zero of the generator's clock.
    begin: Instant,
    /// Last time on the generator's clock.
    now_ns: u64,
    /// Address of the server's datagrams.
    server: SocketAddr,
    stage: Stage,
    outputs: Outputs,
    /// Lines that the session wants to send.
    to_send: Vec<u8>,
    /// Received bytes that do not form a complete line yet.
    received: Vec<u8>,
    has_room: bool,
}

enum Stage {
    New,
    Offered(Box<Offer>),
    Open(Box<Peer>),
}

impl DataChannel {
    pub fn new(ask: &ClientOptions<'_>) -> Self {
        let session = Session::new(ask, |parts, out| {
            parts.iter().for_each(|part| out.extend_from_slice(part));
            out.push(b'\n');
        });
        let (outputs, to_send, received) = Default::default();
        let begin = Instant::now();
        Self {
            session,
            begin,
            now_ns: 0,
            server: SOMEWHERE,
            stage: Stage::New,
            outputs,
            to_send,
            received,
            has_room: true,
        }
    }

    fn at(&self, now_ns: u64) -> Instant {
        self.begin + Duration::from_nanos(now_ns)
    }

    /// Applies the answer to the offer and continues with datagrams.
    fn accept(&mut self, answer: &str, emit: &mut dyn FnMut(Event<'_>)) -> anyhow::Result<()> {
        let Stage::Offered(offer) = std::mem::replace(&mut self.stage, Stage::New) else {
            bail!("nothing was offered")
        };
        let mut peer = offer.accept(answer)?;
        peer.handle_timeout(self.at(self.now_ns), &mut self.outputs)?;
        self.stage = Stage::Open(Box::new(peer));
        self.server = self.outputs.datagrams.front().context("the answer says no address")?.0;
        emit(Event::Datagrams(self.server));
        Ok(())
    }

    /// Passes the peer's events to the session, and the session's lines to the peer.
    fn work(&mut self, emit: &mut dyn FnMut(Event<'_>)) -> anyhow::Result<()> {
        for event in std::mem::take(&mut self.outputs.events) {
            match event {
                millrace_rtc::Event::Open(Lane::Session) => self.session.opened(&mut self.to_send, emit),
                millrace_rtc::Event::Data(Lane::Session, data) => {
                    self.received.extend_from_slice(&data);
                    let mut from = 0;
                    for end in memchr_iter(b'\n', &self.received) {
                        self.session.message(&self.received[from..end], &mut self.to_send, emit)?;
                        from = end + 1;
                    }
                    self.received.drain(..from);
                }
                millrace_rtc::Event::Closed => emit(Event::Closed),
                _ => {}
            }
        }
        self.write()
    }

    fn write(&mut self) -> anyhow::Result<()> {
        let Stage::Open(peer) = &mut self.stage else { return Ok(()) };
        if !self.to_send.is_empty() {
            if !peer.write(Instant::now(), Lane::Session, true, &self.to_send, &mut self.outputs)? {
                bail!("the channel takes nothing");
            }
            self.to_send.clear();
        }
        self.has_room = peer.buffered(Lane::Session) < BUFFERED_MAX;
        Ok(())
    }

    fn flush(&mut self, out: &mut Vec<u8>) {
        self.outputs.datagrams.drain(..).for_each(|(_, datagram)| append_datagram(&datagram, out));
    }
}

impl Dialect for DataChannel {
    fn open(&mut self, out: &mut Vec<u8>) -> bool {
        (self.outputs, self.to_send, self.received, self.has_room) = (Outputs::default(), Vec::new(), Vec::new(), true);
        let offer = Peer::offer(SOMEWHERE, self.at(self.now_ns));
        post("/v1/connect", "Content-Type: application/sdp\r\n", offer.sdp.as_bytes(), out);
        self.stage = Stage::Offered(Box::new(offer));
        false
    }

    fn feed(
        &mut self,
        bytes: &[u8],
        now_ns: u64,
        out: &mut Vec<u8>,
        emit: &mut dyn FnMut(Event<'_>),
    ) -> anyhow::Result<usize> {
        self.now_ns = now_ns;
        let now = self.at(now_ns);
        let used = match &mut self.stage {
            Stage::New => 0,
            Stage::Offered(_) => {
                let Some(answer) = Answer::read(bytes)? else { return Ok(0) };
                answer.check()?;
                self.accept(std::str::from_utf8(&answer.body)?, emit)?;
                answer.used
            }
            Stage::Open(peer) => {
                let server = self.server;
                peer.handle_datagram(now, server, SOMEWHERE, bytes, &mut self.outputs)?;
                self.work(emit)?;
                bytes.len()
            }
        };
        self.flush(out);
        Ok(used)
    }

    fn publish(&mut self, payload: &[u8], out: &mut Vec<u8>) {
        self.session.publish(payload, &mut self.to_send);
        // A failed write is ignored: missing replies and messages will show it.
        let _ = self.write();
        self.flush(out);
    }

    fn can_publish(&self) -> bool {
        self.has_room
    }

    fn wake_at_ns(&self) -> Option<u64> {
        let Stage::Open(peer) = &self.stage else { return None };
        Some(peer.timeout().saturating_duration_since(self.begin).as_nanos() as u64)
    }

    fn wake(&mut self, now_ns: u64, out: &mut Vec<u8>) {
        self.now_ns = now_ns;
        let now = self.at(now_ns);
        if let Stage::Open(peer) = &mut self.stage {
            let _ = peer.handle_timeout(now, &mut self.outputs);
        }
        self.flush(out);
    }
}
