//! A publication is compressed once for all readers with the same negotiated parameters. The memory for compressed
//! copies is bounded, whatever the number of readers.

use std::collections::{BTreeSet, HashMap};

use millrace_delivery::{Appended, Bounds, Config, ConnId, FirstPage, History, Hub, PageLimit, Wire};
use millrace_protocol::{
    ChannelName, Encoding, Epoch, Kind, NewPublication, Since, session::Policy, websocket::Deflate,
};

const BOUNDS: Bounds = Bounds { count_max: 10, bytes_max: 1 << 20, age_max_ms: 1 << 40, keys_max: 0 };
const READERS: usize = 50;

/// Address and bytes of each write, per connection. A closed sink accepts no bytes.
#[derive(Default)]
struct RecordingWire {
    writes: HashMap<ConnId, Vec<(usize, Vec<u8>)>>,
    is_closed: bool,
}

impl Wire for RecordingWire {
    fn write(&mut self, conn: ConnId, bytes: &[u8]) -> usize {
        if self.is_closed {
            return 0;
        }
        self.writes.entry(conn).or_default().push((bytes.as_ptr() as usize, bytes.to_vec()));
        bytes.len()
    }
}

/// A hub with readers of each encoding, and the history of the channel.
struct Stage {
    hub: Hub,
    seen: RecordingWire,
    history: History,
    readers: Vec<(Encoding, ConnId)>,
}

impl Stage {
    fn new(config: Config, encodings: &[Encoding], readers_each: usize) -> Self {
        let (mut hub, mut seen, mut history) = (Hub::new(config), RecordingWire::default(), History::new(Epoch(1)));
        let mut readers = Vec::new();
        for &encoding in encodings {
            for _ in 0..readers_each {
                let conn = hub.connect(encoding);
                hub.watch(&channel());
                let page = history.page(Since::Now, Policy::Every, PageLimit { count: 1, bytes: 1 }, 1, &BOUNDS);
                let first = FirstPage { channel: channel(), since: Since::Now, page };
                hub.attach(conn, Policy::Every, &[first], &mut seen).unwrap();
                readers.push((encoding, conn));
            }
        }
        Self { hub, seen, history, readers }
    }

    fn publish(&mut self, payload: &[u8]) {
        let new = NewPublication::new(Kind::Text, payload);
        let Appended::New(publication) = self.history.append(new, 1, &BOUNDS) else { unreachable!("no key was given") };
        self.hub.deliver(&channel(), None, Epoch(1), &publication);
        self.hub.flush(&mut self.seen);
    }
}

fn channel() -> ChannelName {
    ChannelName::parse("c").unwrap()
}

fn deflate(offer: &str) -> Deflate {
    Deflate::negotiate(offer).unwrap().0
}

/// Returns encodings with three sets of parameters, one set in two encodings.
fn encodings() -> [Encoding; 4] {
    let offers = [
        "permessage-deflate",
        "permessage-deflate; server_max_window_bits=10",
        "permessage-deflate; server_max_window_bits=9",
    ];
    let [widest, ten, nine] = offers.map(deflate);
    [
        Encoding::BareDeflate(widest),
        Encoding::BareDeflate(ten),
        Encoding::BareDeflate(nine),
        Encoding::SessionDeflate(widest),
    ]
}

#[test]
fn publication_is_compressed_once_per_parameter_set() {
    let mut stage = Stage::new(Config::default(), &encodings(), READERS);
    let payload = "wheel of a mill ".repeat(100);
    stage.publish(payload.as_bytes());
    let mut places = BTreeSet::new();
    for encoding in encodings() {
        let of_form = stage.readers.iter().filter(|reader| reader.0 == encoding);
        let writes: Vec<_> = of_form.flat_map(|(_, conn)| &stage.seen.writes[conn]).collect();
        assert_eq!(writes.len(), READERS, "{encoding:?}: one write each");
        assert_eq!(writes[0].1[0], 0xc1, "{encoding:?}: compressed");
        assert!(writes[0].1.len() < payload.len() / 4, "{encoding:?}: {} bytes", writes[0].1.len());
        let of_form: BTreeSet<usize> = writes.iter().map(|write| write.0).collect();
        assert_eq!(of_form.len(), 1, "{encoding:?}: the same bytes in memory for all");
        places.extend(of_form);
    }
    assert_eq!(places.len(), encodings().len(), "and others for each form");
}

#[test]
fn compressed_backlog_is_independent_of_reader_count() {
    let config = Config { log_bytes_max: 256 << 10, ..Config::default() };
    let kept = |readers_each| {
        let mut stage = Stage::new(config.clone(), &encodings(), readers_each);
        stage.seen.is_closed = true;
        let mut kept = 0;
        for n in 0..200u32 {
            // The compressed publications together are twice as large as the log may be.
            let noise: String = (0..5000u32)
                .map(|i| char::from(b'!' + ((i + n).wrapping_mul(2_654_435_761) >> 24) as u8 % 90))
                .collect();
            stage.publish(noise.as_bytes());
            let memory = stage.hub.memory();
            assert_eq!(memory.out, 0, "nothing is kept for one of them");
            kept = kept.max(memory.logs);
        }
        kept
    };
    let (few, many) = (kept(1), kept(READERS));
    assert_eq!(few, many);
    assert!((config.log_bytes_max..2 * encodings().len() * config.log_bytes_max).contains(&many), "{many} bytes");
}

#[test]
fn compressed_connection_holds_no_window() {
    assert!(size_of::<Deflate>() == 1 && size_of::<Encoding>() <= 2, "no window, no buffer");
}
