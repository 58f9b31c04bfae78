//! Durations and counters in `/metrics`: each measures what its help text says.
#![allow(clippy::unwrap_used, reason = "a test may stop where it is wrong")]

use std::{
    net::SocketAddr,
    rc::Rc,
    sync::{Arc, atomic::Ordering::Relaxed, mpsc},
    time::Duration,
};

use futures_util::SinkExt as _;
use http::{StatusCode, request::Parts};
use hyper::body::Incoming;
use millrace_engine::Engine;
use millrace_node::{
    Histogram, Metrics,
    histogram::{BOUNDS_US, Samples},
};
use millrace_protocol::{ChannelName, Kind, NewPublication, Transport};
use millrace_transport::{
    Context, Listener, Routes, SocketMetrics,
    http::text,
    route::{Answering, plain},
};
use rustix::time::{ClockId, clock_gettime};
use serde_json::json;
use tokio::sync::oneshot;
use tokio_tungstenite::tungstenite::Message as Frame;

use crate::{
    added_routes::serve_shard,
    client::{Http, ReadOptions, Reader, ReaderKind, Session, websocket},
    server::{BOUND, Server, until},
};

/// CPU time for which a request to `/busy` occupies the shard: longer than the interval of the timer, and than a late
/// write takes.
const BUSY: Duration = Duration::from_millis(1500);

/// Occupies the shard, as a defect or an overloaded machine would.
struct Busy {
    /// Receives the engine when the shard is busy.
    engine: mpsc::Sender<Arc<dyn Engine>>,
}

impl Routes for Busy {
    fn answer<'a>(&'a self, context: &'a Rc<Context>, parts: &'a Parts, _: &'a mut Incoming) -> Option<Answering<'a>> {
        let is_ours = parts.uri.path() == "/busy";
        is_ours.then(|| -> Answering<'a> {
            Box::pin(async {
                self.engine.send(context.shard.engine.clone()).unwrap();
                let cpu_time = || Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap();
                let until = cpu_time() + BUSY;
                while cpu_time() < until {
                    std::hint::spin_loop();
                }
                Ok(plain(text(StatusCode::OK, "text/plain", "done")))
            })
        })
    }
}

/// Returns the number of values above this bound.
fn above(histogram: &Histogram, bound: Duration) -> u64 {
    let first = BOUNDS_US.iter().position(|us| Duration::from_micros(*us) >= bound).unwrap() + 1;
    histogram.samples().counts[first..].iter().sum()
}

#[tokio::test]
async fn busy_shard_shows_lag_and_cpu_time_and_late_writes() {
    let listener = Listener::bind(SocketAddr::from(([127, 0, 0, 1], 0)), 1).unwrap().remove(0);
    let server = Server::at(listener.address().unwrap());
    let (delivery, sockets) = (Arc::<Metrics>::default(), Arc::<SocketMetrics>::default());
    let (measured, (stop, stopped)) = ((delivery.clone(), sockets.clone()), oneshot::channel());
    let (engine, engines) = mpsc::channel();
    let thread = std::thread::spawn(move || serve_shard(listener, None, Busy { engine }, measured, stopped));
    let mut reader = Reader::open(ReaderKind::Bare, &server, &ReadOptions::one("late")).await;
    let written = sockets.publish_to_write(Transport::WebSocket);
    let bound = Duration::from_millis(100);
    assert_eq!(above(written, bound), 0);
    let busy = tokio::spawn(server.http.get(server.url("/busy")).send());
    let engine = tokio::task::spawn_blocking(move || engines.recv_timeout(BOUND).unwrap()).await.unwrap();
    // Another thread publishes while the shard is busy.
    let publication = NewPublication::new(Kind::Text, *b"1");
    engine.append(&ChannelName::parse("late").unwrap(), publication).await.unwrap();
    reader.message().await;
    busy.await.unwrap().unwrap();
    until("the write and the timer are late", async || {
        above(written, bound) == 1
            && above(&delivery.loop_lag, bound) > 0
            && delivery.cpu_ns.load(Relaxed) > BUSY.as_nanos() as u64
    })
    .await;
    let Samples { counts, sum_s } = written.samples();
    assert!(counts.iter().sum::<u64>() == 1 && sum_s < BOUND.as_secs_f64(), "{counts:?} {sum_s}");
    drop(stop);
    thread.join().unwrap();
}

