//! Encodings of publications for the transports. A publication is encoded once per encoding; all its readers
//! are sent the same bytes.

mod envelope;
pub mod record;
pub mod xml;

pub use envelope::{Envelope, StatePage, write_data, write_envelope, write_gap};

use std::io::Write;

use base64::prelude::{BASE64_STANDARD, Engine as _};

use crate::{
    ChannelName, Epoch, Error, Gap, Kind, Position, Publication, Since,
    session::encode_close_push,
    websocket::{self, Deflate},
};

/// Reconnection delay of an `EventSource` during a drain, in milliseconds. It is short because the server already
/// spreads the closing times.
const RETRY_MS: u32 = 100;

/// Encoding of publications for readers that are sent a stream of frames.
///
/// Source: docs/reference/protocol.md, "How one publication looks".
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Encoding {
    /// WebSocket, payloads only.
    Bare,
    /// WebSocket, `millrace.v1+json` pushes.
    Session,
    /// As [`Encoding::Bare`] and [`Encoding::Session`], compressed. Clients that negotiated the same parameters
    /// receive the same bytes.
    BareDeflate(Deflate),
    SessionDeflate(Deflate),
    /// Data channel, `millrace.v1+json` pushes, one per line.
    Lines,
    /// Server-sent events of one channel: the payload, with the position as `id`.
    Sse,
    /// Server-sent events of the state of one channel: envelopes, with the position as `id`.
    SseState,
    /// Server-sent events of several channels: envelopes. The `id` of each reader precedes them, see
    /// [`Encoding::has_reader_head`].
    SseMany,
    /// JSON lines of one channel.
    Ndjson,
    /// JSON lines that name their channel.
    NdjsonMany,
    /// HTTP/1.1 responses without frames. The connection is sent whole responses only, and no heartbeat.
    WholeResponses,
    /// Records for an MQTT session, which makes the packets of its client from them.
    Records,
}

impl Encoding {
    /// Appends one publication as a whole frame.
    pub fn encode(self, out: &mut Vec<u8>, channel: &ChannelName, epoch: Epoch, publication: &Publication) {
        let envelope = |out: &mut Vec<u8>, push, name| write_envelope(out, push, name, epoch, publication);
        match self {
            Encoding::Bare | Encoding::BareDeflate(_) => {
                let opcode = if publication.kind == Kind::Binary { websocket::BINARY } else { websocket::TEXT };
                self.encode_message(out, opcode, publication.data());
            }
            Encoding::Session | Encoding::SessionDeflate(_) => {
                let mut body = Vec::with_capacity(publication.data().len() + 160);
                envelope(&mut body, true, Some(channel));
                self.encode_message(out, websocket::TEXT, &body);
            }
            Encoding::Lines => {
                envelope(out, true, Some(channel));
                out.push(b'\n');
            }
            Encoding::SseState => {
                write_sse_id(out, Position { epoch, offset: publication.offset });
                out.extend_from_slice(b"data: ");
                envelope(out, false, None);
                out.extend_from_slice(b"\n\n");
            }
            Encoding::Sse if publication.is_deletion => {
                write_sse_id(out, Position { epoch, offset: publication.offset });
                out.extend_from_slice(b"event: deleted\ndata: ");
                envelope(out, false, None);
                out.extend_from_slice(b"\n\n");
            }
            Encoding::Sse => {
                write_sse_id(out, Position { epoch, offset: publication.offset });
                write_sse_data(out, publication);
                out.push(b'\n');
            }
            Encoding::SseMany => {
                out.extend_from_slice(b"data: ");
                envelope(out, false, Some(channel));
                out.extend_from_slice(b"\n\n");
            }
            Encoding::Ndjson | Encoding::NdjsonMany => {
                envelope(out, false, (self == Encoding::NdjsonMany).then_some(channel));
                out.push(b'\n');
            }
            Encoding::Records => record::encode_publication(out, channel, epoch, publication),
            Encoding::WholeResponses => {}
        }
    }

