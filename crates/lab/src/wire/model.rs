//! What each transport of Millrace should cost, from the protocols alone.
//!
//! Formats: RFC 6455 (frames), RFC 9112 (HTTP/1.1), the HTML Standard (event streams), `docs/protocol.md` (envelopes), RFC 9293 and 7323
//! (segments). Heads are as long as the heads that were really said, less the values that change; those are counted anew. An ACK goes alone
//! unless the same end has something to say within the time that it may be delayed (RFC 9293, 3.8.6.3; Linux: 40 ms).

use anyhow::{Context, ensure};
use memchr::memmem;

use super::{
    Both, Bytes, Line, Side, Unit, difference_percent,
    measure::{Counted, Measured, Plan},
    tap::Tap,
    tcp_info::SYN_OPTION_BYTES,
};
use crate::{
    load::http::{Answer, Head},
    targets::Transport,
};

/// Milliseconds since 1970 until 2286.
const TIME_DIGITS: u64 = 13;

/// Header of a WebSocket frame (RFC 6455, 5.2), without the key.
pub fn frame_header(payload: u64) -> u64 {
    match payload {
        0..126 => 2,
        126..65_536 => 4,
        _ => 10,
    }
}

/// What a client adds to each frame: it masks them (RFC 6455, 5.3).
pub const MASK_BYTES: u64 = 4;

/// What TLS 1.3 adds to each record: header, type of what is in it, and tag (RFC 8446, 5.2). Each write is a record of its own.
pub const RECORD_BYTES: u64 = 5 + 1 + 16;
/// What fits into one (RFC 8446, 5.1).
const RECORD_CARRIES: u64 = 1 << 14;

/// What goes over a connection for one unit: writes that are segments of their own, and ACKs that go alone.
#[derive(Clone, Debug, Default)]
struct Exchange {
    up: Vec<Write>,
    down: Vec<Write>,
    acks_up: u64,
    acks_down: u64,
    /// It begins with the three segments that open a connection.
    opens: bool,
}

#[derive(Clone, Copy, Debug)]
struct Write {
    bytes: u64,
    payload: u64,
}

/// Nothing of it is payload.
fn plain(bytes: u64) -> Write {
    Write { bytes, payload: 0 }
}

impl Exchange {
    fn bytes(&self, segment: &Segment) -> Both {
        let one = |writes: &[Write], acks: u64, syns: u64| {
            let payload: u64 = writes.iter().map(|write| write.payload).sum();
            let bytes: u64 = writes.iter().map(|write| write.bytes).sum();
            let tls = |write: &Write| write.bytes.div_ceil(RECORD_CARRIES) * segment.record;
            let segments: u64 = writes.iter().map(|write| (write.bytes + tls(write)).div_ceil(segment.carries)).sum();
            Bytes {
                payload: payload as f64,
                framing: (bytes - payload) as f64,
                tls: writes.iter().map(tls).sum::<u64>() as f64,
                headers: (segments * segment.header) as f64,
                acks: ((acks + syns) * segment.header + syns * SYN_OPTION_BYTES) as f64,
            }
        };
        // SYN and the ACK of the answer's SYN go up, one SYN comes down.
        let opens = u64::from(self.opens);
        Both { up: one(&self.up, self.acks_up + opens, opens), down: one(&self.down, self.acks_down, opens) }
    }
}

struct Segment {
    header: u64,
    carries: u64,
    /// What is added to each record; nothing in the clear.
    record: u64,
}

/// Each counted unit with what the model says of it.
///
/// Errors: the conversation lacks what the transport promises, so that there is no head to count.
pub fn predict(measured: &Measured, plan: &Plan) -> anyhow::Result<Vec<Line>> {
    lines(&Terms::new(measured, plan)?, measured, "", 0, |_| true)
}

