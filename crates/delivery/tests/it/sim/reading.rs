//! Parses bytes into received items as a client of each encoding does: strictly, and however the bytes are split.

use std::collections::BTreeMap;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use millrace_protocol::{Encoding, Kind, Position, Publication, Since};
use serde::Deserialize;
use serde_json::{Value, value::RawValue};

use super::truth::Check;

#[derive(Debug)]
pub enum Received {
    /// Current positions of the stream: of its only channel (no name), or of each channel.
    Positions(Vec<(Option<String>, Since)>),
    /// Places at which an answer ends.
    Ends(Vec<(Option<String>, Since)>),
    /// The reader has the whole state as of this position.
    StateEnd {
        channel: Option<String>,
        position: Position,
    },
    Message(Message),
    Gap {
        channel: Option<String>,
        from: Option<Position>,
        to: Position,
    },
    Reply {
        id: u64,
        result: Result<Value, String>,
    },
    Ping,
    Nothing,
}

#[derive(Debug)]
pub struct Message {
    pub channel: Option<String>,
    /// `None` on a bare WebSocket, which carries no position.
    pub position: Option<Position>,
    /// Id of the event for this channel; `None` for other encodings.
    pub place: Option<Since>,
    body: Body,
    envelope: Option<(u64, Option<String>)>,
}

#[derive(Debug)]
enum Body {
    Bare { binary: bool, data: Vec<u8> },
    Lines(String),
    Raw { data: String, base64: bool },
    Deletion,
}

/// Every field that a JSON line or push may have.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Words<'a> {
    push: Option<&'a str>,
    channel: Option<String>,
    position: Option<&'a str>,
    time: Option<u64>,
    key: Option<String>,
    #[serde(borrow)]
    data: Option<&'a RawValue>,
    encoding: Option<&'a str>,
    deleted: Option<bool>,
    #[serde(borrow)]
    state: Option<Box<Words<'a>>>,
    from: Option<&'a str>,
    to: Option<&'a str>,
    #[serde(borrow)]
    gap: Option<Box<Words<'a>>>,
    positions: Option<BTreeMap<String, String>>,
    #[serde(borrow)]
    messages: Option<Vec<Words<'a>>>,
    #[serde(borrow)]
    gaps: Option<Vec<Words<'a>>>,
    more: Option<bool>,
    drain: Option<Value>,
    after_ms: Option<u64>,
    id: Option<u64>,
    ok: Option<Value>,
    error: Option<Value>,
    connection: Option<String>,
    ping_ms: Option<u64>,
    message_bytes_max: Option<u64>,
}

/// Parser of a client: holds the bytes that have not arrived completely.
pub struct Reading {
    encoding: Encoding,
    in_header: bool,
    rest: Vec<u8>,
    event: Event,
}

/// Partially parsed server-sent event.
#[derive(Default)]
struct Event {
    name: String,
    id: Option<String>,
    data: Option<String>,
}

impl Reading {
    pub fn new(encoding: Encoding) -> Self {
        Self { encoding, in_header: true, rest: Vec::new(), event: Event::default() }
    }

    pub fn feed(&mut self, bytes: &[u8], mut on: impl FnMut(Received) -> Check) -> Check {
        self.rest.extend_from_slice(bytes);
        let rest = std::mem::take(&mut self.rest);
        let mut at = 0;
        while let Some((len, heard)) = self.take(&rest[at..])? {
            at += len;
            on(heard)?;
        }
        self.rest = rest[at..].to_vec();
        Ok(())
    }