    /// Appends one publication as a whole frame, for a reader that resumes at `at` if the connection breaks after it.
    /// This place differs from the position of the publication while the reader is inside a state.
    pub fn encode_at(
        self,
        out: &mut Vec<u8>,
        channel: &ChannelName,
        at: Since,
        epoch: Epoch,
        publication: &Publication,
    ) {
        if let (Encoding::SseState, Since::StateAfter { .. }) = (self, at) {
            let _ = write!(out, "id: {at}\ndata: ");
            write_envelope(out, false, None, epoch, publication);
            out.extend_from_slice(b"\n\n");
            return;
        }
        self.encode(out, channel, epoch, publication);
    }

    /// Appends the end of a state: the reader has the whole state as of `position`, and changes follow. A bare
    /// WebSocket reads no state.
    pub fn encode_state_end(self, out: &mut Vec<u8>, channel: &ChannelName, position: Position) {
        let _ = match self {
            Encoding::Session | Encoding::SessionDeflate(_) | Encoding::Lines => {
                let push = format!("{{\"push\":\"state\",\"channel\":\"{channel}\",\"position\":\"{position}\"}}");
                self.encode_text(out, &push);
                Ok(())
            }
            Encoding::SseMany => {
                let data = format!("{{\"channel\":\"{channel}\",\"position\":\"{position}\"}}");
                write!(out, "event: state\ndata: {data}\n\n")
            }
            Encoding::Sse | Encoding::SseState => {
                write!(out, "event: state\nid: {position}\ndata: {{\"position\":\"{position}\"}}\n\n")
            }
            Encoding::Ndjson => writeln!(out, "{{\"state\":{{\"position\":\"{position}\"}}}}"),
            Encoding::NdjsonMany => {
                writeln!(out, "{{\"state\":{{\"channel\":\"{channel}\",\"position\":\"{position}\"}}}}")
            }
            Encoding::Bare | Encoding::BareDeflate(_) | Encoding::WholeResponses | Encoding::Records => Ok(()),
        };
    }

    /// Appends a gap. A bare WebSocket can report a gap only with a close frame, which ends the connection.
    pub fn encode_gap(self, out: &mut Vec<u8>, channel: &ChannelName, gap: Gap) {
        let one = matches!(
            self,
            Encoding::Bare | Encoding::BareDeflate(_) | Encoding::Sse | Encoding::SseState | Encoding::Ndjson
        );
        let named = (!one).then_some(channel);
        match self {
            Encoding::Bare | Encoding::BareDeflate(_) => {
                websocket::encode_close(out, websocket::CLOSE_GAP, &gap.to.to_string())
            }
            Encoding::Session | Encoding::SessionDeflate(_) => {
                let mut body = Vec::with_capacity(160);
                write_gap(&mut body, true, named, gap);
                websocket::encode(out, websocket::TEXT, &body);
            }
            Encoding::Lines => {
                write_gap(out, true, named, gap);
                out.push(b'\n');
            }
            Encoding::Sse | Encoding::SseState | Encoding::SseMany => {
                out.extend_from_slice(b"event: gap\n");
                if self != Encoding::SseMany {
                    let _ = writeln!(out, "id: {}", gap.to);
                }
                out.extend_from_slice(b"data: ");
                write_gap(out, false, named, gap);
                out.extend_from_slice(b"\n\n");
            }
            Encoding::Ndjson | Encoding::NdjsonMany => {
                out.extend_from_slice(b"{\"gap\":");
                write_gap(out, false, named, gap);
                out.extend_from_slice(b"}\n");
            }
            Encoding::Records => record::encode_gap(out, channel, gap.to),
            Encoding::WholeResponses => {}
        }
    }

