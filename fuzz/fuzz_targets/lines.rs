//! Fuzzes the client's reading of an untrusted server's stream: bytes into lines and lines into events, however the
//! bytes are split. Input: a stream.

#![no_main]

use libfuzzer_sys::fuzz_target;
use millrace_client::subscription::{
    Gap, Message,
    lines::{Event, Events, Lines},
};

fuzz_target!(|data: &[u8]| {
    let whole = read(data, data.len().max(1));
    for step in [1, 2, 7] {
        assert_eq!(read(data, step), whole, "cut every {step} bytes");
    }
    let (lines, events) = whole;
    // Reference: a naive reader of the whole stream. It decodes bytes as Latin-1, which preserves line ends.
    let text: String = data.iter().copied().map(char::from).collect();
    let text = text.replace("\r\n", "\n").replace('\r', "\n");
    let whole_lines = text.rsplit_once('\n').map(|(whole, _)| whole.split('\n').map(str::chars));
    let expected: Vec<Vec<u8>> =
        whole_lines.into_iter().flatten().map(|line| line.map(|c| c as u8).collect()).collect();
    assert_eq!(lines, expected);
    let length = |text: &Option<String>| text.as_ref().map_or(0, String::len);
    let given = |event: &Event| event.kind.len() + length(&event.data) + length(&event.id);
    // A byte that is invalid in UTF-8 becomes three bytes.
    assert!(events.iter().map(given).sum::<usize>() <= 3 * data.len());
    for data in events.into_iter().filter_map(|event| event.data) {
        if let Ok(message) = serde_json::from_str::<Message>(&data) {
            assert!(!message.line().contains(['\n', '\r']), "a message is one line: {message:?}");
            let again = serde_json::to_string(&message).expect("JSON");
            let same: Message = serde_json::from_str(&again).expect("what was read");
            assert_eq!((same.position, same.key, same.data.get()), (message.position, message.key, message.data.get()));
        }
        let _ = serde_json::from_str::<Gap>(&data);
    }
});

fn read(data: &[u8], step: usize) -> (Vec<Vec<u8>>, Vec<Event>) {
    let (mut lines, mut parser) = (Lines::default(), Events::default());
    let (mut seen, mut events) = (Vec::new(), Vec::new());
    for piece in data.chunks(step) {
        lines.push(piece).expect("short lines");
        while let Some(line) = lines.next_line() {
            seen.push(line.to_vec());
            events.extend(parser.take(line));
        }
    }
    (seen, events)
}
