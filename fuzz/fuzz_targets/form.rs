//! Fuzzes the encodings of a publication and their readers. No part of the payload or key may become part of the
//! framing, and all of it must be recovered. A strict XML parser checks the XML.

#![no_main]

use base64::prelude::{BASE64_STANDARD, Engine as _};
use libfuzzer_sys::{arbitrary::Arbitrary, fuzz_target};
use millrace_client::subscription::lines::{Event, Events, Lines};
use millrace_protocol::{
    ChannelName, Encoding, Epoch, Gap, Kind, Position, Publication, PublicationHead, Since, TraceContext,
    encoding::xml, websocket,
};
use roxmltree::{Document, Node};
use serde_json::{Value, value::RawValue};

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    epoch: u32,
    offset: u64,
    time_ms: u64,
    key: Option<&'a str>,
    trace: Option<[u8; 25]>,
    is_looked_at: bool,
    data: &'a [u8],
}

fuzz_target!(|input: Input<'_>| {
    let Input { epoch, offset, time_ms, key, trace, is_looked_at, data } = input;
    let channel = ChannelName::parse("a/b").expect("a good name");
    let found = Kind::detect(data);
    let kind = if is_looked_at || found == Kind::Binary { found } else { Kind::Utf8 };
    let trace = trace.and_then(|bytes| TraceContext::from_bytes(&bytes).ok());
    let key = key.map(Into::into);
    let head = PublicationHead { offset, time_ms, key, expires_ms: None, kind, is_traced: false, is_deletion: false };
    let publication = Publication::with_trace(head, data, trace);
    let encoded = |encoding: Encoding| {
        let mut out = Vec::new();
        encoding.encode(&mut out, &channel, Epoch(epoch), &publication);
        out
    };
    let position = Position { epoch: Epoch(epoch), offset };
    for encoding in [Encoding::Ndjson, Encoding::NdjsonMany] {
        let line = encoded(encoding);
        assert_eq!(lines(&line).len(), 1, "one line, whole: {line:?}");
        envelope(&line, position, &publication);
    }
    sse(&encoded(Encoding::Sse), position, &publication);
    let many = encoded(Encoding::SseMany);
    let [event] = &events(&many)[..] else { panic!("one event: {many:?}") };
    envelope(event.data.as_deref().unwrap_or_default().as_bytes(), position, &publication);

    let bare = encoded(Encoding::Bare);
    let mut expected = Vec::new();
    let opcode = if kind == Kind::Binary { websocket::BINARY } else { websocket::TEXT };
    websocket::encode(&mut expected, opcode, publication.data());
    assert_eq!(bare, expected);

    let gap = Some(Gap { from: position, to: position });
    let answer = xml::answer(Since::Position(position), true, gap, Epoch(epoch), &[publication.clone()]);
    xml_answer(&answer, &publication);
    if let Ok(value) = serde_json::from_slice::<Value>(publication.data()) {
        let text = xml::document("root", &value);
        xml_value(parse(&text).root_element(), "root", &value);
    }
});

/// Returns the lines of a stream. Checks that no bytes are left over, however the stream is split.
fn lines(bytes: &[u8]) -> Vec<Vec<u8>> {
    let cut = |step: usize| {
        let (mut lines, mut seen) = (Lines::default(), Vec::new());
        for piece in bytes.chunks(step) {
            lines.push(piece).expect("short lines");
            while let Some(line) = lines.next_line() {
                seen.push(line.to_vec());
            }
        }
        seen
    };
    let whole = cut(bytes.len());
    assert_eq!(cut(1), whole);
    assert!(bytes.ends_with(b"\n"));
    whole
}

fn events(bytes: &[u8]) -> Vec<Event> {
    assert!(bytes.ends_with(b"\n\n"));
    let mut events = Events::default();
    lines(bytes).iter().filter_map(|line| events.take(line)).collect()
}

fn text(publication: &Publication) -> &str {
    std::str::from_utf8(publication.data()).expect("neither text nor JSON is anything else")
}