    /// Returns the bytes that keep an idle connection alive in every middlebox on the path.
    pub fn heartbeat(self) -> &'static [u8] {
        match self {
            _ if self.is_websocket() => websocket::PING_FRAME,
            Encoding::Sse | Encoding::SseState | Encoding::SseMany => b":\n\n",
            Encoding::WholeResponses | Encoding::Records => b"",
            _ => b"\n",
        }
    }

    /// Appends the request to reconnect after `after_ms`, for a session with its resume ticket. Does nothing for a
    /// bare WebSocket, which has no such message.
    pub fn encode_drain(self, out: &mut Vec<u8>, after_ms: u64, resume: Option<&str>) {
        let _ = match self {
            Encoding::Bare | Encoding::BareDeflate(_) | Encoding::WholeResponses | Encoding::Records => Ok(()),
            Encoding::Session | Encoding::SessionDeflate(_) | Encoding::Lines => {
                let resume = resume.map_or_else(String::new, |ticket| format!(",\"resume\":\"{ticket}\""));
                self.encode_text(out, &format!("{{\"push\":\"drain\",\"after_ms\":{after_ms}{resume}}}"));
                Ok(())
            }
            Encoding::Sse | Encoding::SseState | Encoding::SseMany => {
                write!(out, "retry: {RETRY_MS}\nevent: drain\ndata: {{\"after_ms\":{after_ms}}}\n\n")
            }
            Encoding::Ndjson | Encoding::NdjsonMany => writeln!(out, "{{\"drain\":{{\"after_ms\":{after_ms}}}}}"),
        };
    }

    /// Appends the last message: why access ended. On a WebSocket this is the close code.
    pub fn encode_denied(self, out: &mut Vec<u8>, close_code: u16, error: &Error) {
        let _ = match self {
            Encoding::Sse | Encoding::SseState | Encoding::SseMany => {
                write!(out, "event: denied\ndata: {}\n\n", error.to_json())
            }
            Encoding::Ndjson | Encoding::NdjsonMany => writeln!(out, "{{\"denied\":{}}}", error.to_json()),
            _ => {
                self.encode_close(out, close_code, &error.detail);
                Ok(())
            }
        };
    }

    /// Appends one text message of a session: a reply or a push. An MQTT session has none.
    pub fn encode_text(self, out: &mut Vec<u8>, text: &str) {
        match self {
            Encoding::Records => {}
            Encoding::Lines => {
                out.extend_from_slice(text.as_bytes());
                out.push(b'\n');
            }
            _ => websocket::encode(out, websocket::TEXT, text.as_bytes()),
        }
    }

    /// Appends the last message of a WebSocket or a data channel. Its code determines whether the client reconnects.
    /// Does nothing for other forms.
    pub fn encode_close(self, out: &mut Vec<u8>, code: u16, reason: &str) {
        match self {
            Encoding::Lines => self.encode_text(out, &encode_close_push(code, reason)),
            Encoding::Records => record::encode_close(out, code),
            _ if self.is_websocket() => websocket::encode_close(out, code, reason),
            _ => {}
        }
    }

    /// Returns true if the connection carries commands and replies.
    pub fn is_session(self) -> bool {
        matches!(self, Encoding::Session | Encoding::SessionDeflate(_) | Encoding::Lines)
    }

    /// Returns true if every frame needs a prefix per reader: the list of all its positions.
    pub fn has_reader_head(self) -> bool {
        self == Encoding::SseMany
    }

    /// Returns true if a gap ends the connection, because the encoding cannot report a gap in another way.
    pub fn gap_closes(self) -> bool {
        matches!(self, Encoding::Bare | Encoding::BareDeflate(_))
    }

    /// Returns true if the close does not wait until the peer has taken everything before it.
    pub fn closes_at_once(self) -> bool {
        self == Encoding::Records
    }

    pub fn is_websocket(self) -> bool {
        matches!(self, Encoding::Bare | Encoding::Session | Encoding::BareDeflate(_) | Encoding::SessionDeflate(_))
    }

    fn encode_message(self, out: &mut Vec<u8>, opcode: u8, payload: &[u8]) {
        match self {
            Encoding::BareDeflate(deflate) | Encoding::SessionDeflate(deflate) => deflate.encode(out, opcode, payload),
            _ => websocket::encode(out, opcode, payload),
        }
    }
}

