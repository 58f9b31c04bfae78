//! Hand-over of an engine to another process, here between two engines over a pair of sockets.

use std::{
    os::unix::net::UnixStream,
    sync::Arc,
    thread::{self, JoinHandle},
    time::Duration,
};

use millrace_engine::{
    Config, Engine, HistoryConfig,
    hand_over::{HandOver, Inherited, Predecessor, Successor},
    open, open_with,
};
use millrace_protocol::{
    Attributes, Code, Expected, NewPublication, Pattern, Position, Publication, Since, TraceContext, session::Policy,
};

use crate::{
    servers::until,
    worlds::{Delivered, LIMIT, channel, text, wait},
};

fn clock() -> u64 {
    1000
}

fn config() -> Config {
    let fleet = HistoryConfig { state: true, ..HistoryConfig::default() };
    Config { namespaces: [("fleet".to_owned(), fleet)].into(), ..Config::default() }
}

fn keyed(key: &str) -> NewPublication {
    NewPublication { key: Some(key.into()), ..text("value") }
}

fn append(engine: &Arc<dyn Engine>, name: &str, publication: NewPublication) -> Position {
    wait(engine.append(&channel(name), publication)).unwrap()
}

/// Returns everything that a reader of the channel gets from its start.
fn contents(engine: &Arc<dyn Engine>, name: &str, since: Since) -> String {
    format!("{:?}", wait(engine.page(&channel(name), since, Policy::Every, LIMIT)))
}

/// The engine of the new process, and the thread that serves the old one.
struct New {
    engine: Arc<dyn Engine>,
    predecessor: Arc<Predecessor>,
    serving: JoinHandle<()>,
}

/// Receives the contents of an engine on another thread, as a new process does.
fn take_over(url: String, mut stream: UnixStream) -> JoinHandle<New> {
    thread::spawn(move || {
        let inherited = Inherited::read(&mut stream).unwrap();
        let engine = open_with(&url, config(), Arc::<Delivered>::default(), clock, Some(inherited)).unwrap();
        let predecessor = Arc::new(Predecessor::new(stream).unwrap());
        let (engine_there, predecessor_there) = (engine.clone(), predecessor.clone());
        let serving = thread::spawn(move || predecessor_there.serve(&engine_there).unwrap());
        New { engine, predecessor, serving }
    })
}

fn on_engines_with_contents(case: impl Fn(&str)) {
    case("memory");
    let folder = tempfile::tempdir().unwrap();
    case(&format!("sqlite:{}/data.db", folder.path().display()));
}

