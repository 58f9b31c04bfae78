//! Parser for server-sent events (HTML Living Standard, "Server-sent events").

use std::borrow::Cow;

use memchr::{memchr, memchr2};

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// One event, or a block that only sets an id.
pub struct Event<'a> {
    pub name: Option<&'a [u8]>,
    pub id: Option<&'a [u8]>,
    pub data: Option<Cow<'a, [u8]>>,
}

/// Parses the complete events of `body` and returns how many bytes were consumed. `has_begun` is false at the start
/// of a stream.
///
/// A line ends with `\n`, `\r\n` or `\r`. A `\r` at the end of `body` counts as a line end. If `\n` follows it later,
/// that is an empty event, which has no effect.
pub fn events(body: &[u8], has_begun: &mut bool, mut emit: impl FnMut(Event<'_>)) -> usize {
    let mut used = 0;
    if !*has_begun {
        if body.len() < BYTE_ORDER_MARK.len() && BYTE_ORDER_MARK.starts_with(body) {
            return 0;
        }
        *has_begun = true;
        used = if body.starts_with(BYTE_ORDER_MARK) { BYTE_ORDER_MARK.len() } else { 0 };
    }
    let mut at = used;
    let mut event = Event { name: None, id: None, data: None };
    while let Some(length) = memchr2(b'\n', b'\r', &body[at..]) {
        let line = &body[at..at + length];
        at += length + if body[at + length..].starts_with(b"\r\n") { 2 } else { 1 };
        if line.is_empty() {
            emit(std::mem::replace(&mut event, Event { name: None, id: None, data: None }));
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
            b"id" if memchr(0, value).is_none() => event.id = Some(value),
            b"event" => event.name = Some(value),
            _ => {}
        }
    }
    used
}

#[cfg(test)]
#[path = "../../../../conformance/eventstream/vectors.rs"]
mod vectors;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_match_the_standard_for_any_split() {
        vectors::check(|pieces| {
            let (mut has_begun, mut last_id, mut seen) = (false, String::new(), Vec::new());
            let mut body = Vec::new();
            for piece in pieces {
                body.extend_from_slice(piece);
                let used = events(&body, &mut has_begun, |event| {
                    if let Some(id) = event.id {
                        last_id = text(id);
                    }
                    let Some(data) = event.data else { return };
                    let name = event.name.filter(|name| !name.is_empty()).unwrap_or(b"message");
                    seen.push([text(name), text(&data), last_id.clone()]);
                });
                body.drain(..used);
            }
            seen
        });
    }

    fn text(bytes: &[u8]) -> String {
        String::from_utf8_lossy(bytes).into_owned()
    }
}
