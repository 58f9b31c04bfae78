//! Compares the wire format byte by byte with a second implementation that is as simple as possible.

use base64::prelude::{BASE64_STANDARD, Engine as _};
use millrace_protocol::{
    ChannelName, Encoding, Epoch, Gap, Kind, Position, Publication, PublicationHead, Since, TraceContext,
    encoding::Envelope,
    websocket::{BINARY, TEXT},
};
use rand_pcg::{
    Pcg64Mcg,
    rand_core::{Rng, SeedableRng},
};

const SEED: u64 = 0x5eed;
const ROUNDS: usize = 5_000;

#[test]
fn every_encoding_matches_simple_reference() {
    let mut dice = Dice(Pcg64Mcg::seed_from_u64(SEED));
    for round in 0..ROUNDS {
        let (channel, epoch, publication) = (dice.channel(), Epoch(dice.number() as u32), dice.publication());
        let gap = Gap { from: dice.position(), to: dice.position() };
        for encoding in [
            Encoding::Bare,
            Encoding::Session,
            Encoding::Lines,
            Encoding::Sse,
            Encoding::SseMany,
            Encoding::Ndjson,
            Encoding::NdjsonMany,
        ] {
            let mut out = b"earlier bytes".to_vec();
            let mut expected = out.clone();
            encoding.encode(&mut out, &channel, epoch, &publication);
            expected.extend(message(encoding, &channel, epoch, &publication));
            encoding.encode_gap(&mut out, &channel, gap);
            expected.extend(gap_message(encoding, &channel, gap));
            assert_same(&out, &expected, &format!("seed {SEED:#x}, round {round}, {encoding:?}, {publication:?}"));
        }
    }
}

#[test]
fn every_reply_matches_simple_reference() {
    let mut dice = Dice(Pcg64Mcg::seed_from_u64(SEED));
    for round in 0..ROUNDS / 10 {
        let (channel, end) = (dice.channel(), dice.position());
        let publications: Vec<_> = (0..dice.below(4)).map(|_| dice.publication()).collect();
        let gap = (dice.below(2) == 0).then(|| Gap { from: dice.position(), to: dice.position() });
        let more = dice.below(2) == 0;
        let more_word = if more { "\"more\":true," } else { "" };
        let what = format!("seed {SEED:#x}, round {round}, {publications:?}");

        let one = publications.iter().map(|message| envelope("", None, end.epoch, message)).collect::<Vec<_>>();
        let gap_word = gap.map_or(String::new(), |gap| format!("\"gap\":{},", gap_words("", None, gap)));
        let expected =
            format!("{{\"position\":\"{}\",{more_word}{gap_word}\"messages\":[{}]}}", spelled(end), one.join(","));
        assert_same(
            &Envelope::answer(Since::Position(end), more, gap, end.epoch, &publications),
            expected.as_bytes(),
            &what,
        );

        let other = dice.channel();
        let positions = [(&channel, end), (&other, end)];
        let messages = publications.iter().map(|message| (&channel, end.epoch, message));
        let many = Envelope::many(positions.into_iter().map(|(name, at)| (name, Since::Position(at)))).finish(
            more,
            gap.map(|gap| (&other, gap)).into_iter(),
            messages,
        );
        let named = publications.iter().map(|message| envelope("", Some(&channel), end.epoch, message));
        let expected = format!(
            "{{\"positions\":{{\"{channel}\":\"{at}\",\"{other}\":\"{at}\"}},{more_word}\"gaps\":[{}],\"messages\":[{}]}}",
            gap.map_or(String::new(), |gap| gap_words("", Some(&other), gap)),
            named.collect::<Vec<_>>().join(","),
            at = spelled(end),
        );
        assert_same(&many, expected.as_bytes(), &what);
    }
}

fn assert_same(out: &[u8], expected: &[u8], what: &str) {
    assert!(out == expected, "{what}\n  is     {}\n  not    {}", out.escape_ascii(), expected.escape_ascii());
}

fn message(encoding: Encoding, channel: &ChannelName, epoch: Epoch, publication: &Publication) -> Vec<u8> {
    let words = |push, channel| envelope(push, channel, epoch, publication);
    match encoding {
        Encoding::Bare if publication.kind == Kind::Binary => frame(BINARY, publication.data()),
        Encoding::Bare => frame(TEXT, publication.data()),
        Encoding::Session => frame(TEXT, words("message", Some(channel)).as_bytes()),
        Encoding::Lines => (words("message", Some(channel)) + "\n").into_bytes(),
        Encoding::SseMany => format!("data: {}\n\n", words("", Some(channel))).into_bytes(),
        Encoding::Ndjson => (words("", None) + "\n").into_bytes(),
        Encoding::NdjsonMany => (words("", Some(channel)) + "\n").into_bytes(),
        _ => {
            let text = match publication.kind() {
                Kind::Binary => BASE64_STANDARD.encode(publication.data()),
                _ => std::str::from_utf8(publication.data()).unwrap().replace("\r\n", "\n").replace('\r', "\n"),
            };
            let lines: String = text.split('\n').map(|line| format!("data: {line}\n")).collect();
            format!("id: {}\n{lines}\n", spelled(Position { epoch, offset: publication.offset })).into_bytes()
        }
    }
}

