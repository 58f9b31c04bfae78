//! Engine.IO packets, protocol 4, and the part of Socket.IO's protocol 5 on top of them.
//!
//! `0` open, `2` ping, `3` pong, `4` message. Socket.IO: `40` connect, `42["m",..]` an event with its argument.

use crate::{
    load::{
        Dialect, Event,
        http::{Answer, get, post},
        websocket::{OverWebSocket, Subprotocol, TEXT, WebSocket, between, frame_into, frame_of},
    },
    targets::{ClientOptions, Transport},
};

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Flavour {
    Engine,
    Socket,
}

impl Flavour {
    /// Returns the bytes before and after a payload.
    fn around(self) -> (&'static [u8], &'static [u8]) {
        match self {
            Flavour::Engine => (b"4", b""),
            Flavour::Socket => (b"42[\"m\",", b"]"),
        }
    }

    /// Handles one packet and returns the required reply.
    fn handle_packet(self, packet: &[u8], emit: &mut dyn FnMut(Event<'_>)) -> Option<&'static [u8]> {
        let (before, after) = self.around();
        match packet.first() {
            Some(b'0') if self == Flavour::Engine => emit(Event::Ready),
            Some(b'0') => return Some(b"40"),
            Some(b'1') => emit(Event::Closed),
            Some(b'2') => return Some(b"3"),
            _ if self == Flavour::Socket && packet.starts_with(b"40") => emit(Event::Ready),
            _ if self == Flavour::Socket && packet.starts_with(b"44") => emit(Event::Closed),
            _ => {
                let payload = packet.strip_prefix(before).and_then(|rest| rest.strip_suffix(after));
                payload.into_iter().for_each(|payload| emit(Event::Message(payload)));
            }
        }
        None
    }
}

/// Creates a client. A client that only publishes always uses WebSocket: a poll would block the connection that also
/// carries its `POST` requests.
pub fn dialect(transport: Transport, path: &str, flavour: Flavour, ask: &ClientOptions<'_>) -> Box<dyn Dialect> {
    let subscribe = if ask.role.subscribes() { "" } else { "&subscribe=no" };
    let path = |transport| format!("{path}?EIO=4&transport={transport}&channel={}{subscribe}", ask.channel);
    match transport {
        Transport::LongPolling if ask.role.subscribes() => Box::new(over_polling(path("polling"), flavour)),
        _ => Box::new(over_websocket(path("websocket"), flavour)),
    }
}

pub fn over_websocket(path: String, flavour: Flavour) -> OverWebSocket<Flavour> {
    OverWebSocket::new(WebSocket::new(path, None), flavour)
}

pub fn over_polling(path: String, flavour: Flavour) -> OverPolling {
    OverPolling { path, flavour, expects_post: false }
}

impl Subprotocol for Flavour {
    fn opened(&mut self, _: &mut Vec<u8>, _: &mut dyn FnMut(Event<'_>)) {}

    fn message(&mut self, packet: &[u8], out: &mut Vec<u8>, emit: &mut dyn FnMut(Event<'_>)) -> anyhow::Result<()> {
        if let Some(answer) = self.handle_packet(packet, emit) {
            frame_into(TEXT, answer, out);
        }
        Ok(())
    }

    fn publish(&mut self, payload: &[u8], out: &mut Vec<u8>) {
        let (before, after) = self.around();
        frame_of(TEXT, &[before, payload, after], out);
    }
}

/// Long polling client. One `GET` is always outstanding; replies are posted before the next `GET`.
pub struct OverPolling {
    path: String,
    flavour: Flavour,
    /// True if the next response belongs to a `POST`.
    expects_post: bool,
}

impl Dialect for OverPolling {
    fn open(&mut self, out: &mut Vec<u8>) -> bool {
        self.expects_post = false;
        if let Some(session) = self.path.find("&sid=") {
            self.path.truncate(session);
        }
        get(&self.path, "", out);
        false
    }

    fn feed(
        &mut self,
        bytes: &[u8],
        _: u64,
        out: &mut Vec<u8>,
        emit: &mut dyn FnMut(Event<'_>),
    ) -> anyhow::Result<usize> {
        let mut at = 0;
        while let Some(answer) = Answer::read(&bytes[at..])? {
            at += answer.used;
            answer.check()?;
            if std::mem::take(&mut self.expects_post) {
                continue;
            }
            if let Some(session) =
                between(&answer.body, b"{\"sid\":\"", b"\"").filter(|_| answer.body.starts_with(b"0"))
            {
                self.path.push_str(&format!("&sid={}", String::from_utf8_lossy(session)));
            }
            for packet in answer.body.split(|byte| *byte == 0x1e) {
                if let Some(said) = self.flavour.handle_packet(packet, emit) {
                    post(&self.path, "Content-Type: text/plain;charset=UTF-8\r\n", said, out);
                    self.expects_post = true;
                }
            }
            get(&self.path, "", out);
        }
        Ok(at)
    }

    fn publish(&mut self, _: &[u8], _: &mut Vec<u8>) {
        unreachable!("publishers use WebSocket");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::script::{in_pieces, websocket};

    #[test]
    fn socket_connects_answers_pings_and_reads() {
        let packets = ["0{\"sid\":\"x\"}", "40{\"sid\":\"y\"}", "2", "42[\"m\",[\"a\"]]"];
        let script = websocket(&packets.map(|packet| (0x81, packet.as_bytes())));
        let heard = in_pieces(|| Box::new(over_websocket("/socket.io/".into(), Flavour::Socket)), &script);
        assert_eq!(heard.events, ["Ready", "[\"a\"]"]);
        assert!(heard.sent.ends_with("\0\0\0\x0040\u{fffd}\u{fffd}\0\0\0\x003"), "{:?}", heard.sent);
    }

    #[test]
    fn polling_sends_replies_before_next_poll() {
        let answer = |body: &str| format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        let script = [
            answer("0{\"sid\":\"s\"}"),
            answer("ok"),
            answer("40{\"sid\":\"y\"}"),
            answer("42[\"m\",[\"a\"]]\u{1e}42[\"m\",[\"b\"]]"),
        ];
        let heard = in_pieces(|| Box::new(over_polling("/p?x".into(), Flavour::Socket)), script.concat().as_bytes());
        assert_eq!(heard.events, ["Ready", "[\"a\"]", "[\"b\"]"]);
        let asked: Vec<&str> = heard.sent.lines().filter(|line| line.contains("HTTP/1.1")).collect();
        let get = "GET /p?x&sid=s HTTP/1.1";
        assert_eq!(asked[..4], ["GET /p?x HTTP/1.1", "POST /p?x&sid=s HTTP/1.1", "40GET /p?x&sid=s HTTP/1.1", get]);
    }
}
