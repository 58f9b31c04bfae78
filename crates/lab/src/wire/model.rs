//! Model of the bytes that each transport of Millrace should need, from the protocols alone.
//!
//! Formats: RFC 6455 (frames), RFC 9112 (HTTP/1.1), the HTML Standard (event streams), `docs/reference/protocol.md`
//! (envelopes), RFC 9293 and 7323 (segments). The size of HTTP heads is taken from the recorded heads, without the
//! values that change; those are computed. An ACK is a separate segment unless the same end sends data within the ACK
//! delay (RFC 9293, 3.8.6.3; Linux: 40 ms).

use anyhow::{Context, ensure};
use memchr::memmem;

use super::{
    measure::{Counted, Measured, Plan},
    tap::Tap,
    tcp_info::SYN_OPTION_BYTES,
};
use crate::{
    load::http::{Answer, Head},
    targets::Transport,
    wire_cost::{Bytes, DirectionalBytes, Line, Side, Unit, difference_percent},
};

/// Digits of a time in milliseconds since 1970, until 2286.
const TIME_DIGITS: u64 = 13;

/// Returns the header bytes of a WebSocket frame (RFC 6455, 5.2), without the masking key.
pub fn frame_header(payload: u64) -> u64 {
    match payload {
        0..126 => 2,
        126..65_536 => 4,
        _ => 10,
    }
}

/// Bytes of the masking key that a client adds to each frame (RFC 6455, 5.3).
pub const MASK_BYTES: u64 = 4;

/// Bytes that TLS 1.3 adds to each record: header, content type, and tag (RFC 8446, 5.2). Each write is one or more
/// records.
pub const RECORD_BYTES: u64 = 5 + 1 + 16;
/// Maximum data bytes of a record (RFC 8446, 5.1).
const RECORD_CARRIES: u64 = 1 << 14;

/// Traffic of one unit on a connection: writes, each in its own segments, and separate ACKs.
#[derive(Clone, Debug, Default)]
struct Exchange {
    up: Vec<Write>,
    down: Vec<Write>,
    acks_up: u64,
    acks_down: u64,
    /// True if the exchange begins with the three segments that open a connection.
    opens: bool,
}

#[derive(Clone, Copy, Debug)]
struct Write {
    bytes: u64,
    payload: u64,
}

/// Returns a write without payload.
fn plain(bytes: u64) -> Write {
    Write { bytes, payload: 0 }
}

impl Exchange {
    fn bytes(&self, segment: &Segment) -> DirectionalBytes {
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
        // Opening a connection sends SYN and the ACK of the other SYN up, and one SYN down.
        let opens = u64::from(self.opens);
        DirectionalBytes {
            up: one(&self.up, self.acks_up + opens, opens),
            down: one(&self.down, self.acks_down, opens),
        }
    }
}

struct Segment {
    header: u64,
    carries: u64,
    /// Bytes added to each TLS record. 0 without TLS.
    record: u64,
}

/// Returns each measured unit with the bytes that the model predicts.
///
/// Errors: the recorded traffic lacks a required message, so a head cannot be measured.
pub fn predict(measured: &Measured, plan: &Plan) -> anyhow::Result<Vec<Line>> {
    lines(&Terms::new(measured, plan)?, measured, "", 0, |_| true)
}

/// Returns the same for messages over TLS. `plain` is the same traffic without TLS, in which the heads are readable.
///
/// Errors: as [`predict`].
pub fn predict_secured(plain: &Measured, secured: &Measured, plan: &Plan) -> anyhow::Result<Vec<Line>> {
    lines(&Terms::new(plain, plan)?, secured, SECURED, RECORD_BYTES, |unit| unit == Unit::Message)
}

/// Suffix of the transport name for measurements over TLS.
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
            .fold(DirectionalBytes::default(), |sum, one| sum + one)
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

/// Values that the sizes depend on.
struct Terms {
    transport: Transport,
    payload: u64,
    channel: u64,
    /// Bytes of the epoch part of a position, before the digits of its offset.
    epoch: u64,
    /// Offsets of the first and the last counted message.
    first: u64,
    last: u64,
    heads: Heads,
}

