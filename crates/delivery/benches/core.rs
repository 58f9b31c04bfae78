//! Work of the core per message, counted in instructions: the count does not depend on other load of the machine.
//!
//! `make instructions` runs each case under callgrind and compares with `instructions.txt` beside this file. More than
//! 3 % above that file fails. Without an argument every case runs once; with a name, only that case.

use std::{any::Any, hint::black_box, sync::LazyLock};

use millrace_delivery::{Appended, Bounds, Config, ConnId, FirstPage, History, Hub, Output, Page, PageLimit, Wire};
use millrace_protocol::{
    ChannelName, Encoding, Epoch, Kind, NewPublication, Publication, PublicationHead, Since, session::Policy,
};

const EPOCH: Epoch = Epoch(1);
const BOUNDS: Bounds = Bounds { count_max: 10_000, bytes_max: 16 << 20, age_max_ms: u64::MAX, keys_max: 0 };
const LIMIT: PageLimit = PageLimit { count: 1000, bytes: 1 << 20 };

/// Name and setup of a case. Only the work that the setup returns is counted, without dropping the work's result.
type Case = (&'static str, fn() -> Work);
type Work = Box<dyn FnOnce() -> Box<dyn Any>>;

const CASES: &[Case] = &[
    ("encode_bare", || encode(Encoding::Bare)),
    ("encode_session", || encode(Encoding::Session)),
    ("encode_sse", || encode(Encoding::Sse)),
    ("encode_ndjson", || encode(Encoding::Ndjson)),
    ("append", append),
    ("page", page),
    ("fan_out", || deliver(1, 1000, 10, 10)),
    ("wake", || deliver(1000, 1, 10, 1)),
    ("catch_up", catch_up),
    ("come_and_go", come_and_go),
];

fn main() {
    let wanted = std::env::args().nth(1).filter(|name| !name.starts_with('-'));
    for (name, prepare) in CASES.iter().filter(|(name, _)| wanted.as_deref().is_none_or(|wanted| wanted == *name)) {
        drop(measured(prepare()));
        println!("{name}");
    }
}

/// Callgrind counts while this function runs.
#[inline(never)]
fn measured(work: Work) -> Box<dyn Any> {
    work()
}

/// Encodes a thousand publications in one encoding.
fn encode(encoding: Encoding) -> Work {
    let (channel, publication) = (name("cars/1/telemetry"), publication(1));
    let mut out = Vec::with_capacity(1 << 20);
    Box::new(move || {
        for _ in 0..1000 {
            encoding.encode(&mut out, &channel, EPOCH, &publication);
        }
        Box::new(out)
    })
}

/// Appends a thousand publications to a full history.
fn append() -> Work {
    let mut history = full(10_000);
    let fresh: Vec<_> = (0..1000).map(|_| new()).collect();
    Box::new(move || {
        for publication in fresh {
            black_box(history.append(publication, 1, &BOUNDS));
        }
        Box::new(history)
    })
}

/// Reads a page of a thousand publications from a full history.
fn page() -> Work {
    let mut history = full(10_000);
    Box::new(move || {
        drop(black_box(history.page(Since::Earliest, Policy::Every, LIMIT, 1, &BOUNDS)));
        Box::new(history)
    })
}

/// Delivers in `turns` turns, each with `per_turn` publications on each channel; each channel has `readers` readers.
fn deliver(channels: usize, readers: usize, turns: u64, per_turn: u64) -> Work {
    let (mut hub, mut sink) = (Hub::new(Config::default()), Sink { room: usize::MAX });
    let names = (0..channels).map(|i| name(&format!("cars/{i}/telemetry")));
    let mut channels = Vec::with_capacity(channels);
    for channel in names {
        for _ in 0..readers {
            read(&mut hub, &channel, &mut sink);
        }
        let key = std::iter::from_fn(|| hub.poll_output()).filter_map(|output| match output {
            Output::Interest { key, .. } => Some(key),
            _ => None,
        });
        let key = key.last();
        channels.push((channel, key));
    }
    let turns: Vec<Vec<_>> =
        (0..turns).map(|turn| (1..=per_turn).map(|i| publication(turn * per_turn + i)).collect()).collect();
    Box::new(move || {
        for publications in turns {
            for (channel, key) in &channels {
                for publication in &publications {
                    hub.deliver(channel, *key, EPOCH, publication);
                }
            }
            hub.flush(&mut sink);
        }
        Box::new((hub, channels))
    })
}

/// Unblocks a hundred readers that were blocked during a thousand publications, and that now receive all of them.
fn catch_up() -> Work {
    let (mut hub, mut sink) = (Hub::new(Config::default()), Sink { room: 0 });
    let channel = name("busy");
    let readers: Vec<ConnId> = (0..100).map(|_| read(&mut hub, &channel, &mut sink)).collect();
    for offset in 1..=1000 {
        hub.deliver(&channel, None, EPOCH, &publication(offset));
        hub.flush(&mut sink);
    }
    sink.room = usize::MAX;
    Box::new(move || {
        readers.into_iter().for_each(|reader| hub.writable(reader, &mut sink));
        hub.flush(&mut sink);
        Box::new(hub)
    })
}

/// Connects and disconnects a thousand readers of one channel, one after the other, each in its own turn.
fn come_and_go() -> Work {
    let (mut hub, mut sink) = (Hub::new(Config::default()), Sink { room: usize::MAX });
    let channel = name("popular");
    Box::new(move || {
        let mut readers = Vec::with_capacity(1000);
        for _ in 0..1000 {
            readers.push(read(&mut hub, &channel, &mut sink));
            hub.flush(&mut sink);
        }
        for reader in readers {
            hub.disconnect(reader);
            hub.flush(&mut sink);
        }
        Box::new(hub)
    })
}

/// Accepts all bytes, or none.
struct Sink {
    room: usize,
}

impl Wire for Sink {
    fn write(&mut self, _: ConnId, bytes: &[u8]) -> usize {
        black_box(bytes).len().min(self.room)
    }
}

fn read(hub: &mut Hub, channel: &ChannelName, sink: &mut Sink) -> ConnId {
    let conn = hub.connect(Encoding::Bare);
    hub.watch(channel);
    let page: Page = History::new(EPOCH).page(Since::Now, Policy::Every, LIMIT, 1, &BOUNDS);
    let first = FirstPage { channel: channel.clone(), since: Since::Now, page };
    hub.attach(conn, Policy::Every, &[first], sink).expect("a first subscription");
    conn
}

fn full(count: u64) -> History {
    let mut history = History::new(EPOCH);
    for _ in 0..count {
        assert!(matches!(history.append(new(), 1, &BOUNDS), Appended::New(_)));
    }
    history
}

fn new() -> NewPublication {
    NewPublication::new(Kind::Json, &*DATA)
}

/// 173 bytes, as in the theses' ticker.
static DATA: LazyLock<String> = LazyLock::new(|| format!("\"{}\"", "x".repeat(171)));

fn publication(offset: u64) -> Publication {
    Publication::new(
        PublicationHead {
            offset,
            time_ms: 1,
            key: None,
            expires_ms: None,
            is_traced: false,
            kind: Kind::Json,
            is_deletion: false,
        },
        DATA.as_bytes(),
    )
}

fn name(text: &str) -> ChannelName {
    ChannelName::parse(text).expect("a good name")
}