fn gap_message(encoding: Encoding, channel: &ChannelName, gap: Gap) -> Vec<u8> {
    match encoding {
        Encoding::Bare => frame(8, &[&4000u16.to_be_bytes(), spelled(gap.to).as_bytes()].concat()),
        Encoding::Session => frame(TEXT, gap_words("gap", Some(channel), gap).as_bytes()),
        Encoding::Lines => (gap_words("gap", Some(channel), gap) + "\n").into_bytes(),
        Encoding::SseMany => format!("event: gap\ndata: {}\n\n", gap_words("", Some(channel), gap)).into_bytes(),
        Encoding::Ndjson => format!("{{\"gap\":{}}}\n", gap_words("", None, gap)).into_bytes(),
        Encoding::NdjsonMany => format!("{{\"gap\":{}}}\n", gap_words("", Some(channel), gap)).into_bytes(),
        _ => format!("event: gap\nid: {}\ndata: {}\n\n", spelled(gap.to), gap_words("", None, gap)).into_bytes(),
    }
}

fn envelope(push: &str, channel: Option<&ChannelName>, epoch: Epoch, publication: &Publication) -> String {
    let at = spelled(Position { epoch, offset: publication.offset });
    let mut words = start(push, channel);
    words.push(format!("\"position\":\"{at}\""));
    words.push(format!("\"time\":{}", publication.time_ms));
    words.extend(publication.key.as_ref().map(|key| format!("\"key\":{}", json(key))));
    words.extend(publication.trace().map(|trace| {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        format!("\"trace\":\"00-{}-{}-{:02x}\"", hex(&trace.trace_id), hex(&trace.span_id), trace.flags)
    }));
    match publication.kind {
        Kind::Json => {
            let data = std::str::from_utf8(publication.data()).unwrap();
            words.push(format!("\"data\":{}", data.replace(['\n', '\r'], " ")));
        }
        Kind::Text | Kind::Utf8 => {
            words.push(format!("\"data\":{}", json(std::str::from_utf8(publication.data()).unwrap())))
        }
        Kind::Binary => {
            words.push(format!("\"data\":\"{}\"", BASE64_STANDARD.encode(publication.data())));
            words.push("\"encoding\":\"base64\"".into());
        }
    }
    format!("{{{}}}", words.join(","))
}

fn gap_words(push: &str, channel: Option<&ChannelName>, gap: Gap) -> String {
    let mut words = start(push, channel);
    words.push(format!("\"from\":\"{}\",\"to\":\"{}\"", spelled(gap.from), spelled(gap.to)));
    format!("{{{}}}", words.join(","))
}

fn start(push: &str, channel: Option<&ChannelName>) -> Vec<String> {
    let push = (!push.is_empty()).then(|| format!("\"push\":\"{push}\""));
    push.into_iter().chain(channel.map(|channel| format!("\"channel\":\"{channel}\""))).collect()
}

fn spelled(at: Position) -> String {
    format!("{:08x}:{}", at.epoch.0, at.offset)
}

fn json(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Encodes a WebSocket frame. Source: RFC 6455, section 5.2.
fn frame(opcode: u8, payload: &[u8]) -> Vec<u8> {
    let length = match payload.len() {
        n if n < 126 => vec![n as u8],
        n if n < 65_536 => [&[126], n.to_be_bytes()[6..].as_ref()].concat(),
        n => [&[127], n.to_be_bytes().as_ref()].concat(),
    };
    [vec![0x80 | opcode], length, payload.to_vec()].concat()
}

struct Dice(Pcg64Mcg);

impl Dice {
    fn below(&mut self, limit: u64) -> u64 {
        self.0.next_u64() % limit
    }

    /// Returns a number of any length, from one digit to twenty.
    fn number(&mut self) -> u64 {
        let shift = self.below(64);
        self.0.next_u64() >> shift
    }

    fn position(&mut self) -> Position {
        Position { epoch: Epoch(self.number() as u32), offset: self.number() }
    }

    fn channel(&mut self) -> ChannelName {
        let name = "a/B_0-9.:x/".repeat(1 + self.below(20) as usize);
        ChannelName::parse(name.trim_end_matches('/')).unwrap()
    }

    /// Returns text, mostly short, with line breaks, quotes and multi-byte characters at any place.
    fn text(&mut self, short_max: u64) -> String {
        let max = if self.below(100) == 0 { 200 * short_max } else { short_max };
        let odd = ['\n', '\r', '"', '\\', '\0', '\u{1f}', 'é', '\u{2028}', '🚗', ' '];
        let length = self.below(max + 1);
        let one = |_| match self.below(40) as usize {
            n if n < odd.len() => odd[n],
            n => char::from(b'a' + (n % 26) as u8),
        };
        (0..length).map(one).collect()
    }

    fn publication(&mut self) -> Publication {
        let (kind, data) = match self.below(3) {
            0 => {
                let text = json(&self.text(400));
                (Kind::Json, format!("[\n{text}, \r\n1\r]{}", "\n".repeat(self.below(3) as usize)).into_bytes())
            }
            1 => (Kind::Text, self.text(400).into_bytes()),
            _ => (Kind::Binary, (0..self.below(400)).map(|_| self.0.next_u64() as u8).collect()),
        };
        let key = (self.below(3) == 0).then(|| self.text(30).into());
        let trace = (self.below(4) == 0).then(|| {
            let trace_id = u128::from(self.number() | 1).to_be_bytes();
            let flags = self.number() as u8 | TraceContext::SAMPLED;
            TraceContext { trace_id, span_id: (self.number() | 1).to_be_bytes(), flags }
        });
        let (offset, time_ms) = (self.number(), self.number());
        let head =
            PublicationHead { offset, time_ms, key, expires_ms: None, kind, is_traced: false, is_deletion: false };
        Publication::with_trace(head, &data, trace)
    }
}
