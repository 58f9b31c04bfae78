//! Operator requests to any node are effective on all nodes: lists, changes and revocations, also while a node is dead
//! and for a node that starts later.

use std::{collections::BTreeSet, time::Duration};

use futures_util::{SinkExt as _, StreamExt as _};
use millrace_server::auth::SigningKey;
use serde_json::{Value, json};
use tokio_tungstenite::{
    connect_async,
    tungstenite::{Message, client::IntoClientRequest as _},
};

use crate::{
    broker::Kind,
    chaos::block_on,
    cluster::Cluster,
    process::{BOUND, is_there, print_line, turn, until},
};

const SECRET: &str = "a secret of thirty-two bytes or more";
const READERS: usize = 4;
/// Maximum time of an operator request while a dead node still has its lease.
const ANSWER: Duration = Duration::from_secs(8);

type Session = tokio_tungstenite::WebSocketStream<tokio_tungstenite::MaybeTlsStream<tokio::net::TcpStream>>;

fn token(claims: Value) -> String {
    let now_s = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("it is later").as_secs();
    let mut all = json!({ "iat": now_s, "exp": now_s + 600 });
    all.as_object_mut().expect("an object").extend(claims.as_object().expect("an object").clone());
    SigningKey::parse(SECRET.as_bytes()).expect("a key").sign(&all, None).expect("a token")
}

fn reader(subject: &str) -> String {
    token(json!({ "sub": subject, "millrace": { "subscribe": ["#"], "publish": ["#"], "history": ["#"] } }))
}

/// A cluster with an HTTP client that may send operator requests.
struct Operator<'a> {
    cluster: &'a Cluster,
    http: &'a reqwest::Client,
    token: &'a str,
}

impl Operator<'_> {
    /// Sends a request to one node and returns the answer, which must be a success.
    async fn ask(&self, node: usize, path: &str, body: Option<Value>) -> Value {
        let url = self.cluster.node(node).http(&format!("/v1/admin/{path}"));
        let request = match body {
            None => self.http.get(url),
            Some(body) => self.http.post(url).body(body.to_string()),
        };
        let answer = request.bearer_auth(self.token).send().await.expect("an answer");
        let status = answer.status();
        let text = answer.text().await.expect("a body");
        assert_eq!(status, 200, "{path}: {text}");
        serde_json::from_str(&text).expect("JSON")
    }

    async fn status_of_read(&self, node: usize, token: &str) -> u16 {
        let url = self.cluster.node(node).http("/v1/channels/nothing/here");
        self.http.get(url).bearer_auth(token).send().await.expect("an answer").status().as_u16()
    }
}

async fn open(cluster: &Cluster, node: usize, token: &str, channel: &str) -> Session {
    let mut request = cluster.node(node).websocket("/v1/connect").into_client_request().expect("a request");
    let offers = format!("millrace.v1+json, bearer.{token}");
    request.headers_mut().insert("sec-websocket-protocol", offers.parse().expect("a header"));
    let (mut socket, _) = connect_async(request).await.expect("a session");
    let subscribe = json!({ "id": 1, "subscribe": { "channel": channel } });
    socket.send(Message::text(subscribe.to_string())).await.expect("sent");
    while next(&mut socket).await["id"] != 1 {}
    socket
}

async fn next(socket: &mut Session) -> Value {
    loop {
        let message = tokio::time::timeout(BOUND, socket.next()).await.expect("a message in time");
        match message.expect("more").expect("a message") {
            Message::Text(text) => return serde_json::from_str(&text).expect("JSON"),
            Message::Close(close) => return json!({ "closed": close.map(|close| u16::from(close.code)) }),
            _ => {}
        }
    }
}

#[test]
fn operator_requests_reach_every_node() {
    let _turn = turn();
    for kind in [Kind::Redis, Kind::Nats] {
        if !is_there("haproxy") || !kind.is_there() {
            continue;
        }
        block_on(run(kind));
    }
}