/// Bytes of HTTP heads, without positions and without the digits of `Content-Length`.
#[derive(Default)]
struct Heads {
    /// Complete first request of a reader, and the complete head of its answer.
    opening: u64,
    opened: u64,
    /// Heads of a poll and of its two kinds of answer.
    request: u64,
    answer: u64,
    empty: u64,
    /// Heads of a publisher: the opening of its WebSocket, or a `POST`, with the answer.
    publisher: u64,
    accepted: u64,
}

impl Terms {
    fn new(measured: &Measured, plan: &Plan) -> anyhow::Result<Terms> {
        let transport = measured.transport;
        let channel = plan.channel_of(transport).len() as u64;
        let Measured { subscriber, publisher, .. } = measured;
        let mut heads = Heads::default();
        let asked = requests(&subscriber.sent);
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
            heads.publisher = requests(&publisher.sent).first().context("no publisher")?.len() as u64;
            heads.accepted = Head::read(&publisher.answered)?.context("no answer")?.body_at as u64;
        } else {
            heads.publisher = fixed(requests(&publisher.sent).first().context("no publisher")?, &[b"Content-Length: "]);
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

    /// Returns the bytes of `{"position":"P","time":T,"data":D}`, as used in a line, an answer and a push.
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
            Transport::Stream => pushed(self.object(offset) + 1),
            // The next request carries the ACK of the answer. The server holds the request, so the ACK of the request
            // is separate.
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
            Transport::DataChannel | Transport::Mqtt => Exchange::default(),
        }
    }

    fn silence(&self) -> Exchange {
        let beat = |bytes| Exchange { down: vec![plain(bytes)], acks_up: 1, ..Exchange::default() };
        let position = self.position(self.last);
        let (request, empty) = (vec![plain(self.heads.request + position)], vec![plain(self.heads.empty + position)]);
        match self.transport {
            // The pong carries the ACK of the ping. The ACK of the pong is separate.
            Transport::WebSocket | Transport::Session => Exchange {
                down: vec![plain(frame_header(0))],
                up: vec![plain(frame_header(0) + MASK_BYTES)],
                acks_down: 1,
                ..Exchange::default()
            },
            Transport::Sse => beat(text(":\n\n")),
            Transport::Stream => beat(text("\n")),
            Transport::LongPolling => Exchange { up: request, down: empty, acks_down: 1, ..Exchange::default() },
            Transport::Polling => Exchange { up: request, down: empty, acks_up: 1, ..Exchange::default() },
            Transport::DataChannel | Transport::Mqtt => Exchange::default(),
        }
    }

    /// Returns the opening of a reader. On a new connection, data is acknowledged immediately in a separate ACK.
    fn opening(&self) -> Exchange {
        let Heads { opening, opened, request, .. } = self.heads;
        let mut exchange =
            Exchange { up: vec![plain(opening)], down: vec![plain(opened)], acks_up: 1, acks_down: 1, opens: true };
        let nothing = self.position(0);
        match self.transport {
            Transport::WebSocket
            | Transport::Stream
            | Transport::Polling
            | Transport::DataChannel
            | Transport::Mqtt => {}
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

    /// Returns the bytes of the first push of a session, with the server's default settings. The id of the connection
    /// is that of one of the first connections of a shard.
    fn connected(&self) -> u64 {
        let connection = text(r#""connection":"0123456789abcdef-0-0-1","#);
        connection + text(r#"{"push":"connected","ping_ms":25000,"message_bytes_max":1048576,"time":}"#) + TIME_DIGITS
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
            // The server does not answer a publication on a plain WebSocket. Only the kernel sends an ACK.
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

    /// Returns the close: close frames with a code, and the end of both directions. Our FIN carries the ACKs of the
    /// server's frame and FIN.
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

/// Returns the length of the epoch with its colon: `5f0c12ab:`.
fn epoch_of(position: &str) -> anyhow::Result<u64> {
    Ok(position.rfind(':').with_context(|| format!("no position: {position}"))? as u64 + 1)
}

/// Returns the consecutive requests without their bodies.
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

/// Returns status and head of each complete answer.
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

/// Returns the length of an answer head without the values that change.
fn head_bytes(head: &[u8]) -> u64 {
    fixed(head, &[b"content-length: ", b"millrace-position: "])
}

/// Returns the length of a head without the values that follow the names in `before`.
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
    fn heads_are_counted_without_variable_parts() {
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
