//! Services of a cluster: driving feedback is computed by one node.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use millrace_client::clock::now_ms;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::{
    broker::Kind,
    chaos::block_on,
    cluster::Cluster,
    process::{BOUND, is_there, print_line, turn, until},
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

    /// Waits until each braking is an event, once and in order. Returns how long that took.
    async fn judge(&self, what: &str, cluster: &Cluster, http: &Http, node: usize) -> Duration {
        let began = Instant::now();
        let count = |events: &BTreeMap<u64, Vec<u64>>| events.values().map(Vec::len).sum::<usize>();
        until(what, MOVED, async || count(&self.events(cluster, http, node).await) >= count(&self.expected)).await;
        assert_eq!(self.events(cluster, http, node).await, self.expected, "{what}");
        began.elapsed()
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
        cars.drive(&cluster, &http, 8, 2, &rest).await;
        cars.judge("the events after the death of a node", &cluster, &http, rest[0]).await;
        let moved = killed.elapsed();
        assert!(moved < MOVED, "{kind:?}: {moved:?}");
        let second = http.follower(&cluster, &rest).await;

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
        print_line(&format!("  feedback, {kind:?}: all events within {moved:.1?} after the death of the node"));
    });
}