    /// Parses one frame, line or header and returns its length; `None` while it is incomplete.
    fn take(&mut self, bytes: &[u8]) -> Check<Option<(usize, Received)>> {
        if self.in_header {
            let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else { return Ok(None) };
            self.in_header = false;
            let header = String::from_utf8_lossy(&bytes[..end]).into_owned();
            let position = header.lines().find_map(|line| line.strip_prefix("Millrace-Position: "));
            return Ok(Some((
                end + 4,
                position.map_or(Ok(Received::Nothing), |list| positions(list).map(Received::Positions))?,
            )));
        }
        if self.encoding.is_websocket() {
            let Some((opcode, payload, len)) = websocket_frame(bytes)? else { return Ok(None) };
            return Ok(Some((len, self.websocket(opcode, payload)?)));
        }
        let Some(end) = bytes.iter().position(|&b| b == b'\n') else { return Ok(None) };
        let line = std::str::from_utf8(&bytes[..end]).map_err(|e| e.to_string())?;
        let sse = matches!(self.encoding, Encoding::Sse | Encoding::SseState | Encoding::SseMany);
        let heard = if sse { self.sse_line(line)? } else { json_line(line)? };
        Ok(Some((end + 1, heard)))
    }

    fn websocket(&self, opcode: u8, payload: &[u8]) -> Check<Received> {
        match (opcode, self.encoding) {
            (9, _) => Ok(Received::Ping),
            (8, Encoding::Bare) => {
                let code = payload.get(..2).map(|code| u16::from_be_bytes([code[0], code[1]]));
                let reason = String::from_utf8_lossy(payload.get(2..).unwrap_or_default()).into_owned();
                if code != Some(4000) {
                    return Err(format!("closed with {code:?} {reason}"));
                }
                Ok(Received::Gap { channel: None, from: None, to: position(&reason)? })
            }
            (1 | 2, Encoding::Bare) => {
                let body = Body::Bare { binary: opcode == 2, data: payload.to_vec() };
                Ok(Received::Message(Message { channel: None, position: None, place: None, body, envelope: None }))
            }
            (1, _) => json_line(std::str::from_utf8(payload).map_err(|e| e.to_string())?),
            _ => Err(format!("a frame with opcode {opcode}: {}", String::from_utf8_lossy(payload))),
        }
    }

    /// Parses one line of an event stream. Source: HTML Living Standard, "Interpreting an event stream".
    fn sse_line(&mut self, line: &str) -> Check<Received> {
        if line.is_empty() {
            return std::mem::take(&mut self.event).dispatch(self.encoding);
        }
        let (field, value) = line.split_once(':').ok_or_else(|| format!("not a field: {line}"))?;
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "" | "retry" => {}
            "id" => self.event.id = Some(value.into()),
            "event" => self.event.name = value.into(),
            "data" => match &mut self.event.data {
                Some(data) => {
                    data.push('\n');
                    data.push_str(value);
                }
                none => *none = Some(value.into()),
            },
            _ => return Err(format!("an unknown field: {line}")),
        }
        Ok(Received::Nothing)
    }
}

impl Event {
    fn dispatch(self, encoding: Encoding) -> Check<Received> {
        let id = self.id.as_deref().map(positions).transpose()?;
        let Some(data) = self.data else {
            return Ok(id.map_or(Received::Nothing, Received::Positions));
        };
        match (self.name.as_str(), encoding) {
            ("drain", _) => Ok(Received::Nothing),
            ("gap", _) => {
                let words: Words<'_> = serde_json::from_str(&data).map_err(|e| format!("{e}: {data}"))?;
                let Received::Gap { channel, from, to } = words.gap()? else { return Err(data) };
                // The state begins anew after this gap.
                if to.offset > 0 || find(&id, &channel) != Some(Since::State) {
                    check_id(&id, &channel, to)?;
                }
                Ok(Received::Gap { channel, from, to })
            }
            ("", Encoding::Sse) => {
                let Some(Since::Position(position)) = find(&id, &None) else {
                    return Err("an event without an id".into());
                };
                let body = Body::Lines(data);
                let (position, place) = (Some(position), None);
                Ok(Received::Message(Message { channel: None, position, place, body, envelope: None }))
            }
            ("state", _) => {
                let words: Words<'_> = serde_json::from_str(&data).map_err(|e| format!("{e}: {data}"))?;
                let Received::StateEnd { channel, position } = words.state_end()? else { return Err(data) };
                check_id(&id, &channel, position)?;
                Ok(Received::StateEnd { channel, position })
            }
            ("", _) | ("deleted", Encoding::Sse) => {
                let Received::Message(mut message) = json_line(&data)? else {
                    return Err(format!("not a message: {data}"));
                };
                check_id(&id, &message.channel, message.position.ok_or("a message without a position")?)?;
                message.place = find(&id, &message.channel);
                Ok(Received::Message(message))
            }
            (name, _) => Err(format!("an unknown event: {name}")),
        }
    }
}

