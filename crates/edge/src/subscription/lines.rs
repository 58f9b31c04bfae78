//! Bytes into lines, lines into server-sent events.

use super::MESSAGE_BYTES_MAX;

/// Collects bytes until a line is whole; `\n` and `\r\n` end one.
#[derive(Debug, Default)]
pub struct Lines {
    bytes: Vec<u8>,
    taken: usize,
}

impl Lines {
    /// Errors: a line that is longer than a message may be.
    pub fn push(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.bytes.drain(..self.taken);
        self.taken = 0;
        self.bytes.extend_from_slice(bytes);
        let longest_open = self.bytes.iter().rev().position(|&byte| byte == b'\n').unwrap_or(self.bytes.len());
        match longest_open > MESSAGE_BYTES_MAX {
            true => Err(format!("a line is longer than {MESSAGE_BYTES_MAX} bytes")),
            false => Ok(()),
        }
    }

    /// The next whole line without its end.
    pub fn next_line(&mut self) -> Option<&[u8]> {
        let rest = &self.bytes[self.taken..];
        let end = rest.iter().position(|&byte| byte == b'\n')?;
        let line = &rest[..end];
        self.taken += end + 1;
        Some(line.strip_suffix(b"\r").unwrap_or(line))
    }
}

/// One server-sent event. Source: HTML Living Standard, "Interpreting an event stream".
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Event {
    /// Empty stands for `message`.
    pub kind: String,
    pub data: String,
    pub id: Option<String>,
}

#[derive(Debug, Default)]
pub struct Events {
    open: Event,
    has_data: bool,
}

impl Events {
    /// Takes a line; an empty one ends an event. An event without data is given only if it has an id.
    pub fn take(&mut self, line: &[u8]) -> Option<Event> {
        let line = String::from_utf8_lossy(line);
        if line.is_empty() {
            let event = std::mem::take(&mut self.open);
            let whole = std::mem::take(&mut self.has_data) || event.id.is_some();
            return whole.then_some(event);
        }
        let (field, value) = line.split_once(':').unwrap_or((line.as_ref(), ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => value.clone_into(&mut self.open.kind),
            "id" => self.open.id = Some(value.to_owned()),
            "data" => {
                if self.has_data {
                    self.open.data.push('\n');
                }
                self.open.data.push_str(value);
                self.has_data = true;
            }
            // Comments (an empty field) and `retry`, whose pace the backoff sets.
            _ => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_whole_however_the_bytes_are_cut() {
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
    fn an_endless_line_is_an_error() {
        let mut lines = Lines::default();
        assert!(lines.push(&vec![b'x'; MESSAGE_BYTES_MAX]).is_ok());
        assert!(lines.push(b"xx").is_err());
    }

    #[test]
    fn events_are_read_as_the_standard_says() {
        let text =
            ": heartbeat\n\nretry: 2000\nid: e:1\n\nid: e:2\ndata: a\ndata:b\n\nevent: gap\ndata: {}\n\ndata\n\n";
        let mut events = Events::default();
        let seen: Vec<Event> = text.lines().filter_map(|line| events.take(line.as_bytes())).collect();
        let event = |kind: &str, data: &str, id: Option<&str>| Event {
            kind: kind.into(),
            data: data.into(),
            id: id.map(str::to_owned),
        };
        let wanted =
            [event("", "", Some("e:1")), event("", "a\nb", Some("e:2")), event("gap", "{}", None), event("", "", None)];
        assert_eq!(seen, wanted);
    }
}