#[tokio::test]
async fn each_transport_measures_its_writes() {
    let server = Server::start();
    let count = async |transport: &str| {
        server.metric(&format!("millrace_publish_to_write_seconds_count{{transport=\"{transport}\"}}")).await
    };
    let ways = [
        ("websocket", ReaderKind::Bare),
        ("websocket", ReaderKind::Session),
        ("sse", ReaderKind::Sse(Http::One)),
        ("sse", ReaderKind::Sse(Http::Two)),
        ("stream", ReaderKind::Stream(Http::One)),
        ("stream", ReaderKind::Stream(Http::Two)),
        ("long_polling", ReaderKind::LongPolling(Http::One)),
        ("data_channel", ReaderKind::DataChannel),
    ];
    for (label, way) in ways {
        let start = server.publish("measured", "1").await;
        let mut reader = Reader::open(way, &server, &ReadOptions::one("measured").since(start)).await;
        let before = count(label).await;
        let read = async { reader.message().await };
        let publish = async {
            server.await_presence("measured", 1).await;
            server.publish("measured", "2").await
        };
        let (message, _) = tokio::join!(read, publish);
        assert_eq!(message.data.into_text(), "2", "{way:?}");
        until(&format!("{way:?} counts one write"), async || count(label).await == before + 1).await;
        drop(reader);
        server.await_presence("measured", 0).await;
    }
    assert_eq!(count("polling").await, 0, "a poll is answered from history");
}

#[tokio::test]
async fn replies_and_history_are_not_measured() {
    let server = Server::start();
    server.publish_all("old", (0..3).map(|i| json!(i))).await;
    let mut session = Session::open(&server).await;
    session.subscribe("old", "earliest", "every").await;
    for _ in 0..3 {
        session.next_item().await;
    }
    session.command("ping", json!({})).await.unwrap();
    let sum = "millrace_publish_to_write_seconds_count{transport=\"websocket\"}";
    assert_eq!(server.metric(sum).await, 0);
    server.publish("old", "3").await;
    session.next_item().await;
    until("the new one alone is measured", async || server.metric(sum).await == 1).await;
}

/// Returns the sum of a metric over all shards.
async fn of_shards(server: &Server, name: &str) -> u64 {
    let mut sum = 0;
    for shard in 0..2 {
        sum += server.metric(&format!("{name}{{shard=\"{shard}\"}}")).await;
    }
    sum
}

#[tokio::test]
async fn shards_count_pings_messages_and_deliveries() {
    let server = Server::start();
    let mut session = Session::open(&server).await;
    session.command("ping", json!({})).await.unwrap();
    session.subscribe("a/x", "now", "every").await;
    // Its ping is answered before its publication is accepted.
    let mut bare = websocket::connect(&server, "/v1/channels/a/x", None).await;
    bare.send(Frame::Ping(vec![1].into())).await.unwrap();
    server.await_presence("a/x", 2).await;
    bare.send(Frame::text("1")).await.unwrap();
    session.next_item().await;
    until("both readers count", async || of_shards(&server, "millrace_shard_deliveries_total").await == 2).await;
    assert_eq!(of_shards(&server, "millrace_shard_pings_total").await, 2);
    assert_eq!(of_shards(&server, "millrace_shard_publications_total").await, 1);
    // The session has sent a ping and a subscription, and the WebSocket a ping and a publication.
    let text = server.get("/metrics").await.text();
    let sum = |name: &str| -> u64 {
        let samples = text.lines().filter(|line| line.starts_with(name));
        samples.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
    };
    assert_eq!(sum("millrace_shard_messages_total") - sum("millrace_http_requests_total"), 4);
}

#[tokio::test]
async fn namespaces_count_and_are_limited() {
    let server = Server::with(|config| {
        config.namespaces.insert("configured".into(), Default::default());
        config.limits.message_bytes_max = 1000;
    });
    let mut reader = Reader::open(ReaderKind::Bare, &server, &ReadOptions::one("first/x")).await;
    server.publish("first/x", "1").await;
    reader.message().await;
    let line = json!({ "channel": "first/y", "data": "x".repeat(1001) }).to_string();
    let results = server.post("/v1/publish", &[], line).await.json();
    assert_eq!(results["results"][0]["error"]["code"], "too_large", "{results}");
    for i in 0..100 {
        server.publish(&format!("n{i}/x"), "1").await;
    }
    server.publish("configured", "1").await;
    let of = async |name: &str, namespace: &str| {
        server.metric(&format!("millrace_namespace_{name}{{namespace=\"{namespace}\"}}")).await
    };
    assert_eq!((of("publications_total", "first").await, of("refused_total", "first").await), (1, 1));
    assert_eq!((of("deliveries_total", "first").await, of("readers", "first").await), (1, 1));
    assert_eq!(of("publications_total", "configured").await, 1, "it always has its own label");
    let text = server.get("/metrics").await.text();
    let labels = text.lines().filter(|line| line.starts_with("millrace_namespace_publications_total{")).count();
    assert_eq!(labels, 64, "63 namespaces and the others");
    assert_eq!(of("publications_total", "(other)").await, 101 - 1 - 61);
    drop(reader);
    until("no reader is left", async || of("readers", "first").await == 0).await;
}