/// Checks that the `id:` of an event of several channels, from which a browser resumes, names the position of the
/// event.
fn check_id(id: &Id, channel: &Option<String>, at: Position) -> Check {
    match find(id, channel) {
        Some(Since::Position(position)) if position == at => Ok(()),
        Some(Since::StateAfter { epoch, offset, .. }) if (Position { epoch, offset }) == at => Ok(()),
        other => Err(format!("an event at {at} of {channel:?} has the id {other:?}")),
    }
}

type Id = Option<Vec<(Option<String>, Since)>>;

fn find(id: &Id, channel: &Option<String>) -> Option<Since> {
    id.iter().flatten().find(|(name, _)| name == channel).map(|(_, place)| *place)
}

fn json_line(line: &str) -> Check<Received> {
    if line.is_empty() {
        return Ok(Received::Nothing);
    }
    let words: Words<'_> = serde_json::from_str(line).map_err(|e| format!("{e}: {line}"))?;
    words.heard()
}

/// Parses the body of a JSON answer: gaps first, then messages, then the positions from which to resume.
pub fn answer(body: &[u8], mut on: impl FnMut(Received) -> Check) -> Check {
    let words: Words<'_> = serde_json::from_slice(body).map_err(|e| e.to_string())?;
    if words.more == Some(false) {
        return Err("an answer says `more` only if there is more".into());
    }
    let ends = match (words.position, words.positions) {
        (Some(at), None) => vec![(None, place(at)?)],
        (None, Some(list)) => list.into_iter().map(|(name, at)| Ok((Some(name), place(&at)?))).collect::<Check<_>>()?,
        _ => return Err("an answer without a position".into()),
    };
    for gap in words.gap.into_iter().map(|gap| *gap).chain(words.gaps.into_iter().flatten()) {
        on(gap.gap()?)?;
    }
    for message in words.messages.ok_or("an answer without messages")? {
        on(message.message()?)?;
    }
    on(Received::Ends(ends))
}

impl Words<'_> {
    fn heard(self) -> Check<Received> {
        match self.push {
            Some("message") => self.message(),
            Some("gap") => self.gap(),
            Some("state") => self.state_end(),
            Some("connected")
                if self.connection.is_some() && self.ping_ms.is_some() && self.message_bytes_max.is_some() =>
            {
                Ok(Received::Nothing)
            }
            Some("drain") if self.after_ms.is_some() => Ok(Received::Nothing),
            Some(push) => Err(format!("an unexpected push: {push}")),
            None => match (self.id, self.ok, self.error) {
                (Some(id), Some(ok), None) => Ok(Received::Reply { id, result: Ok(ok) }),
                (Some(id), None, Some(error)) => {
                    Ok(Received::Reply { id, result: Err(error["code"].as_str().unwrap_or("").into()) })
                }
                (None, None, None) if self.drain.is_some() => Ok(Received::Nothing),
                (None, None, None) if self.gap.is_some() => self.gap.map_or(Err(String::new()), |gap| gap.gap()),
                (None, None, None) if self.state.is_some() => {
                    self.state.map_or(Err(String::new()), |end| end.state_end())
                }
                (None, None, None) if self.positions.is_some() => {
                    let list = self.positions.into_iter().flatten();
                    list.map(|(name, at)| Ok((Some(name), place(&at)?))).collect::<Check<_>>().map(Received::Positions)
                }
                (None, None, None) => {
                    Words { id: None, ok: None, error: None, gap: None, positions: None, ..self }.message()
                }
                _ => Err("neither reply nor message".into()),
            },
        }
    }

    fn message(self) -> Check<Received> {
        let body = match (self.data, self.deleted) {
            (Some(data), None) => Body::Raw { data: data.get().to_owned(), base64: self.encoding.is_some() },
            (None, Some(true)) => Body::Deletion,
            other => return Err(format!("data and deleted of a message are {other:?}")),
        };
        let position = Some(position(self.position.ok_or("a message without a position")?)?);
        let envelope = Some((self.time.ok_or("a message without a time")?, self.key));
        Ok(Received::Message(Message { channel: self.channel, position, place: None, body, envelope }))
    }

    fn state_end(self) -> Check<Received> {
        let position = position(self.position.ok_or("the end of a state without a position")?)?;
        Ok(Received::StateEnd { channel: self.channel, position })
    }

    fn gap(self) -> Check<Received> {
        let from = Some(position(self.from.ok_or("a gap without its start")?)?);
        Ok(Received::Gap { channel: self.channel, from, to: position(self.to.ok_or("a gap without its end")?)? })
    }
}

