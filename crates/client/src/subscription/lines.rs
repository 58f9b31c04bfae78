//! Parser of lines and server-sent events.

use super::message::MESSAGE_BYTES_MAX;

/// A line of the server exceeds the maximum message size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a line is longer than {MESSAGE_BYTES_MAX} bytes")]
pub struct LineTooLong;

/// Buffer that splits bytes into lines; `\n`, `\r\n` and `\r` end a line.
#[derive(Debug, Default)]
pub struct Lines {
    bytes: Vec<u8>,
    taken: usize,
    /// The last line ended with `\r`; a following `\n` belongs to that line end.
    after_return: bool,
}

impl Lines {
    /// Appends bytes.
    ///
    /// Errors: an incomplete line is longer than `MESSAGE_BYTES_MAX`.
    pub fn push(&mut self, bytes: &[u8]) -> Result<(), LineTooLong> {
        self.bytes.drain(..self.taken);
        self.taken = 0;
        self.bytes.extend_from_slice(bytes);
        let open = self.bytes.iter().rev().position(|&byte| is_end(byte)).unwrap_or(self.bytes.len());
        match open > MESSAGE_BYTES_MAX {
            true => Err(LineTooLong),
            false => Ok(()),
        }
    }

    /// Returns the next complete line without its line end.
    pub fn next_line(&mut self) -> Option<&[u8]> {
        if self.after_return {
            self.taken += usize::from(*self.bytes.get(self.taken)? == b'\n');
            self.after_return = false;
        }
        let rest = &self.bytes[self.taken..];
        let end = rest.iter().position(|&byte| is_end(byte))?;
        self.after_return = rest[end] == b'\r';
        self.taken += end + 1;
        Some(&rest[..end])
    }
}

fn is_end(byte: u8) -> bool {
    matches!(byte, b'\n' | b'\r')
}

/// Server-sent event. Source: HTML Living Standard, "Interpreting an event stream".
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Event {
    /// Event type; empty means `message`.
    pub kind: String,
    /// Data of the event; `None` if the event has no `data` field.
    pub data: Option<String>,
    pub id: Option<String>,
}

#[derive(Debug, Default)]
pub struct Events {
    open: Event,
    has_begun: bool,
}

impl Events {
    /// Processes a line; an empty line ends an event. An event without data is returned only if it has an id.
    pub fn take(&mut self, line: &[u8]) -> Option<Event> {
        let line = String::from_utf8_lossy(line);
        // The stream may begin with a byte order mark.
        let first = !std::mem::replace(&mut self.has_begun, true);
        let line = line.strip_prefix('\u{feff}').filter(|_| first).unwrap_or(&line);
        if line.is_empty() {
            let event = std::mem::take(&mut self.open);
            return (event.data.is_some() || event.id.is_some()).then_some(event);
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => value.clone_into(&mut self.open.kind),
            "id" if !value.contains('\0') => self.open.id = Some(value.to_owned()),
            "data" => match &mut self.open.data {
                Some(data) => {
                    data.push('\n');
                    data.push_str(value);
                }
                none => *none = Some(value.to_owned()),
            },
            // Ignore comments (an empty field) and `retry`: the backoff sets the delay.
            _ => {}
        }
        None
    }
}

#[cfg(test)]
#[path = "../../../../conformance/eventstream/vectors.rs"]
mod vectors;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_survive_any_split_of_the_bytes() {
        let text = b"first\r\n\nthird line\nrest";
        for cut in 1..text.len() {
            let (mut lines, mut seen) = (Lines::default(), Vec::new());
            for part in text.chunks(cut) {
                lines.push(part).expect("short lines");
                while let Some(line) = lines.next_line() {
                    seen.push(String::from_utf8_lossy(line).into_owned());
                }
            }
            assert_eq!(seen, ["first", "", "third line"], "cut every {cut} bytes");
        }
    }

    #[test]
    fn endless_line_is_an_error() {
        let mut lines = Lines::default();
        assert!(lines.push(&vec![b'x'; MESSAGE_BYTES_MAX]).is_ok());
        assert!(lines.push(b"xx").is_err());
    }

    #[test]
    fn events_match_the_standard_for_any_split() {
        vectors::check(|pieces| {
            let (mut lines, mut events, mut last_id) = (Lines::default(), Events::default(), String::new());
            let mut seen = Vec::new();
            for piece in pieces {
                lines.push(piece).expect("short lines");
                while let Some(line) = lines.next_line() {
                    let Some(event) = events.take(line) else { continue };
                    last_id = event.id.unwrap_or(last_id);
                    let Some(data) = event.data else { continue };
                    let kind = if event.kind.is_empty() { "message".into() } else { event.kind };
                    seen.push([kind, data, last_id.clone()]);
                }
            }
            seen
        });
    }

    #[test]
    fn id_without_data_is_reported() {
        let mut events = Events::default();
        let seen: Vec<Event> =
            ["id: e:1", "", "data: a", ""].iter().filter_map(|line| events.take(line.as_bytes())).collect();
        assert_eq!(seen[0], Event { id: Some("e:1".into()), ..Event::default() });
        assert_eq!(seen[1], Event { data: Some("a".into()), ..Event::default() });
    }
}
