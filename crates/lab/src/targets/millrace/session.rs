//! The session protocol: commands with replies, on a WebSocket or any other transport of text messages.

use std::io::Write;

use anyhow::bail;
use memchr::memmem;

use crate::{
    load::{
        Event, Role,
        payload::payloads,
        websocket::{OverWebSocket, Subprotocol, TEXT, WebSocket, between, frame_of},
    },
    targets::ClientOptions,
};

pub struct Session {
    role: Role,
    channel: String,
    position: Vec<u8>,
    /// Id of the last command. The first command subscribes.
    id: u64,
    command: Vec<u8>,
    write_frame: WriteFrame,
}

/// Appends a text, given in parts, with the framing of the transport.
type WriteFrame = fn(parts: &[&[u8]], out: &mut Vec<u8>);

impl Session {
    pub fn new(ask: &ClientOptions<'_>, write_frame: WriteFrame) -> Self {
        let (position, command) = Default::default();
        Self { role: ask.role, channel: ask.channel.into(), position, id: 0, command, write_frame }
    }

    pub fn over_websocket(ask: &ClientOptions<'_>) -> OverWebSocket<Session> {
        let socket = WebSocket::new("/v1/connect", Some("millrace.v1+json"));
        OverWebSocket::new(socket, Self::new(ask, |parts, out| frame_of(TEXT, parts, out)))
    }
}

impl Subprotocol for Session {
    fn opened(&mut self, _: &mut Vec<u8>, _: &mut dyn FnMut(Event<'_>)) {
        self.id = 1;
    }

    fn message(&mut self, message: &[u8], out: &mut Vec<u8>, emit: &mut dyn FnMut(Event<'_>)) -> anyhow::Result<()> {
        let Session { role, channel, position, .. } = self;
        let says = |what: &[u8]| memmem::find(message, what).is_some();
        if message.starts_with(b"{\"push\":\"message\"") {
            if let Some(now) = between(message, b"\"position\":\"", b"\"") {
                position.clear();
                position.extend_from_slice(now);
            }
            payloads(message, |payload| emit(Event::Message(payload)));
        } else if says(b"\"push\":\"connected\"") {
            if role.subscribes() {
                let since = String::from_utf8_lossy(position);
                let since = if since.is_empty() { String::new() } else { format!(r#","since":"{since}""#) };
                let subscribe = format!(r#"{{"id":1,"subscribe":{{"channel":"{channel}"{since}}}}}"#);
                (self.write_frame)(&[subscribe.as_bytes()], out);
            } else {
                emit(Event::Ready);
            }
        } else if says(b"\"push\":\"gap\"") {
            emit(Event::Gap);
        } else if message.starts_with(b"{\"id\":1,") {
            if !message.starts_with(b"{\"id\":1,\"ok\"") {
                bail!("refused: {}", String::from_utf8_lossy(message));
            }
            emit(Event::Ready);
        } else if message.starts_with(b"{\"id\":") {
            emit(if says(b",\"ok\":") { Event::Accepted } else { Event::Refused });
        }
        Ok(())
    }

    fn publish(&mut self, payload: &[u8], out: &mut Vec<u8>) {
        self.id += 1;
        self.command.clear();
        write!(self.command, r#"{{"id":{},"publish":{{"channel":"{}","data":"#, self.id, self.channel)
            .expect("memory takes it");
        (self.write_frame)(&[&self.command, payload, b"}}"], out);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::load::script::{in_pieces, run_script, websocket};

    #[test]
    fn session_subscribes_reads_and_resumes() {
        let script = websocket(
            &[
                r#"{"ping_ms":25000,"push":"connected"}"#,
                r#"{"id":1,"ok":{"channel":"c","position":"e:0"}}"#,
                r#"{"push":"message","channel":"c","position":"e:1","time":1,"data":["a"]}"#,
                r#"{"id":2,"ok":{"position":"e:1"}}"#,
                r#"{"id":3,"error":{"code":"too_many"}}"#,
                r#"{"push":"gap","channel":"c","from":"e:1","to":"e:4"}"#,
            ]
            .map(|message| (0x81, message.as_bytes())),
        );
        let ask = ClientOptions { role: Role::Both, channel: "c", poll_every: Duration::ZERO };
        let heard = in_pieces(|| Box::new(Session::over_websocket(&ask)), &script);
        assert_eq!(heard.events, ["Ready", "[\"a\"]", "Accepted", "Refused", "Gap"]);
        let mut session = Session::over_websocket(&ask);
        run_script(&mut session, &script, 50).unwrap();
        let again = run_script(&mut session, &script, 50).unwrap();
        assert!(again.sent.contains(r#"{"id":1,"subscribe":{"channel":"c","since":"e:1"}}"#), "{}", again.sent);
    }
}