impl Message {
    /// Returns the position in the payload, for encodings that do not carry the position.
    pub fn stamp(&self) -> Check<Position> {
        let Body::Bare { data, .. } = &self.body else { return Err("only bare payloads need a stamp".into()) };
        let text = String::from_utf8_lossy(data);
        text.split('#').nth(1).ok_or("a payload without a stamp".to_owned()).and_then(position)
    }

    /// Returns whether the message equals the publication.
    pub fn is(&self, publication: &Publication) -> bool {
        let same_envelope = self.envelope.as_ref().is_none_or(|(time_ms, key)| {
            *time_ms == publication.time_ms && key.as_deref() == publication.key.as_deref()
        });
        let text = || String::from_utf8_lossy(publication.data());
        let same_body = match (&self.body, publication.kind) {
            (Body::Deletion, _) => publication.is_deletion,
            _ if publication.is_deletion => false,
            (Body::Bare { binary, data }, kind) => *binary == (kind == Kind::Binary) && *data == publication.data(),
            (Body::Lines(lines), Kind::Binary) => *lines == BASE64_STANDARD.encode(publication.data()),
            (Body::Lines(lines), _) => *lines == text().replace("\r\n", "\n").replace('\r', "\n"),
            (Body::Raw { data, base64: false }, Kind::Json) => *data == text().replace(['\r', '\n'], " ").trim(),
            (Body::Raw { data, base64: false }, Kind::Text) => {
                serde_json::from_str::<String>(data).is_ok_and(|d| d == text())
            }
            (Body::Raw { data, base64: true }, Kind::Binary) => {
                data.trim_matches('"') == BASE64_STANDARD.encode(publication.data())
            }
            _ => false,
        };
        same_envelope && same_body
    }
}

/// Parses `P`, or `a@P,b@Q`.
fn positions(list: &str) -> Check<Vec<(Option<String>, Since)>> {
    let entry = |entry: &str| match entry.split_once('@') {
        Some((name, at)) => Ok((Some(name.to_owned()), place(at)?)),
        None => Ok((None, place(entry)?)),
    };
    list.split(',').map(entry).collect()
}

fn place(text: &str) -> Check<Since> {
    text.parse().map_err(|_| format!("not a place: {text}"))
}

fn position(text: &str) -> Check<Position> {
    text.parse().map_err(|_| format!("not a position: {text}"))
}

/// Returns the opcode, payload and length of a complete, unmasked frame. Source: RFC 6455, section 5.2.
fn websocket_frame(bytes: &[u8]) -> Check<Option<(u8, &[u8], usize)>> {
    let [first, second, ..] = *bytes else { return Ok(None) };
    if first & 0xf0 != 0x80 || second & 0x80 != 0 {
        return Err(format!("a frame that starts with {first:02x} {second:02x}"));
    }
    let (head, len) = match second {
        126 => (4, bytes.get(2..4).map(|len| u64::from(u16::from_be_bytes([len[0], len[1]])))),
        127 => (10, bytes.get(2..10).and_then(|len| len.try_into().ok()).map(u64::from_be_bytes)),
        len => (2, Some(u64::from(len))),
    };
    let Some(len) = len else { return Ok(None) };
    let end = usize::try_from(len).ok().and_then(|len| len.checked_add(head)).ok_or("a frame of impossible length")?;
    Ok(bytes.get(head..end).map(|payload| (first & 0x0f, payload, end)))
}
