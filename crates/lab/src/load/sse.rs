//! The lines of an event stream (HTML Living Standard, "Server-sent events").

use std::borrow::Cow;

use memchr::memchr;

/// One event, or a block that only sets an id.
pub struct Event<'a> {
    pub name: Option<&'a [u8]>,
    pub id: Option<&'a [u8]>,
    pub data: Option<Cow<'a, [u8]>>,
}

/// Reads the whole events of `body` and returns how many bytes they took. A line ends with `\n` or `\r\n`; nobody sends `\r` alone.
pub fn events(body: &[u8], mut hear: impl FnMut(Event<'_>)) -> usize {
    let (mut used, mut at) = (0, 0);
    let mut event = Event { name: None, id: None, data: None };
    while let Some(length) = memchr(b'\n', &body[at..]) {
        let line = &body[at..at + length];
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        at += length + 1;
        if line.is_empty() {
            hear(std::mem::replace(&mut event, Event { name: None, id: None, data: None }));
            used = at;
            continue;
        }
        let (field, value) = match memchr(b':', line) {
            Some(colon) => (&line[..colon], line[colon + 1..].strip_prefix(b" ").unwrap_or(&line[colon + 1..])),
            None => (line, &line[..0]),
        };
        match field {
            b"data" => match &mut event.data {
                None => event.data = Some(value.into()),
                Some(data) => {
                    data.to_mut().push(b'\n');
                    data.to_mut().extend_from_slice(value);
                }
            },
            b"id" => event.id = Some(value),
            b"event" => event.name = Some(value),
            _ => {}
        }
    }
    used
}