fn write_sse_id(out: &mut Vec<u8>, at: Position) {
    out.extend_from_slice(b"id: ");
    at.write(out);
    out.push(b'\n');
}

/// Appends the `data:` lines of an event: text unchanged, one `data:` line per line; binary as base64. Source: HTML
/// Living Standard, "Interpreting an event stream".
fn write_sse_data(out: &mut Vec<u8>, publication: &Publication) {
    if publication.kind == Kind::Binary {
        let _ = writeln!(out, "data: {}", BASE64_STANDARD.encode(publication.data()));
        return;
    }
    let mut rest: &[u8] = publication.data();
    loop {
        let end = memchr::memchr2(b'\n', b'\r', rest).unwrap_or(rest.len());
        out.extend_from_slice(b"data: ");
        out.extend_from_slice(&rest[..end]);
        out.push(b'\n');
        if end == rest.len() {
            return;
        }
        rest = if rest[end..].starts_with(b"\r\n") { &rest[end + 2..] } else { &rest[end + 1..] };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PublicationHead;

    fn publication(kind: Kind, data: &'static [u8]) -> Publication {
        Publication::new(
            PublicationHead {
                offset: 7,
                time_ms: 5,
                key: None,
                expires_ms: None,
                is_traced: false,
                kind,
                is_deletion: false,
            },
            data,
        )
    }

    fn encoded(encoding: Encoding, publication: &Publication) -> String {
        let mut out = Vec::new();
        encoding.encode(&mut out, &ChannelName::parse("a/b").unwrap(), Epoch(0xab), publication);
        String::from_utf8_lossy(&out).into_owned()
    }

    #[test]
    fn sse_data_is_split_into_lines() {
        let frame = encoded(Encoding::Sse, &publication(Kind::Text, b"one\r\ntwo\nthree\rfour"));
        assert_eq!(frame, "id: 000000ab:7\ndata: one\ndata: two\ndata: three\ndata: four\n\n");
    }

    #[test]
    fn json_line_contains_no_newline() {
        let frame = encoded(Encoding::Ndjson, &publication(Kind::Json, b"{\n \"a\": 1\r\n}"));
        assert_eq!(frame.matches('\n').count(), 1);
        assert_eq!(frame.trim_end(), r#"{"position":"000000ab:7","time":5,"data":{  "a": 1  }}"#);
    }

    #[test]
    fn binary_payload_is_base64_in_text_encodings() {
        let frame = encoded(Encoding::NdjsonMany, &publication(Kind::Binary, &[0xff, 0xfe]));
        let expected = r#"{"channel":"a/b","position":"000000ab:7","time":5,"data":"//4=","encoding":"base64"}"#;
        assert_eq!(frame.trim_end(), expected);
        assert!(encoded(Encoding::Sse, &publication(Kind::Binary, &[0xff, 0xfe])).contains("data: //4=\n"));
    }

    #[test]
    fn every_encoding_reports_gaps() {
        let position = |offset| crate::Position { epoch: Epoch(1), offset };
        let gap = Gap { from: position(3), to: position(9) };
        let (deflate, _) = Deflate::negotiate("permessage-deflate").unwrap();
        let compressed = [Encoding::BareDeflate(deflate), Encoding::SessionDeflate(deflate)];
        let plain = [
            Encoding::Bare,
            Encoding::Session,
            Encoding::Lines,
            Encoding::Sse,
            Encoding::SseState,
            Encoding::SseMany,
            Encoding::Ndjson,
            Encoding::NdjsonMany,
        ];
        for encoding in compressed.into_iter().chain(plain) {
            let mut out = Vec::new();
            encoding.encode_gap(&mut out, &ChannelName::parse("c").unwrap(), gap);
            assert!(String::from_utf8_lossy(&out).contains("00000001:9"), "{encoding:?}");
        }
    }
}