async fn run(kind: Kind) {
    let secret = format!("auth.secret={SECRET}");
    let mut cluster = Cluster::start("operators", kind, 3, 3, &[&secret]).await;
    let http = millrace_client::tls::http().build().expect("a client");
    let admin = token(json!({ "sub": "operator", "millrace": { "admin": true } }));
    let (ann, bob) = (reader("ann"), reader("bob"));
    let mut sessions = Vec::new();
    for node in 0..3 {
        for (subject, count) in [(&ann, READERS), (&bob, 1)] {
            for _ in 0..count {
                sessions.push(open(&cluster, node, subject, "cars/1").await);
            }
        }
    }
    for channel in ["cars/1", "cars/2", "news"] {
        let url = cluster.node(0).http(&format!("/v1/channels/{channel}"));
        let published = http.post(url).bearer_auth(&ann).body("0123456789").send().await.expect("an answer");
        assert_eq!(published.status(), 200);
    }
    {
        let operator = Operator { cluster: &cluster, http: &http, token: &admin };
        connections_are_merged_and_paged(&operator).await;
        channels_have_readers_of_all_nodes(&operator).await;
        nodes_are_described_on_every_node(&operator).await;

        // Every session of ann on every node is notified, and no other.
        let ended = operator.ask(1, "unsubscribe", Some(json!({ "channel": "cars/1", "subject": "ann" }))).await;
        assert_eq!(ended, json!({ "unsubscribed": 3 * READERS }), "{kind:?}");
        let refreshed = operator.ask(2, "refresh", Some(json!({ "subject": "bob", "within_s": 600 }))).await;
        assert_eq!(refreshed, json!({ "refreshed": 3 }), "{kind:?}");
        for (i, session) in sessions.iter_mut().enumerate() {
            let wanted = if i % (READERS + 1) < READERS { "unsubscribed" } else { "refresh" };
            let mut seen = next(session).await;
            while seen["push"] == "message" {
                seen = next(session).await;
            }
            assert_eq!(seen["push"], wanted, "session {i}: {seen}");
        }

        assert_eq!(operator.ask(0, "revoke", Some(json!({ "sub": "ann" }))).await, json!({ "revoked": true }));
        for node in 0..3 {
            assert_eq!(operator.status_of_read(node, &ann).await, 401, "{kind:?}: node {node}");
            assert_eq!(operator.status_of_read(node, &bob).await, 204, "{kind:?}: node {node}");
        }
        let left = operator.ask(0, "connections", None).await;
        assert_eq!(left["connections"].as_array().map(Vec::len), Some(3), "only bob is left: {left}");
    }

    // The request of an operator that arrives while a node is dead names it, and the others answer.
    cluster.kill(0);
    let asked = std::time::Instant::now();
    {
        let operator = Operator { cluster: &cluster, http: &http, token: &admin };
        let during = operator.ask(1, "connections", None).await;
        let took = asked.elapsed();
        assert!(took < ANSWER, "{kind:?}: {took:?}");
        assert_eq!(during["missing"].as_array().map(Vec::len), Some(1), "{kind:?}: {during}");
        assert_eq!(during["connections"].as_array().map(Vec::len), Some(2), "{kind:?}: {during}");
        until("the dead node is not missed any more", BOUND, async || {
            operator.ask(1, "connections", None).await.get("missing").is_none()
        })
        .await;
        print_line(&format!(
            "  operators, {kind:?}: answer without the dead node after {took:.1?}, complete again after {:.1?}",
            asked.elapsed()
        ));
    }

    // A node that starts later knows the revocation before it serves.
    cluster.begin(0);
    cluster.ready(0).await;
    let operator = Operator { cluster: &cluster, http: &http, token: &admin };
    assert_eq!(operator.status_of_read(0, &ann).await, 401, "{kind:?}");
    assert_eq!(operator.status_of_read(0, &bob).await, 204, "{kind:?}");
    let closed = operator.ask(0, "disconnect", Some(json!({ "subject": "bob" }))).await;
    assert_eq!(closed, json!({ "disconnected": 2 }), "{kind:?}: the sessions of the dead node are gone");
    for session in sessions.iter_mut().skip(READERS + 1) {
        let mut seen = next(session).await;
        while seen.get("closed").is_none() {
            seen = next(session).await;
        }
        assert_eq!(seen["closed"], 4003);
    }
    node_is_drained_by_another(&operator).await;
}

/// Every node shows all nodes, with round trips to the others, what they do, and their threads.
async fn nodes_are_described_on_every_node(operator: &Operator<'_>) {
    for node in 0..3 {
        let nodes = operator.ask(node, "nodes", None).await;
        let rows = nodes["nodes"].as_array().expect("nodes");
        let (own, others): (Vec<&Value>, Vec<&Value>) = rows.iter().partition(|row| row["is_self"] == true);
        assert_eq!((own.len(), others.len()), (1, 2), "{nodes}");
        assert_eq!(own[0]["round_trip_ms"], Value::Null, "{nodes}");
        assert!(others.iter().all(|row| row["round_trip_ms"].as_f64() > Some(0.0)), "{nodes}");
        assert!(rows.iter().all(|row| row["engine_round_trip_ms"].as_f64() > Some(0.0)), "{nodes}");
        assert!(rows.iter().all(|row| row["connections"] == READERS + 1), "{nodes}");
        let overview = operator.ask(node, "overview", None).await;
        assert_eq!(overview["nodes"].as_array().map(Vec::len), Some(3), "{overview}");
        let threads = operator.ask(node, "threads", None).await;
        let shards = threads["threads"].as_array().expect("threads").iter().filter(|row| row["thread"] == "shard-0");
        let of: BTreeSet<&str> = shards.flat_map(|row| row["node"].as_str()).collect();
        assert_eq!(of.len(), 3, "{threads}");
    }
}

