//! Readers of a dead node disappear from the presence count soon.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tokio_tungstenite::connect_async;

use crate::{
    broker::Kind,
    chaos::block_on,
    cluster::Cluster,
    process::{BOUND, is_there, print_line, turn, until},
};

const READERS: usize = 5;
/// Maximum time from `kill -9` until readers of the dead node are not counted. It is also the maximum wait for the
/// dead node's answer.
const FORGOTTEN: Duration = Duration::from_secs(3);
/// Maximum response time while the dead node's lease is still valid.
const ANSWER: Duration = Duration::from_secs(2);
const CHANNEL: &str = "/v1/channels/presence/after/death";

#[test]
fn readers_of_a_killed_node_leave_the_count() {
    let _turn = turn();
    for kind in [Kind::Redis, Kind::Nats] {
        if !is_there("haproxy") || !kind.is_there() {
            continue;
        }
        block_on(async {
            let mut cluster = Cluster::start("presence", kind, 2, 2, &[]).await;
            let http = millrace_client::tls::http().build().expect("a client");
            let count = async |cluster: &Cluster, node: usize| {
                let url = cluster.node(node).http(&CHANNEL.replace("channels", "presence"));
                let text = http.get(url).send().await.expect("an answer").text().await.expect("a body");
                let answer: serde_json::Value = serde_json::from_str(&text).expect("JSON");
                answer["count"].as_u64().unwrap_or_else(|| panic!("no count: {answer}"))
            };
            let open = |node: usize| {
                let server = cluster.node(node);
                async move { connect_async(server.websocket(CHANNEL)).await.expect("an open WebSocket").0 }
            };
            let readers = join_all((0..2 * READERS).map(|reader| open(reader % 2))).await;
            let all = 2 * READERS as u64;
            until("all are counted", BOUND, async || {
                count(&cluster, 0).await == all && count(&cluster, 1).await == all
            })
            .await;

            cluster.kill(0);
            let killed = Instant::now();
            let mut longest = Duration::ZERO;
            until("the dead are forgotten", FORGOTTEN, async || {
                let asked = Instant::now();
                let counted = count(&cluster, 1).await;
                longest = longest.max(asked.elapsed());
                assert!(counted == all || counted == READERS as u64, "{counted} is neither before nor after");
                counted == READERS as u64
            })
            .await;
            let forgotten = killed.elapsed();
            print_line(&format!("  presence, {kind:?}: right after {forgotten:.1?}, longest answer {longest:.1?}"));
            assert!(longest < ANSWER, "an answer took {longest:?}");

            // The node restarts without readers, and its readers reconnect.
            cluster.begin(0);
            cluster.ready(0).await;
            let again = join_all((0..READERS).map(|_| async {
                connect_async(cluster.node(0).websocket(CHANNEL)).await.expect("an open WebSocket").0
            }))
            .await;
            until("all are counted again", BOUND, async || count(&cluster, 1).await == all).await;
            drop((readers, again));
        });
    }
}
