//! Webhooks of a cluster: each event at least once, in order, also when a node dies and when the node that sends dies.

use std::{
    collections::{BTreeSet, HashSet},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use serde_json::Value;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async};

use crate::{
    broker::Kind,
    chaos::block_on,
    cluster::Cluster,
    http_server::serve,
    process::{BOUND, is_there, print_line, turn, until},
};

/// Readers per node.
const READERS: usize = 3;
const CHANNEL: &str = "chat/1";
/// Maximum time from `kill -9` of a node until all events of its readers have arrived.
const RIGHT: Duration = Duration::from_secs(10);

type Reader = WebSocketStream<MaybeTlsStream<tokio::net::TcpStream>>;

/// A back end that records all events and acknowledges them.
struct BackEnd {
    port: u16,
    events: Arc<Mutex<Vec<Value>>>,
}

impl BackEnd {
    fn start() -> Self {
        let events: Arc<Mutex<Vec<Value>>> = Arc::default();
        let recorded = events.clone();
        let port = serve(move |request| {
            let batch: Value = serde_json::from_slice(&request.body).expect("JSON");
            recorded.lock().expect("no panic").extend(batch["events"].as_array().expect("events").iter().cloned());
            "204 No Content".into()
        });
        Self { port, events }
    }

    /// Returns the events in the order of their first arrival, without repetitions.
    fn once(&self) -> Vec<Value> {
        let mut known = HashSet::new();
        let all = self.events.lock().expect("no panic").clone();
        all.into_iter().filter(|event| known.insert(event["id"].as_str().expect("an id").to_owned())).collect()
    }

    fn of(&self, event_type: &str) -> Vec<Value> {
        self.once().into_iter().filter(|event| event["type"] == event_type).collect()
    }

    /// Returns the members, channels or connections of all events of a type.
    fn about(&self, event_type: &str, field: &str) -> Vec<String> {
        self.of(event_type).iter().map(|event| event[field].as_str().expect("a text").to_owned()).collect()
    }
}

/// A cluster with its back end.
struct World {
    cluster: Cluster,
    back_end: BackEnd,
    http: reqwest::Client,
    published: u64,
}

impl World {
    async fn start(kind: Kind) -> Self {
        let back_end = BackEnd::start();
        let url = format!("webhooks.url=http://127.0.0.1:{}/", back_end.port);
        let settings = [
            url.as_str(),
            "webhooks.secrets=a secret of 32 bytes for the test",
            r#"webhooks.events=["channel", "member", "connection", "publication"]"#,
            "webhooks.grace=2s",
            "history.roster=true",
            "server.shards=2",
        ];
        let cluster = Cluster::start("webhooks", kind, 3, 3, &settings).await;
        let http = millrace_client::tls::http().timeout(Duration::from_secs(10)).build().expect("a client");
        Self { cluster, back_end, http, published: 0 }
    }

    async fn open(&self, node: usize) -> Vec<Reader> {
        let mut readers = Vec::new();
        for _ in 0..READERS {
            let url = self.cluster.node(node).websocket(&format!("/v1/channels/{CHANNEL}"));
            readers.push(connect_async(url).await.expect("a reader").0);
        }
        readers
    }

    /// Publishes the next numbers through nodes in turn.
    async fn publish(&mut self, count: usize, nodes: &[usize]) {
        for node in nodes.iter().cycle().take(count) {
            let url = self.cluster.node(*node).http(&format!("/v1/channels/{CHANNEL}"));
            let number = self.published;
            let send = async || {
                let request = self.http.post(&url).header("millrace-idempotency-key", number.to_string());
                let answer = request.body(number.to_string()).send().await;
                answer.is_ok_and(|answer| answer.status() == 200)
            };
            until("a publication enters", BOUND, send).await;
            self.published += 1;
        }
    }

    /// Returns the node that sends the events.
    async fn dispatcher(&self, nodes: &[usize]) -> usize {
        let mut found = None;
        until("a node sends", BOUND, async || {
            for node in nodes {
                let url = self.cluster.node(*node).http("/metrics");
                let Ok(answer) = self.http.get(url).send().await else { continue };
                if answer.text().await.is_ok_and(|text| text.contains("\nmillrace_webhook_dispatching 1")) {
                    found = Some(*node);
                }
            }
            found.is_some()
        })
        .await;
        found.expect("a node")
    }