/// An operator drains a node through another one, whose events then name it.
async fn node_is_drained_by_another(operator: &Operator<'_>) {
    let name = operator.ask(2, "nodes", None).await["nodes"]
        .as_array()
        .and_then(|rows| rows.iter().find(|row| row["is_self"] == true))
        .map(|row| row["node"].clone())
        .expect("its own row");
    assert_eq!(operator.ask(1, "drain", Some(json!({ "node": name }))).await, json!({ "draining": true }));
    until("the node has left", BOUND, async || {
        let events = operator.ask(1, "events", None).await;
        let events = events["events"].as_array().expect("events");
        let is_left = |event: &Value| event["kind"] == "node_left" && event["text"].as_str() == Some(&left(&name));
        events.iter().any(is_left)
    })
    .await;
    assert_eq!(operator.ask(1, "nodes", None).await["nodes"].as_array().map(Vec::len), Some(2));
}

fn left(node: &Value) -> String {
    format!("Node {} left", node.as_str().expect("a name"))
}

async fn connections_are_merged_and_paged(operator: &Operator<'_>) {
    let all = operator.ask(0, "connections?limit=1000", None).await;
    let ids = |list: &Value| -> Vec<String> {
        let rows = list["connections"].as_array().expect("connections").iter();
        rows.map(|row| row["id"].as_str().expect("an id").to_owned()).collect()
    };
    let known = ids(&all);
    assert_eq!((known.len(), all.get("missing")), (3 * (READERS + 1), None), "{all}");
    let nodes: BTreeSet<&str> = known.iter().filter_map(|id| id.split('-').next()).collect();
    assert_eq!(nodes.len(), 3, "the ids name the nodes: {known:?}");
    let (mut paged, mut after) = (Vec::new(), String::new());
    for node in (0..3).cycle() {
        let page = operator.ask(node, &format!("connections?limit=2{after}"), None).await;
        paged.extend(ids(&page));
        if page["more"] == false {
            break;
        }
        after = format!("&after={}", paged.last().expect("a page with more is not empty"));
    }
    assert_eq!(paged, known, "pages from any node, without a hole or a double");
    let one = operator.ask(2, &format!("connections?id={}", known[0]), None).await;
    assert_eq!((ids(&one).as_slice(), &one["total"]), (&known[..1], &json!(1)));
    // Every node sorts and cuts its list, and the answer is cut once more.
    for order in ["behind", "bytes", "opened"] {
        let sorted = operator.ask(1, &format!("connections?sort={order}&limit=4"), None).await;
        assert_eq!((ids(&sorted).len(), &sorted["total"]), (4, &json!(known.len())), "{order}: {sorted}");
        assert_eq!(sorted["more"], true, "{order}: {sorted}");
    }
    assert_eq!(operator.ask(2, "slow", None).await, json!({ "readers": [], "total": 0 }));
    assert_eq!(operator.ask(0, "rooms", None).await, json!({ "rooms": [], "more": false, "total": 0 }));
    assert_eq!(operator.ask(1, "hooks", None).await, json!({ "hooks": [] }));
}

async fn channels_have_readers_of_all_nodes(operator: &Operator<'_>) {
    for node in 0..3 {
        let list = operator.ask(node, "channels?namespace=cars", None).await;
        let rows = list["channels"].as_array().expect("channels");
        let names: Vec<&str> = rows.iter().flat_map(|row| row["channel"].as_str()).collect();
        assert_eq!((names, &list["more"]), (vec!["cars/1", "cars/2"], &json!(false)), "{list}");
        assert_eq!((&rows[0]["readers"], &rows[1]["readers"]), (&json!(3 * (READERS + 1)), &json!(0)), "{list}");
        assert!(rows[0]["position"].as_str().is_some_and(|position| position.ends_with(":1")), "{list}");
        let channel = operator.ask(node, "channel?channel=cars/1", None).await;
        assert_eq!(
            (&channel["readers"], &channel["history"]["count"]),
            (&json!(3 * (READERS + 1)), &json!(1)),
            "{channel}"
        );
        let tail = operator.ask(node, "tail?channel=cars/1", None).await;
        assert_eq!((&tail["publications"][0]["text"], &tail["shown"]), (&json!("0123456789"), &json!(1)), "{tail}");
    }
}
