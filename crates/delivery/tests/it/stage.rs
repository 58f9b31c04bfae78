//! A hub, the history of its publications, and a recording of everything that it writes.

use std::collections::HashMap;

use millrace_delivery::{Appended, Bounds, Config, ConnId, FirstPage, History, Hub, Output, Page, PageLimit, Wire};
use millrace_protocol::{
    ChannelName, Code, Encoding, Epoch, Kind, NewPublication, Pattern, Position, Publication, Since, session::Policy,
};

pub const BOUNDS: Bounds = Bounds { count_max: 10_000, bytes_max: 1 << 30, age_max_ms: 1 << 40, keys_max: 0 };
pub const LIMIT: PageLimit = PageLimit { count: 1000, bytes: 1 << 30 };

/// Bytes written to each connection, write by write. A socket accepts as many bytes as it has capacity.
#[derive(Default)]
pub struct Tape {
    pub writes: HashMap<ConnId, Vec<String>>,
    pub room: HashMap<ConnId, usize>,
}

impl Wire for Tape {
    fn write(&mut self, conn: ConnId, bytes: &[u8]) -> usize {
        let room = self.room.entry(conn).or_insert(usize::MAX);
        let taken = bytes.len().min(*room);
        *room -= taken;
        if taken > 0 {
            self.writes.entry(conn).or_default().push(String::from_utf8_lossy(&bytes[..taken]).into_owned());
        }
        taken
    }
}

impl Tape {
    pub fn take(&mut self, conn: ConnId) -> Vec<String> {
        self.writes.remove(&conn).unwrap_or_default()
    }
}

/// A hub with the history of its publications.
pub struct Stage {
    pub hub: Hub,
    pub tape: Tape,
    pub histories: HashMap<ChannelName, History>,
}

impl Stage {
    pub fn new() -> Self {
        Self::with(Config::default())
    }

    pub fn with(config: Config) -> Self {
        Self { hub: Hub::new(config), tape: Tape::default(), histories: HashMap::new() }
    }

    pub fn append(&mut self, channel: &str, data: &str) -> Publication {
        let new = NewPublication::new(Kind::Text, data.as_bytes());
        match self.history(channel).append(new, 1, &BOUNDS) {
            Appended::New(publication) => publication,
            Appended::Duplicate(_) | Appended::Refused(_) => unreachable!("neither a key nor a condition was given"),
        }
    }

    pub fn publish(&mut self, channel: &str, data: &str) {
        let publication = self.append(channel, data);
        self.hub.deliver(&name(channel), None, Epoch(1), &publication);
    }

    pub fn history(&mut self, channel: &str) -> &mut History {
        self.histories.entry(name(channel)).or_insert_with(|| History::new(Epoch(1)))
    }

    pub fn page(&mut self, channel: &str, since: Since) -> Page {
        self.history(channel).page(since, Policy::Every, LIMIT, 1, &BOUNDS)
    }

    pub fn attach(&mut self, conn: ConnId, channel: &str, since: Since) -> Result<Position, Code> {
        self.hub.watch(&name(channel));
        let first = FirstPage { channel: name(channel), since, page: self.page(channel, since) };
        let start = first.page.start();
        let attached = self.hub.attach(conn, Policy::Every, &[first], &mut self.tape);
        attached.map(|()| start).map_err(|error| error.code)
    }

    pub fn reader(&mut self, encoding: Encoding, channel: &str) -> ConnId {
        let conn = self.hub.connect(encoding);
        self.attach(conn, channel, Since::Now).unwrap();
        conn
    }

    pub fn flush(&mut self) {
        self.hub.flush(&mut self.tape);
    }

    pub fn unblock(&mut self, conn: ConnId, room: usize) {
        self.tape.room.insert(conn, room);
        self.hub.writable(conn, &mut self.tape);
    }

    pub fn outputs(&mut self) -> Vec<Output> {
        std::iter::from_fn(|| self.hub.poll_output()).collect()
    }

    /// Answers all requests for history. Returns their start positions.
    pub fn answer_reads(&mut self) -> Vec<Since> {
        let mut asked = Vec::new();
        for output in self.outputs() {
            if let Output::ReadHistory { ticket, channel, since, .. } = output {
                let page = self.page(channel.as_str(), since);
                self.hub.handle_page(ticket, &page, &mut self.tape);
                asked.push(since);
            }
        }
        asked
    }
}

pub fn name(channel: &str) -> ChannelName {
    ChannelName::parse(channel).unwrap()
}

pub fn pattern(pattern: &str) -> Pattern {
    Pattern::parse(pattern).unwrap()
}

pub fn at(offset: u64) -> Since {
    Since::Position(at_position(offset))
}

pub fn at_position(offset: u64) -> Position {
    Position { epoch: Epoch(1), offset }
}

pub fn line(offset: u64, data: &str) -> String {
    format!("{{\"position\":\"00000001:{offset}\",\"time\":1,\"data\":\"{data}\"}}\n")
}

pub fn push(channel: &str, offset: u64, data: &str) -> String {
    let body = format!(
        "{{\"push\":\"message\",\"channel\":\"{channel}\",\"position\":\"00000001:{offset}\",\"time\":1,\"data\":\"{data}\"}}"
    );
    let mut frame = Vec::new();
    millrace_protocol::websocket::encode(&mut frame, 1, body.as_bytes());
    String::from_utf8_lossy(&frame).into_owned()
}
