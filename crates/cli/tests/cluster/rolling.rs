//! Rolling restart and rolling upgrade under load: every node is replaced, one after the other. No client loses a
//! message or receives a gap.

use std::time::{Duration, Instant};

use crate::{
    balancer::NODES,
    broker::Kind,
    chaos::block_on,
    client::ClientKind,
    cluster::Cluster,
    crowd::Crowd,
    load::Load,
    process::{BOUND, is_there, print_line, turn},
    report,
};

const CHANNELS: usize = 20;
const PER_S: f64 = 100.0;
const CLIENTS: usize = 150;
/// Duration of the measurement before the restart, for comparison.
const BEFORE: Duration = Duration::from_secs(5);
const CATCH_UP: Duration = Duration::from_secs(30);
const SETTINGS: &[&str] = &["server.shards=2", "drain.announce=1500ms", "drain.window=2s"];

/// How a node is replaced.
#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    /// It drains and ends; then it is started again.
    Restart,
    /// `millrace upgrade`: the new process takes over the listening sockets.
    Upgrade,
}

fn replace_all_nodes(name: &str, kind: Kind, by: By) {
    let _turn = turn();
    if !kind.is_there() || !is_there("haproxy") {
        return;
    }
    print_line(&format!("\n{name}: {NODES} nodes, one after the other; {PER_S} publications per second"));
    block_on(async {
        let kinds = ClientKind::ALL.map(|kind| (kind, CLIENTS / ClientKind::ALL.len()));
        let mut cluster = Cluster::start(name, kind, NODES, NODES, SETTINGS).await;
        let crowd = Crowd::start(&cluster.server(), &kinds, CHANNELS);
        let load = Load::start(&cluster.server(), CHANNELS, PER_S);
        crowd.listens(BOUND).await;
        let steady = Instant::now();
        tokio::time::sleep(BEFORE).await;
        let began = Instant::now();
        for i in 0..NODES {
            match by {
                By::Restart => {
                    cluster.terminate(i);
                    cluster.ended(i).await;
                    cluster.begin(i);
                    cluster.ready(i).await;
                }
                By::Upgrade => cluster.upgrade(i).await,
            }
        }
        let done = Instant::now();
        let retries = load.retries();
        let acknowledged =
            load.stop(CATCH_UP).await.unwrap_or_else(|errors| panic!("publishers were refused: {errors:#?}"));
        assert!(by == By::Restart || retries == 0, "publishers were refused {retries} times during upgrades");
        crowd.conclude(&cluster, acknowledged, false, CATCH_UP).await;
        for (when, from, to) in [("before", steady, began), ("during", began, done)] {
            let seconds = (to - from).as_secs_f64();
            for kind in ClientKind::ALL {
                let (median, p99) = report::ages(&crowd.clients, kind, from, to);
                print_line(&format!("  {when} ({seconds:.1} s), {}: p50 {median} ms, p99 {p99} ms", kind.name()));
            }
        }
        print_line(&format!("  publishers tried {retries} times again"));
    });
}

#[test]
fn a_rolling_restart_loses_nothing() {
    replace_all_nodes("rolling", Kind::Redis, By::Restart);
}

#[test]
fn a_rolling_upgrade_loses_nothing_with_redis() {
    replace_all_nodes("rolling-upgrade-redis", Kind::Redis, By::Upgrade);
}

#[test]
fn a_rolling_upgrade_loses_nothing_with_nats() {
    replace_all_nodes("rolling-upgrade-nats", Kind::Nats, By::Upgrade);
}