/// The same for messages over TLS. `plain`: the same conversation in the clear, where heads can be seen.
///
/// Errors: as [`predict`].
pub fn predict_secured(plain: &Measured, secured: &Measured, plan: &Plan) -> anyhow::Result<Vec<Line>> {
    lines(&Terms::new(plain, plan)?, secured, SECURED, RECORD_BYTES, |unit| unit == Unit::Message)
}

/// After the name of a transport.
pub const SECURED: &str = " over TLS";

fn lines(
    terms: &Terms,
    measured: &Measured,
    suffix: &str,
    record: u64,
    is_wanted: impl Fn(Unit) -> bool,
) -> anyhow::Result<Vec<Line>> {
    let total = measured.subscriber.info()?;
    let segment = Segment { header: total.header_bytes, carries: total.segment_bytes, record };
    let line = |counted: &Counted| {
        let model = (0..counted.count)
            .map(|n| terms.exchange(counted.side, counted.unit, n).bytes(&segment))
            .fold(Both::default(), |sum, one| sum + one)
            .per(counted.count);
        let measured_each = counted.bytes.per(counted.count);
        Line {
            transport: format!("{}{suffix}", measured.transport),
            side: counted.side,
            unit: counted.unit,
            count: counted.count,
            measured: measured_each,
            model,
            difference_percent: difference_percent(measured_each.total(), model.total()),
            retransmitted_bytes: counted.again as f64,
        }
    };
    Ok(measured.counted.iter().filter(|counted| is_wanted(counted.unit)).map(line).collect())
}

/// What the sizes depend on.
struct Terms {
    transport: Transport,
    payload: u64,
    channel: u64,
    /// Of a position, before the digits of its offset.
    epoch: u64,
    /// Offset of the first message that was counted, and of the last.
    first: u64,
    last: u64,
    heads: Heads,
}

/// Bytes of heads; without positions and the digits of `Content-Length` where there are such.
#[derive(Default)]
struct Heads {
    /// The first request of a reader, and the head of its answer, whole.
    opening: u64,
    opened: u64,
    /// Of a poll, and of its answers.
    request: u64,
    answer: u64,
    empty: u64,
    /// Of a publisher: the opening of its WebSocket, or a `POST` and its answer.
    publisher: u64,
    accepted: u64,
}

impl Terms {
    fn new(measured: &Measured, plan: &Plan) -> anyhow::Result<Terms> {
        let transport = measured.transport;
        let channel = plan.channel_of(transport).len() as u64;
        let Measured { subscriber, publisher, .. } = measured;
        let mut heads = Heads::default();
        let asked = requests(&subscriber.said);
        let opening = asked.first().context("nobody asked anything")?;
        heads.opening = opening.len() as u64;
        let opened = Head::read(&subscriber.answered)?.context("no answer")?;
        heads.opened = opened.body_at as u64;
        let mut epoch = 0;
        if let Some(position) = opened.header("millrace-position") {
            epoch = epoch_of(position)?;
        }
        if matches!(transport, Transport::LongPolling | Transport::Polling) {
            heads.request = fixed(asked.get(1).context("nobody polled")?, &[b"since="]);
            let answers = answers(subscriber)?;
            let of = |status| answers.iter().find(|(found, _)| *found == status).map(|(_, head)| head_bytes(head));
            heads.empty = of(204).context("no empty answer")?;
            heads.answer = of(200).context("no answer with a message")?;
        }
        if matches!(transport, Transport::WebSocket | Transport::Session) {
            heads.publisher = requests(&publisher.said).first().context("no publisher")?.len() as u64;
            heads.accepted = Head::read(&publisher.answered)?.context("no answer")?.body_at as u64;
        } else {
            heads.publisher = fixed(requests(&publisher.said).first().context("no publisher")?, &[b"Content-Length: "]);
            heads.accepted = head_bytes(answers(publisher)?.first().context("no publication was answered")?.1);
        }
        if transport == Transport::Session {
            let position = memmem::find(&publisher.answered, b"\"position\":\"").context("no position")? + 12;
            let end = memchr::memchr(b'"', &publisher.answered[position..]).context("no position")?;
            epoch = epoch_of(std::str::from_utf8(&publisher.answered[position..position + end])?)?;
        }
        let (first, last) = (plan.warm_up + 1, plan.warm_up + plan.messages);
        Ok(Terms { transport, payload: plan.payload_bytes as u64, channel, epoch, first, last, heads })
    }

