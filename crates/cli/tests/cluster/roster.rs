//! The roster is right soon after the death of a node.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use futures_util::future::join_all;
use millrace_server::auth::SigningKey;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async, tungstenite::client::IntoClientRequest as _};

use crate::{
    broker::Kind,
    chaos::block_on,
    cluster::Cluster,
    process::{BOUND, is_there, print_line, turn, until},
};

/// Maximum time from `kill -9` until the roster is right.
const RIGHT: Duration = Duration::from_secs(10);
const SECRET: &str = "a secret of thirty-two bytes or more";
const CHANNEL: &str = "/v1/channels/chat/1";

type Reader = WebSocketStream<MaybeTlsStream<TcpStream>>;

fn token(subject: &str) -> String {
    let now_s = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
    let rights = json!({ "subscribe": ["chat/#"], "presence": ["chat/#"] });
    let claims = json!({ "sub": subject, "exp": now_s + 600, "millrace": rights });
    SigningKey::parse(SECRET.as_bytes()).expect("a key").sign(&claims, None).expect("a token")
}

/// Opens a WebSocket of a member at a node.
async fn open(cluster: &Cluster, node: usize, member: &str) -> Reader {
    let mut request = cluster.node(node).websocket(CHANNEL).into_client_request().expect("a request");
    let bearer = format!("Bearer {}", token(member)).parse().expect("a header");
    request.headers_mut().insert("authorization", bearer);
    connect_async(request).await.expect("an open WebSocket").0
}

/// Returns the numbers of connections by member, as a node lists them.
async fn members(cluster: &Cluster, node: usize) -> BTreeMap<String, u64> {
    let http = millrace_client::tls::http().build().expect("a client");
    let url = cluster.node(node).http("/v1/presence/chat/1?members&limit=1000");
    let Ok(answer) = http.get(url).bearer_auth(token("reader")).send().await else { return BTreeMap::new() };
    let text = answer.text().await.expect("a body");
    let page: Value = serde_json::from_str(&text).expect("JSON");
    let of = |member: &Value| Some((member["id"].as_str()?.to_owned(), member["connections"].as_u64()?));
    page["members"].as_array().into_iter().flatten().filter_map(of).collect()
}

async fn await_members(cluster: &Cluster, nodes: &[usize], expected: &BTreeMap<String, u64>, bound: Duration) {
    for node in nodes {
        until(&format!("node {node} lists {expected:?}"), bound, async || members(cluster, *node).await == *expected)
            .await;
    }
}

#[test]
fn roster_is_right_after_a_node_is_killed() {
    let _turn = turn();
    for kind in [Kind::Redis, Kind::Nats] {
        if !is_there("haproxy") || !kind.is_there() {
            continue;
        }
        block_on(async {
            let secret = format!("auth.secret={SECRET}");
            let settings = [secret.as_str(), "namespaces.chat.roster=true"];
            let mut cluster = Cluster::start("roster", kind, 3, 3, &settings).await;
            // Each node has members of its own, and every pair of nodes has a common one.
            let places = [
                (0, "a"),
                (0, "a"),
                (1, "b"),
                (2, "c"),
                (0, "ab"),
                (1, "ab"),
                (1, "bc"),
                (2, "bc"),
                (0, "ac"),
                (2, "ac"),
            ];
            let readers = join_all(places.map(|(node, member)| open(&cluster, node, member))).await;
            let count = |nodes: &[usize]| {
                let mut counts = BTreeMap::new();
                for (_, member) in places.iter().filter(|(node, _)| nodes.contains(node)) {
                    *counts.entry((*member).to_owned()).or_default() += 1;
                }
                counts
            };
            await_members(&cluster, &[0, 1, 2], &count(&[0, 1, 2]), BOUND).await;

            cluster.kill(0);
            let killed = Instant::now();
            await_members(&cluster, &[1, 2], &count(&[1, 2]), RIGHT).await;
            let right = killed.elapsed();
            print_line(&format!("  roster, {kind:?}: right {right:.1?} after kill -9"));
            assert!(right < RIGHT, "{right:?}");

            // The node starts again without readers, and one of them reconnects. The others stay as they are.
            cluster.begin(0);
            cluster.ready(0).await;
            let again = open(&cluster, 0, "a").await;
            let mut expected = count(&[1, 2]);
            expected.insert("a".into(), 1);
            await_members(&cluster, &[0, 1, 2], &expected, BOUND).await;
            drop((readers, again));
            await_members(&cluster, &[0, 1, 2], &BTreeMap::new(), BOUND).await;
        });
    }
}