#[test]
fn new_engine_continues_and_old_engine_uses_it() {
    on_engines_with_contents(|url| {
        let delivered = Arc::<Delivered>::default();
        let old = open(url, config(), delivered.clone(), clock).unwrap();
        for i in 0..100 {
            append(&old, &format!("a/{i}"), text(&i.to_string()));
        }
        for i in 0..10 {
            append(&old, "fleet/all", keyed(&format!("car {}", i % 3)));
        }
        let once = NewPublication { idempotency_key: Some("once".into()), ..text("x") };
        let first = append(&old, "a/0", once.clone());
        let (log, state) = (contents(&old, "a/0", Since::Earliest), contents(&old, "fleet/all", Since::State));

        let (ours, theirs) = UnixStream::pair().unwrap();
        let successor = Successor::new(delivered.clone(), clock);
        let new = take_over(url.to_owned(), theirs);
        old.hand_over(&HandOver::new(ours.try_clone().unwrap(), successor.clone())).unwrap();
        // A publication of a remaining client, before the new process is ready.
        let answer = old.append(&channel("a/0"), once);
        successor.start(&ours).unwrap();
        let New { engine, predecessor, serving } = new.join().unwrap();

        assert_eq!(wait(answer).unwrap(), first, "{url}: the idempotency key is known");
        for engine in [&old, &engine] {
            assert_eq!(contents(engine, "a/0", Since::Earliest), log, "{url}");
            assert_eq!(contents(engine, "fleet/all", Since::State), state, "{url}");
        }
        // Both write to one log, with compare-and-set across them.
        let at = append(&engine, "fleet/all", keyed("car 0"));
        let stale = NewPublication { expected: Some(Expected::Absent), ..keyed("car 0") };
        assert!(wait(old.append(&channel("fleet/all"), stale)).is_err(), "{url}");
        let next = NewPublication { expected: Some(Expected::At(at)), ..keyed("car 0") };
        assert_eq!(append(&old, "fleet/all", next), Position { offset: at.offset + 1, ..at }, "{url}");
        let (known, unknown) = (append(&old, "new", keyed("k")), append(&engine, "new", keyed("k")));
        assert_eq!(unknown, Position { offset: known.offset + 1, ..known }, "{url}");
        let pattern = Pattern::parse("#").unwrap();
        assert_eq!(wait(old.channels(&pattern, None, 1000)).unwrap().len(), 102, "{url}");
        assert_eq!(wait(old.newest(&channel("new"))).unwrap().top, unknown, "{url}");
        // The readers of the test's receiver are counted in both processes.
        assert_eq!(wait(old.presence(&channel("abc"))).unwrap(), 6, "{url}");

        // The trace context, and what MQTT keeps of a publication, cross to the new process.
        let trace = TraceContext { trace_id: [1; 16], span_id: [2; 8], flags: 1 };
        let attributes = Attributes { qos: 1, is_retained: true, publisher: 0, properties: b"\x01\x01" };
        append(&old, "mqtt", text("x").traced(Some(trace)).with_attributes(attributes));
        let newest = wait(engine.newest(&channel("mqtt"))).unwrap().publication.unwrap();
        assert_eq!((newest.trace(), newest.attributes()), (Some(trace), Some(attributes)), "{url}");

        // Publications of the new process reach the readers of the old one.
        let page = wait(engine.page(&channel("new"), Since::Earliest, Policy::Every, LIMIT)).unwrap();
        for publication in page.publications {
            predecessor.publish(&channel("new"), page.end.epoch, publication).unwrap();
        }
        until(Duration::from_secs(10), || delivered.of("new").len() == 2);
        assert_eq!(delivered.of("new"), [(known.epoch, 1), (known.epoch, 2)], "{url}");

        // The old process ends.
        ours.shutdown(std::net::Shutdown::Both).unwrap();
        serving.join().unwrap();
        assert!(wait(old.append(&channel("a/0"), keyed("k"))).is_err(), "{url}");
        assert!(predecessor.publish(&channel("a"), known.epoch, page_publication(&engine)).is_err(), "{url}");
        old.close();
        engine.close();
    });
}

fn page_publication(engine: &Arc<dyn Engine>) -> Publication {
    wait(engine.newest(&channel("new"))).unwrap().publication.unwrap()
}

#[test]
fn engine_that_is_taken_back_has_everything() {
    on_engines_with_contents(|url| {
        let delivered = Arc::<Delivered>::default();
        let old = open(url, config(), delivered.clone(), clock).unwrap();
        for i in 0..100 {
            append(&old, &format!("a/{i}"), text(&i.to_string()));
        }
        let log = contents(&old, "a/7", Since::Earliest);
        // The new process ends before it has received anything, then after it has received everything.
        for reads in [false, true] {
            let (ours, mut theirs) = UnixStream::pair().unwrap();
            let successor = Successor::new(delivered.clone(), clock);
            let reader = thread::spawn(move || reads && Inherited::read(&mut theirs).is_ok());
            let handed_over = old.hand_over(&HandOver::new(ours, successor.clone()));
            assert_eq!(reader.join().unwrap(), reads, "{url}");
            assert!(!reads || handed_over.is_ok(), "{url}");
            let answer = reads.then(|| old.append(&channel("a/0"), text("refused")));
            successor.lose();
            old.take_back().unwrap();
            if let Some(answer) = answer {
                assert_eq!(wait(answer).unwrap_err().code, Code::Unavailable, "{url}");
            }
            assert_eq!(contents(&old, "a/7", Since::Earliest), log, "{url}");
        }
        assert_eq!(append(&old, "a/0", text("next")).offset, 2, "{url}: the refused publication was not stored");
        old.close();
    });
}