    fn exchange(&self, side: Side, unit: Unit, n: u64) -> Exchange {
        match (side, unit) {
            (Side::Deliver, Unit::Connection) => self.opening(),
            (Side::Deliver, Unit::Message) => self.message(self.first + n),
            (Side::Deliver, Unit::Silence) => self.silence(),
            (Side::Publish, Unit::Connection) => self.publisher(),
            (Side::Publish, Unit::Message) => self.publication(self.first + n),
            (_, Unit::Close) => self.close(),
            (Side::Publish, Unit::Silence) => Exchange::default(),
        }
    }

    fn position(&self, offset: u64) -> u64 {
        self.epoch + digits(offset)
    }

    /// `{"position":"P","time":T,"data":D}`, as a line, in an answer and in a push.
    fn object(&self, offset: u64) -> u64 {
        text(r#"{"position":"","time":,"data":}"#) + self.position(offset) + TIME_DIGITS + self.payload
    }

    fn answer(&self, offset: u64) -> u64 {
        let body = text(r#"{"position":"","messages":[]}"#) + self.position(offset) + self.object(offset);
        self.heads.answer + digits(body) + self.position(offset) + body
    }

    fn message(&self, offset: u64) -> Exchange {
        let carry = |bytes| vec![Write { bytes, payload: self.payload }];
        let pushed = |bytes| Exchange { down: carry(bytes), acks_up: 1, ..Exchange::default() };
        match self.transport {
            Transport::WebSocket => pushed(frame_header(self.payload) + self.payload),
            Transport::Session => {
                let push = text(r#""push":"message","channel":"","#) + self.channel + self.object(offset);
                pushed(frame_header(push) + push)
            }
            Transport::Sse => pushed(text("id: \ndata: \n\n") + self.position(offset) + self.payload),
            Transport::Ndjson => pushed(self.object(offset) + 1),
            // The next request carries the ACK of the answer; the request is held, so its own ACK goes alone.
            Transport::LongPolling => Exchange {
                down: carry(self.answer(offset)),
                up: vec![plain(self.heads.request + self.position(offset))],
                acks_down: 1,
                ..Exchange::default()
            },
            Transport::Polling => Exchange {
                up: vec![plain(self.heads.request + self.position(offset - 1))],
                down: carry(self.answer(offset)),
                acks_up: 1,
                ..Exchange::default()
            },
            Transport::DataChannel => Exchange::default(),
        }
    }

    fn silence(&self) -> Exchange {
        let beat = |bytes| Exchange { down: vec![plain(bytes)], acks_up: 1, ..Exchange::default() };
        let position = self.position(self.last);
        let (request, empty) = (vec![plain(self.heads.request + position)], vec![plain(self.heads.empty + position)]);
        match self.transport {
            // The pong carries the ping's ACK, and gets one of its own.
            Transport::WebSocket | Transport::Session => Exchange {
                down: vec![plain(frame_header(0))],
                up: vec![plain(frame_header(0) + MASK_BYTES)],
                acks_down: 1,
                ..Exchange::default()
            },
            Transport::Sse => beat(text(":\n\n")),
            Transport::Ndjson => beat(text("\n")),
            Transport::LongPolling => Exchange { up: request, down: empty, acks_down: 1, ..Exchange::default() },
            Transport::Polling => Exchange { up: request, down: empty, acks_up: 1, ..Exchange::default() },
            Transport::DataChannel => Exchange::default(),
        }
    }

    /// A fresh connection is acknowledged at once, not by what follows.
    fn opening(&self) -> Exchange {
        let Heads { opening, opened, request, .. } = self.heads;
        let mut exchange =
            Exchange { up: vec![plain(opening)], down: vec![plain(opened)], acks_up: 1, acks_down: 1, opens: true };
        let nothing = self.position(0);
        match self.transport {
            Transport::WebSocket | Transport::Ndjson | Transport::Polling | Transport::DataChannel => {}
            Transport::Sse => exchange.down[0].bytes += text("retry: 2000\nid: \n\n") + nothing,
            Transport::LongPolling => {
                exchange.up.push(plain(request + nothing));
                exchange.acks_down += 1;
            }
            Transport::Session => {
                let connected = self.connected();
                let subscribe = text(r#"{"id":1,"subscribe":{"channel":""}}"#) + self.channel;
                let subscribed = text(r#"{"id":1,"ok":{"channel":"","position":"","recovered":true,"time":}}"#)
                    + self.channel
                    + nothing
                    + TIME_DIGITS;
                exchange.down.push(plain(frame_header(connected) + connected));
                exchange.up.push(plain(frame_header(subscribe) + MASK_BYTES + subscribe));
                exchange.down.push(plain(frame_header(subscribed) + subscribed));
                exchange.acks_up = 3;
            }
        }
        exchange
    }

    /// The first push of a session, with the server's defaults.
    fn connected(&self) -> u64 {
        text(r#"{"push":"connected","ping_ms":25000,"message_bytes_max":1048576,"time":}"#) + TIME_DIGITS
    }

    fn publisher(&self) -> Exchange {
        let Heads { publisher, accepted, .. } = self.heads;
        let mut exchange = Exchange { opens: true, ..Exchange::default() };
        if matches!(self.transport, Transport::WebSocket | Transport::Session) {
            exchange.up.push(plain(publisher));
            exchange.down.push(plain(accepted));
            (exchange.acks_up, exchange.acks_down) = (1, 1);
        }
        if self.transport == Transport::Session {
            let connected = self.connected();
            exchange.down.push(plain(frame_header(connected) + connected));
            exchange.acks_up = 2;
        }
        exchange
    }

    fn publication(&self, offset: u64) -> Exchange {
        let carry = |bytes| vec![Write { bytes, payload: self.payload }];
        match self.transport {
            // Nobody answers a bare publication but the kernel.
            Transport::WebSocket => Exchange {
                up: carry(frame_header(self.payload) + MASK_BYTES + self.payload),
                acks_down: 1,
                ..Exchange::default()
            },
            Transport::Session => {
                let id = digits(offset + 1);
                let publish = text(r#"{"id":,"publish":{"channel":"","data":}}"#) + id + self.channel + self.payload;
                let reply = text(r#"{"id":,"ok":{"position":""}}"#) + id + self.position(offset);
                Exchange {
                    up: carry(frame_header(publish) + MASK_BYTES + publish),
                    down: vec![plain(frame_header(reply) + reply)],
                    acks_up: 1,
                    ..Exchange::default()
                }
            }
            _ => {
                let body = text(r#"{"position":""}"#) + self.position(offset);
                Exchange {
                    up: carry(self.heads.publisher + digits(self.payload) + self.payload),
                    down: vec![plain(self.heads.accepted + digits(body) + self.position(offset) + body)],
                    acks_up: 1,
                    ..Exchange::default()
                }
            }
        }
    }

    /// Close frames with a code, and the end of both directions: our FIN carries the ACKs of theirs.
    fn close(&self) -> Exchange {
        let close = frame_header(2) + 2;
        Exchange {
            up: vec![plain(close + MASK_BYTES)],
            down: vec![plain(close)],
            acks_up: 1,
            acks_down: 3,
            ..Exchange::default()
        }
    }
}

fn text(fixed: &str) -> u64 {
    fixed.len() as u64
}

fn digits(number: u64) -> u64 {
    u64::from(number.checked_ilog10().unwrap_or(0)) + 1
}

/// Length of `5f0c12ab:`.
fn epoch_of(position: &str) -> anyhow::Result<u64> {
    Ok(position.rfind(':').with_context(|| format!("no position: {position}"))? as u64 + 1)
}

/// The requests that were said one after the other, without their bodies.
fn requests(mut said: &[u8]) -> Vec<&[u8]> {
    let mut found = Vec::new();
    while let Some(end) = memmem::find(said, b"\r\n\r\n") {
        let head = &said[..end + 4];
        found.push(head);
        let length = memmem::find(head, b"Content-Length: ").map(|at| &head[at + 16..]);
        let length =
            length.and_then(|rest| std::str::from_utf8(rest.split(|byte| *byte == b'\r').next()?).ok()?.parse().ok());
        let body: usize = length.unwrap_or(0);
        said = said.get(head.len() + body..).unwrap_or_default();
    }
    found
}

/// Status and head of each whole answer.
fn answers(conversation: &Tap) -> anyhow::Result<Vec<(u16, &[u8])>> {
    let (mut rest, mut found) = (&conversation.answered[..], Vec::new());
    while let Some(answer) = Answer::read(rest)? {
        found.push((answer.head.status, &rest[..answer.head.body_at]));
        ensure!(answer.used > 0, "an answer of nothing");
        let used = answer.used;
        rest = &rest[used..];
    }
    Ok(found)
}

/// Length of an answer's head without what changes.
fn head_bytes(head: &[u8]) -> u64 {
    fixed(head, &[b"content-length: ", b"millrace-position: "])
}

/// Length of a head without the values that follow these.
fn fixed(head: &[u8], before: &[&[u8]]) -> u64 {
    let values = before.iter().filter_map(|name| {
        let value = &head[memmem::find(head, name)? + name.len()..];
        value.iter().position(|byte| matches!(byte, b'\r' | b' ' | b'&'))
    });
    (head.len() - values.sum::<usize>()) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_as_long_as_the_standard_says() {
        let found = [0, 125, 126, 65_535, 65_536, 1 << 40].map(frame_header);
        assert_eq!(found, [2, 2, 4, 4, 10, 10]);
    }

    #[test]
    fn heads_are_counted_without_what_changes() {
        let head = b"GET /c?limit=9&since=e:12 HTTP/1.1\r\nHost: lab\r\n\r\n";
        assert_eq!(fixed(head, &[b"since="]), head.len() as u64 - 4);
        let said = b"POST /c HTTP/1.1\r\nContent-Length: 3\r\n\r\nabcGET / HTTP/1.1\r\n\r\n";
        assert_eq!(requests(said), [&said[..39], &said[42..]]);
        assert_eq!([0, 9, 10, 12_345].map(digits), [1, 1, 2, 5]);
        assert_eq!(epoch_of("5f0c12ab:77").unwrap(), 9);
        assert!(epoch_of("now").is_err());
    }

    #[test]
    fn long_writes_are_several_segments() {
        let segment = Segment { header: 52, carries: 1448, record: 0 };
        let exchange = Exchange { down: vec![Write { bytes: 3000, payload: 2900 }], acks_up: 2, ..Exchange::default() };
        let bytes = exchange.bytes(&segment);
        assert_eq!((bytes.down.payload, bytes.down.framing, bytes.down.headers), (2900.0, 100.0, 156.0));
        assert_eq!(bytes.up.total(), 104.0);
        let secured = exchange.bytes(&Segment { record: RECORD_BYTES, ..segment }).down;
        assert_eq!((secured.tls, secured.headers), (22.0, 156.0));
        let opening = Exchange { opens: true, ..Exchange::default() }.bytes(&segment);
        assert_eq!((opening.up.total(), opening.down.total()), (112.0, 60.0));
    }
}
