//! Services of a cluster: driving feedback is computed by one node, requests to devices and pushes go through any.

use std::{
    cell::Cell,
    collections::BTreeMap,
    process::Command,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use millrace_client::clock::now_ms;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio_tungstenite::connect_async;

use crate::{
    broker::Kind,
    chaos::block_on,
    cluster::Cluster,
    http_server::serve,
    process::{BOUND, Folder, is_there, print_line, turn, until},
};

/// Maximum time from the end of a node until another one does its work.
const MOVED: Duration = Duration::from_secs(12);
/// Seconds of a drive from one harsh braking to the next.
const ROUND_S: u64 = 40;

/// Runs a test with each broker that is installed.
fn with_brokers(run: impl AsyncFn(Kind)) {
    let _turn = turn();
    for kind in [Kind::Redis, Kind::Nats] {
        if is_there("haproxy") && kind.is_there() {
            block_on(run(kind));
        }
    }
}

struct Http(reqwest::Client);

impl Http {
    fn new() -> Self {
        Self(millrace_client::tls::http().timeout(Duration::from_secs(10)).build().expect("a client"))
    }

    /// Sends a request to a node. Returns status and JSON; status 0 if the node does not answer.
    async fn ask(&self, cluster: &Cluster, node: usize, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let url = cluster.node(node).http(path);
        let method = method.parse().expect("a method");
        let request = self.0.request(method, url);
        let request = if body.is_null() { request } else { request.body(body.to_string()) };
        let Ok(answer) = request.send().await else { return (0, Value::Null) };
        let status = answer.status().as_u16();
        let text = answer.text().await.unwrap_or_default();
        (status, serde_json::from_str(&text).unwrap_or(Value::Null))
    }

    /// Returns the value of a metric of a node.
    async fn metric(&self, cluster: &Cluster, node: usize, name: &str) -> Option<u64> {
        let text = self.0.get(cluster.node(node).http("/metrics")).send().await.ok()?.text().await.ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
        line.parse().ok()
    }

    /// Waits until exactly one of the nodes follows the cars, and returns it.
    async fn follower(&self, cluster: &Cluster, nodes: &[usize]) -> usize {
        let mut found = Vec::new();
        until("one node follows the cars", BOUND, async || {
            found.clear();
            for node in nodes {
                if self.metric(cluster, *node, "millrace_feedback_following").await == Some(1) {
                    found.push(*node);
                }
            }
            found.len() == 1
        })
        .await;
        found[0]
    }
}

/// Cars that drive at the same time. Each brakes harshly once per round.
struct Cars {
    start_ms: u64,
    second: u64,
    /// Times of the brakings of each car.
    expected: BTreeMap<u64, Vec<u64>>,
}

impl Cars {
    fn new() -> Self {
        Self { start_ms: now_ms() - 3_600_000, second: 0, expected: BTreeMap::new() }
    }

    /// Returns the records of the next second, one line per car.
    fn next(&mut self, cars: u64) -> String {
        let second = self.second % ROUND_S;
        let speed = match second {
            0..=13 => second as f64,
            14..=29 => 14.0,
            30 => 9.0,
            31 => 4.0,
            _ => 4.0 - (second - 31) as f64 * 0.4,
        };
        let time = self.start_ms + self.second * 1000;
        let record = |car: u64| {
            json!({
                "carId": car, "timestamp": time, "speed": speed, "rpm": 1500, "accuracy": 4, "heading": 0,
                "gpsLatitude": 47.5 + self.second as f64 * 1e-4, "gpsLongitude": 19.0 + car as f64 * 0.01,
            })
        };
        let lines: String = (1..=cars).map(|car| format!("{}\n", record(car))).collect();
        if second == 30 {
            (1..=cars).for_each(|car| self.expected.entry(car).or_default().push(time - 1000));
        }
        self.second += 1;
        lines
    }

    /// Sends whole rounds through nodes in turn. A request that is not answered is repeated through the next node.
    async fn drive(&mut self, cluster: &Cluster, http: &Http, cars: u64, rounds: u64, nodes: &[usize]) {
        for _ in 0..rounds * ROUND_S {
            let (lines, key, mut attempt) = (self.next(cars), format!("second {}", self.second), 0);
            until("the records enter", BOUND, async || {
                let url = cluster.node(nodes[(self.second as usize + attempt) % nodes.len()]).http("/rest/input");
                attempt += 1;
                let request = http.0.post(url).header("content-type", "application/x-ndjson");
                let answer = request.header("idempotency-key", &key).body(lines.clone()).send().await;
                let Ok(answer) = answer else { return false };
                let text = answer.text().await.unwrap_or_default();
                !text.contains("\"error\"") && text.matches("position").count() as u64 == cars
            })
            .await;
        }
    }

    /// Returns the events of each car, by their time.
    async fn events(&self, cluster: &Cluster, http: &Http, node: usize) -> BTreeMap<u64, Vec<u64>> {
        let mut all = BTreeMap::new();
        for car in self.expected.keys() {
            let path = format!("/v1/channels/cars/{car}/events?since=earliest&limit=1000");
            let (_, answer) = http.ask(cluster, node, "GET", &path, &Value::Null).await;
            let events = answer["messages"].as_array().cloned().unwrap_or_default();
            let braking = events.iter().filter(|event| event["data"]["type"] == "harsh-braking");
            all.insert(*car, braking.filter_map(|event| event["data"]["time"].as_u64()).collect());
        }
        all
    }

    /// Waits until each braking is an event, once and in order.
    async fn judge(&self, what: &str, cluster: &Cluster, http: &Http, node: usize) {
        let count = |events: &BTreeMap<u64, Vec<u64>>| events.values().map(Vec::len).sum::<usize>();
        until(what, BOUND, async || count(&self.events(cluster, http, node).await) >= count(&self.expected)).await;
        assert_eq!(self.events(cluster, http, node).await, self.expected, "{what}");
    }
}

#[test]
fn feedback_moves_to_another_node_without_loss() {
    with_brokers(async |kind| {
        let (http, mut cars) = (Http::new(), Cars::new());
        let settings = ["carcare.feedback=true", "server.shards=2"];
        let mut cluster = Cluster::start("feedback", kind, 3, 3, &settings).await;
        let first = http.follower(&cluster, &[0, 1, 2]).await;
        cars.drive(&cluster, &http, 4, 1, &[0, 1, 2]).await;
        cars.judge("the first events", &cluster, &http, 0).await;

        // The node dies in the middle of a round. New cars appear before any other node follows.
        let rest: Vec<usize> = (0..3).filter(|node| *node != first).collect();
        cluster.kill(first);
        let killed = Instant::now();
        let moved = async { (http.follower(&cluster, &rest).await, killed.elapsed()) };
        let (_, (second, moved)) = tokio::join!(cars.drive(&cluster, &http, 8, 2, &rest), moved);
        assert!(moved < MOVED, "{kind:?}: {moved:?}");
        cars.judge("the events after the death of a node", &cluster, &http, rest[0]).await;

        // The dead node comes back, so that the next one to end leaves two.
        cluster.begin(first);
        cluster.ready(first).await;
        let second = match http.metric(&cluster, first, "millrace_feedback_following").await {
            Some(1) => first,
            _ => second,
        };
        // The node is suspended for longer than its lease, and continues as if nothing had happened.
        let others: Vec<usize> = (0..3).filter(|node| *node != second).collect();
        let process = Pid::from_raw(cluster.id(second) as i32).expect("a process");
        kill_process(process, Signal::STOP).expect("it is our child");
        http.follower(&cluster, &others).await;
        cars.drive(&cluster, &http, 8, 1, &others).await;
        cars.judge("the events while a node is suspended", &cluster, &http, others[0]).await;
        kill_process(process, Signal::CONT).expect("it is our child");
        cars.drive(&cluster, &http, 8, 2, &[0, 1, 2]).await;
        cars.judge("the events after it continues", &cluster, &http, others[0]).await;
        http.follower(&cluster, &[0, 1, 2]).await;
        print_line(&format!(
            "  feedback, {kind:?}: another node follows the cars {moved:.1?} after the death of the first"
        ));
    });
}

#[test]
fn request_is_delivered_and_answered_through_other_nodes() {
    with_brokers(async |kind| {
        let http = Http::new();
        let mut cluster = Cluster::start("requests", kind, 3, 3, &[]).await;
        let to = |node: usize, path: &'static str| (node, format!("/v1/requests/{path}"));
        // The device waits at node 1, the application asks at node 0 and dies with it.
        let url = cluster.node(1).http("/v1/channels/requests/car-7?since=state");
        let device = http.0.get(url).header("accept", "application/x-ndjson").timeout(BOUND);
        let mut device = device.send().await.expect("a stream");
        let (node, path) = to(0, "car-7?ttl=1h");
        let (status, asked) = http.ask(&cluster, node, "POST", &path, &json!({ "send": "log.txt" })).await;
        assert_eq!((status, &asked["state"]), (202, &json!("queued")), "{kind:?}");
        cluster.kill(0);
        let mut text = String::new();
        let received: Value = loop {
            let chunk = device.chunk().await.expect("in time").expect("a message");
            text.push_str(std::str::from_utf8(&chunk).expect("text"));
            // The first line reports that the state is complete. The last one may not be complete yet.
            let mut lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
            if let Some(entry) = lines.find(|line| line["key"].is_string()) {
                break entry;
            }
        };
        let request = &received["data"]["request"];
        assert_eq!((&received["key"], request), (&asked["id"], &json!({ "send": "log.txt" })), "{kind:?}");
        // The device reconnects elsewhere, confirms and answers there.
        drop(device);
        let (_, listed) = http.ask(&cluster, 2, "GET", "/v1/requests/car-7", &Value::Null).await;
        assert_eq!(listed["requests"][0]["id"], asked["id"], "{kind:?}");
        let path = format!("/v1/requests/car-7/{}", asked["id"].as_str().expect("an id"));
        let (_, sent) = http.ask(&cluster, 2, "POST", &format!("{path}?state=sent"), &Value::Null).await;
        assert_eq!(sent["state"], "sent", "{kind:?}");
        // Two nodes get different answers at the same time: one stays.
        let (one, two) = (json!({ "bytes": 1 }), json!({ "bytes": 2 }));
        let (one, two) =
            tokio::join!(http.ask(&cluster, 1, "POST", &path, &one), http.ask(&cluster, 2, "POST", &path, &two));
        let mut status = [one.0, two.0];
        status.sort_unstable();
        assert_eq!(status, [200, 409], "{kind:?}");
        let answered = if one.0 == 200 { one.1 } else { two.1 };
        cluster.begin(0);
        cluster.ready(0).await;
        let (_, seen) = http.ask(&cluster, 0, "GET", &path, &Value::Null).await;
        assert_eq!(seen, answered, "{kind:?}: the application sees the answer at its node");
    });
}

/// A push service whose answer the test sets.
struct PushService {
    port: u16,
    status: Arc<AtomicUsize>,
    paths: Arc<Mutex<Vec<String>>>,
}

impl PushService {
    fn start() -> Self {
        let (status, paths) = (Arc::new(AtomicUsize::new(201)), Arc::<Mutex<Vec<String>>>::default());
        let (answers, seen) = (status.clone(), paths.clone());
        let port = serve(move |request| {
            seen.lock().expect("no panic").push(request.path);
            format!("{} Status\r\nretry-after: 2", answers.load(SeqCst))
        });
        Self { port, status, paths }
    }

    fn count(&self, path: &str) -> usize {
        self.paths.lock().expect("no panic").iter().filter(|seen| *seen == path).count()
    }
}

fn subscription(service: &PushService, path: &str) -> Value {
    let p256dh = "BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4";
    let keys = json!({ "p256dh": p256dh, "auth": "BTBZMqHH6r4Tts7J_aSIgg" });
    json!({ "endpoint": format!("http://127.0.0.1:{}{path}", service.port), "keys": keys })
}

#[test]
fn push_is_sent_once_by_any_node_and_survives_its_node() {
    with_brokers(async |kind| {
        let (http, service, folder) = (Http::new(), PushService::start(), Folder::new("push-key"));
        std::fs::create_dir_all(folder.path("")).expect("the folder is writable");
        let key = folder.path("key.pem").display().to_string();
        let mut create = Command::new(env!("CARGO_BIN_EXE_millrace"));
        let created = create.args(["token", "key", "--alg", "ES256", "--out", &key]).output().expect("it starts");
        assert!(created.status.success(), "{created:?}");
        let [key, hosts] = [format!("push.key={key}"), format!("push.hosts=[\"http://127.0.0.1:{}\"]", service.port)];
        let settings = [&key, &hosts, "push.contact=mailto:ops@example.org", "push.timeout=1s"];
        let mut cluster = Cluster::start("push", kind, 3, 3, &settings).await;
        // Messages that are on their way or have arrived, without repetitions.
        let sent = Cell::new(0);
        let notify = async |cluster: &Cluster, node: usize| {
            let message = json!({ "title": "Car 7" });
            let (_, answer) = http.ask(cluster, node, "POST", "/v1/push/alice", &message).await;
            let pushes = answer["pushes"].as_u64();
            sent.set(sent.get() + pushes.unwrap_or(0) as usize);
            pushes
        };
        let all_arrive = async || {
            until("all pushes arrive", BOUND, async || service.count("/phone") == sent.get()).await;
        };

        let subscriptions = "/v1/push/alice/subscriptions";
        let (status, _) = http.ask(&cluster, 0, "POST", subscriptions, &subscription(&service, "/phone")).await;
        assert_eq!(status, 204, "{kind:?}");
        assert_eq!(notify(&cluster, 1).await, Some(1), "{kind:?}: stored at node 0, published at node 1");
        all_arrive().await;
        // With a reader at node 2, nothing is pushed.
        let url = cluster.node(2).websocket("/v1/channels/notifications/alice");
        let (reader, _) = connect_async(url).await.expect("a WebSocket");
        until("the reader is counted", BOUND, async || notify(&cluster, 1).await == Some(0)).await;
        drop(reader);
        until("the reader has gone", BOUND, async || notify(&cluster, 1).await == Some(1)).await;
        all_arrive().await;

        // The push service is busy. The node dies while the message waits, and another node sends it.
        service.status.store(503, SeqCst);
        assert_eq!(notify(&cluster, 1).await, Some(1), "{kind:?}");
        until("the message waits", BOUND, async || {
            http.metric(&cluster, 1, "millrace_push_requests_total{result=\"server_error\"}").await >= Some(1)
        })
        .await;
        let sum = async |cluster: &Cluster, event: &str| {
            let name = format!("millrace_push_messages_total{{event=\"{event}\"}}");
            let [a, b] = [http.metric(cluster, 0, &name).await, http.metric(cluster, 2, &name).await];
            a.unwrap_or(0) + b.unwrap_or(0)
        };
        // On a busy machine, other nodes take over messages of a slow one, and a node tries more than once.
        let delivered = sum(&cluster, "delivered").await;
        cluster.kill(1);
        let killed = Instant::now();
        let tried = service.count("/phone");
        service.status.store(201, SeqCst);
        until("another node sends the message", MOVED, async || service.count("/phone") > tried).await;
        let moved = killed.elapsed();
        sent.set(service.count("/phone"));
        until("it is taken over and delivered", BOUND, async || {
            sum(&cluster, "taken_over").await >= 1 && sum(&cluster, "delivered").await > delivered
        })
        .await;

        // The subscription has ended: the node that learns it removes it for all.
        service.status.store(410, SeqCst);
        assert_eq!(notify(&cluster, 2).await, Some(1), "{kind:?}");
        until("no node pushes any more", BOUND, async || notify(&cluster, 0).await == Some(0)).await;
        all_arrive().await;
        assert!(sum(&cluster, "gone").await >= 1, "{kind:?}");
        print_line(&format!("  push, {kind:?}: sent by another node {moved:.1?} after the death of the first"));
    });
}