    /// Waits until all publications have arrived, in their order.
    async fn await_publications(&self) {
        until("all publications arrive", BOUND, async || self.numbers().len() as u64 == self.published).await;
        assert_eq!(self.numbers(), (0..self.published).collect::<Vec<_>>(), "in their order");
    }

    fn numbers(&self) -> Vec<u64> {
        let of_channel = self.back_end.of("publication").into_iter().filter(|event| event["channel"] == CHANNEL);
        of_channel.map(|event| event["data"].as_u64().expect("a number")).collect()
    }

    /// Kills a node, and waits for the events of its readers. Returns how long they took.
    async fn kill(&mut self, node: usize) -> Duration {
        let [left, closed] = [self.back_end.of("left").len(), self.back_end.of("closed").len()];
        self.cluster.kill(node);
        let killed = Instant::now();
        until("the readers of the dead node are gone", RIGHT, async || {
            self.back_end.of("left").len() == left + READERS && self.back_end.of("closed").len() == closed + READERS
        })
        .await;
        killed.elapsed()
    }
}

#[test]
fn events_arrive_once_and_in_order_although_nodes_die() {
    let _turn = turn();
    for kind in [Kind::Redis, Kind::Nats] {
        if !is_there("haproxy") || !kind.is_there() {
            continue;
        }
        block_on(run(kind));
    }
}

async fn run(kind: Kind) {
    let mut world = World::start(kind).await;
    let mut readers = Vec::new();
    for node in 0..3 {
        readers.push(Some(world.open(node).await));
    }
    world.publish(30, &[0, 1, 2]).await;
    world.await_publications().await;
    until("all have joined", BOUND, async || {
        let [joined, opened] = ["joined", "opened"].map(|event_type| world.back_end.of(event_type).len());
        joined == 3 * READERS && opened == 3 * READERS
    })
    .await;
    assert_eq!(world.back_end.about("occupied", "channel"), [CHANNEL], "{kind:?}: readers on three nodes, one event");

    let dispatcher = world.dispatcher(&[0, 1, 2]).await;
    let [first, last] = [(dispatcher + 1) % 3, (dispatcher + 2) % 3];
    let of_node = world.kill(first).await;
    drop(readers[first].take());
    assert_eq!(world.back_end.of("vacated"), [] as [Value; 0], "{kind:?}: other nodes have readers");
    world.publish(30, &[dispatcher, last]).await;
    world.await_publications().await;

    // Some events are not acknowledged when the node that sends them dies.
    world.publish(20, &[last]).await;
    let of_dispatcher = world.kill(dispatcher).await;
    drop(readers[dispatcher].take());
    world.publish(20, &[last]).await;
    world.await_publications().await;
    assert_eq!(world.dispatcher(&[last]).await, last);
    assert_eq!(world.back_end.of("vacated"), [] as [Value; 0], "{kind:?}: one node has readers");

    drop(readers[last].take());
    until("the channel is vacated", BOUND, async || world.back_end.of("vacated").len() == 1).await;
    until("the last have left", BOUND, async || {
        let [left, closed] = ["left", "closed"].map(|event_type| world.back_end.of(event_type).len());
        left == 3 * READERS && closed == 3 * READERS
    })
    .await;
    for (come, gone, field) in [("joined", "left", "member"), ("opened", "closed", "connection")] {
        let [come, gone] = [come, gone].map(|event_type| world.back_end.about(event_type, field));
        assert_eq!((come.len(), gone.len()), (3 * READERS, 3 * READERS), "{kind:?}: none too many");
        assert_eq!(come.iter().collect::<BTreeSet<_>>(), gone.iter().collect::<BTreeSet<_>>(), "{kind:?}");
    }
    assert_eq!(world.back_end.about("occupied", "channel"), [CHANNEL], "{kind:?}");
    print_line(&format!(
        "  webhooks, {kind:?}: right {of_node:.1?} after the death of a node, {of_dispatcher:.1?} after that of the sender"
    ));
}