/// Checks the JSON envelope of a publication.
///
/// Source: docs/reference/protocol.md, "How one publication looks".
fn envelope(json: &[u8], position: Position, publication: &Publication) {
    #[derive(serde::Deserialize)]
    struct Envelope<'a> {
        position: String,
        time: u64,
        key: Option<String>,
        trace: Option<String>,
        #[serde(borrow)]
        data: &'a RawValue,
        encoding: Option<String>,
    }
    let envelope: Envelope<'_> = serde_json::from_slice(json).expect("an envelope");
    assert_eq!((envelope.position, envelope.time), (position.to_string(), publication.time_ms));
    assert_eq!(envelope.key.as_deref(), publication.key.as_deref());
    let trace = envelope.trace.map(|text| text.parse::<TraceContext>().expect("a context"));
    assert_eq!(trace, publication.trace());
    let data = envelope.data.get();
    let string = || serde_json::from_str::<String>(data).expect("a string");
    match publication.kind() {
        Kind::Json => assert_eq!(data, text(publication).replace(['\r', '\n'], " ").trim_matches([' ', '\t'])),
        Kind::Text | Kind::Utf8 => assert_eq!(string(), text(publication)),
        Kind::Binary => {
            assert_eq!(BASE64_STANDARD.decode(string()).expect("base64"), publication.data());
            assert_eq!(envelope.encoding.as_deref(), Some("base64"));
        }
    }
    assert_eq!(envelope.encoding.is_some(), publication.kind() == Kind::Binary);
}

fn sse(frame: &[u8], position: Position, publication: &Publication) {
    let events = events(frame);
    let [event] = &events[..] else { panic!("one event: {frame:?}") };
    let data = match publication.kind {
        Kind::Binary => BASE64_STANDARD.encode(publication.data()),
        _ => text(publication).replace("\r\n", "\n").replace('\r', "\n"),
    };
    assert_eq!(event, &Event { kind: String::new(), data: Some(data), id: Some(position.to_string()) });
}

fn parse(xml: &str) -> Document<'_> {
    Document::parse(xml).unwrap_or_else(|error| panic!("{error}: {xml:?}"))
}

fn xml_answer(answer: &str, publication: &Publication) {
    let document = parse(answer);
    let message = document.descendants().find(|node| node.has_tag_name("message")).expect("a message");
    assert_eq!(message.attribute("key").map(str::to_owned), publication.key.as_deref().map(in_xml));
    assert_eq!(message.attribute("trace").map(str::to_owned), publication.trace().map(|trace| trace.to_string()));
    let data = message.first_element_child().expect("data");
    match publication.kind() {
        Kind::Json => match serde_json::from_slice(publication.data()) {
            Ok(value) => xml_value(data, "data", &value),
            // A number exceeds the range of `Value`.
            Err(_) => assert_eq!(data.text().unwrap_or_default(), in_xml(text(publication))),
        },
        Kind::Text | Kind::Utf8 => assert_eq!(data.text().unwrap_or_default(), in_xml(text(publication))),
        Kind::Binary => assert_eq!(data.text().unwrap_or_default(), BASE64_STANDARD.encode(publication.data())),
    }
}

/// Checks the XML of a JSON value: one element per field. A field name that is no XML name becomes `entry` with the
/// name as its `key`.
fn xml_value(element: Node<'_, '_>, name: &str, value: &Value) {
    match element.attribute("key") {
        Some(key) => assert_eq!((element.tag_name().name(), key), ("entry", &*in_xml(name))),
        None => assert_eq!(element.tag_name().name(), name),
    }
    let children = || element.children().filter(Node::is_element);
    match value {
        Value::Object(fields) => {
            assert_eq!(children().count(), fields.len());
            children().zip(fields).for_each(|(child, (name, value))| xml_value(child, name, value));
        }
        Value::Array(items) => {
            assert_eq!(children().count(), items.len());
            children().zip(items).for_each(|(child, value)| xml_value(child, "item", value));
        }
        Value::Null => assert_eq!(element.text(), None),
        Value::String(text) => assert_eq!(element.text().unwrap_or_default(), in_xml(text)),
        Value::Bool(_) | Value::Number(_) => assert_eq!(element.text(), Some(&*value.to_string())),
    }
}

/// Replaces the characters that XML cannot contain.
///
/// Source: XML 1.0, section 2.2.
fn in_xml(text: &str) -> String {
    let is_char =
        |c: char| matches!(c, '\t' | '\n' | '\r' | ' '..='\u{d7ff}' | '\u{e000}'..='\u{fffd}' | '\u{10000}'..);
    text.chars().map(|c| if is_char(c) { c } else { '\u{fffd}' }).collect()
}
