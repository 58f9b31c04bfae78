//! A session: commands with replies on one WebSocket.

use std::io::Write;

use anyhow::bail;
use memchr::memmem;

use crate::{
    load::{
        Dialect, Event, Role,
        websocket::{Frame, TEXT, WebSocket, between, frame_into, frame_of},
    },
    targets::Ask,
};

use super::payloads;

pub struct Session {
    socket: WebSocket,
    role: Role,
    channel: String,
    position: Vec<u8>,
    /// Of the last command. The first one subscribes.
    id: u64,
    command: Vec<u8>,
}

impl Session {
    pub fn new(ask: &Ask<'_>) -> Self {
        let socket = WebSocket::new("/v1/connect", Some("millrace.v1+json"));
        let (position, command) = Default::default();
        Self { socket, role: ask.role, channel: ask.channel.into(), position, id: 0, command }
    }
}

impl Dialect for Session {
    fn open(&mut self, out: &mut Vec<u8>) -> bool {
        self.id = 1;
        self.socket.open(out);
        false
    }

    fn feed(
        &mut self,
        bytes: &[u8],
        _: u64,
        out: &mut Vec<u8>,
        hear: &mut dyn FnMut(Event<'_>),
    ) -> anyhow::Result<usize> {
        let Session { socket, role, channel, position, .. } = self;
        socket.feed(bytes, out, &mut |frame, out| {
            let message = match frame {
                Frame::Message(message) => message,
                Frame::Open => return Ok(()),
                Frame::Close(..) => {
                    hear(Event::Closed);
                    return Ok(());
                }
            };
            let says = |what: &[u8]| memmem::find(message, what).is_some();
            if message.starts_with(b"{\"push\":\"message\"") {
                if let Some(now) = between(message, b"\"position\":\"", b"\"") {
                    position.clear();
                    position.extend_from_slice(now);
                }
                payloads(message, |payload| hear(Event::Message(payload)));
            } else if says(b"\"push\":\"connected\"") {
                if role.subscribes() {
                    let since = String::from_utf8_lossy(position);
                    let since = if since.is_empty() { String::new() } else { format!(r#","since":"{since}""#) };
                    let subscribe = format!(r#"{{"id":1,"subscribe":{{"channel":"{channel}"{since}}}}}"#);
                    frame_into(TEXT, subscribe.as_bytes(), out);
                } else {
                    hear(Event::Ready);
                }
            } else if says(b"\"push\":\"gap\"") {
                hear(Event::Gap);
            } else if message.starts_with(b"{\"id\":1,") {
                if !message.starts_with(b"{\"id\":1,\"ok\"") {
                    bail!("refused: {}", String::from_utf8_lossy(message));
                }
                hear(Event::Ready);
            } else if message.starts_with(b"{\"id\":") {
                hear(if says(b",\"ok\":") { Event::Accepted } else { Event::Refused });
            }
            Ok(())
        })
    }

    fn publish(&mut self, payload: &[u8], out: &mut Vec<u8>) {
        self.id += 1;
        self.command.clear();
        write!(self.command, r#"{{"id":{},"publish":{{"channel":"{}","data":"#, self.id, self.channel)
            .expect("memory takes it");
        frame_of(TEXT, &[&self.command, payload, b"}}"], out);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::load::{
        dialect::script::{hear, in_pieces},
        websocket::ACCEPT,
    };

    #[test]
    fn a_session_subscribes_hears_and_resumes() {
        let mut script = format!("HTTP/1.1 101 Switching\r\nSec-WebSocket-Accept: {ACCEPT}\r\n\r\n").into_bytes();
        for message in [
            r#"{"ping_ms":25000,"push":"connected"}"#,
            r#"{"id":1,"ok":{"channel":"c","position":"e:0"}}"#,
            r#"{"push":"message","channel":"c","position":"e:1","time":1,"data":["a"]}"#,
            r#"{"id":2,"ok":{"position":"e:1"}}"#,
            r#"{"id":3,"error":{"code":"too_many"}}"#,
            r#"{"push":"gap","channel":"c","from":"e:1","to":"e:4"}"#,
        ] {
            script.extend_from_slice(&[0x81, message.len() as u8]);
            script.extend_from_slice(message.as_bytes());
        }
        let ask = Ask { role: Role::Both, channel: "c", poll_every: Duration::ZERO };
        let heard = in_pieces(|| Box::new(Session::new(&ask)), &script);
        assert_eq!(heard.events, ["Ready", "[\"a\"]", "Accepted", "Refused", "Gap"]);
        let mut session = Session::new(&ask);
        hear(&mut session, &script, 50).unwrap();
        let again = hear(&mut session, &script, 50).unwrap();
        assert!(again.said.contains(r#"{"id":1,"subscribe":{"channel":"c","since":"e:1"}}"#), "{}", again.said);
    }
}
