//! Reconnect storm: the node of all clients dies. All clients must reconnect to another node and catch up.
//!
//! `MILLRACE_STORM_CLIENTS=5000` sets the full size. Each client uses one connection of this process, two of HAProxy
//! and one of a node.

use std::time::{Duration, Instant};

use crate::{
    balancer::NODES,
    broker::Kind,
    chaos::block_on,
    client::{Client, ClientKind},
    cluster::Cluster,
    crowd::Crowd,
    load::Load,
    process::{is_there, print_line, setting, turn, until},
};

const CLIENTS: usize = 500;
const CHANNELS: usize = 50;
/// Total rate: one publication per channel and second.
const PER_S: f64 = 50.0;
/// Clients that connect at the same time before the storm.
const BATCH: usize = 250;
const BOUND: Duration = Duration::from_secs(60);
const SETTINGS: &[&str] = &["server.shards=2"];

fn storm(name: &str, kind: Kind) {
    let _turn = turn();
    if !kind.is_there() || !is_there("haproxy") {
        return;
    }
    let clients = setting("MILLRACE_STORM_CLIENTS").map_or(CLIENTS, |count| count as usize);
    print_line(&format!("\n{name}: {clients} clients on a node that is killed, {PER_S} publications per second"));
    block_on(async {
        let mut cluster = Cluster::start(name, kind, NODES, 1, SETTINGS).await;
        let load = Load::start(&cluster.server(), CHANNELS, PER_S);
        let mut crowd = Crowd::default();
        let (sessions, streams) = (clients * 2 / 5, clients * 2 / 5);
        let kinds = [
            (ClientKind::Session, sessions),
            (ClientKind::Sse, streams),
            (ClientKind::LongPolling, clients - sessions - streams),
        ];
        for kinds in batches(&kinds) {
            crowd.join(&cluster.server(), &kinds, CHANNELS, 1);
            crowd.listens(BOUND).await;
        }
        for i in 1..NODES {
            cluster.begin(i);
            cluster.ready(i).await;
        }
        cluster.balancer.clear().await;
        cluster.kill(0);
        let killed = Instant::now();
        let back = |client: &Client| client.seen.borrow().first_due_after(killed);
        until("all clients are back", BOUND, async || crowd.clients.iter().all(|client| back(client).is_some())).await;
        let mut times: Vec<Duration> = crowd.clients.iter().filter_map(back).map(|at| at - killed).collect();
        times.sort_unstable();
        let (connections, requests) = cluster.balancer.rates_max().await;
        let acknowledged =
            load.stop(BOUND).await.unwrap_or_else(|errors| panic!("publishers were refused: {errors:#?}"));
        crowd.conclude(&cluster, acknowledged, false, BOUND).await;
        let (half, last) = (times[times.len() / 2].as_secs_f64(), times[times.len() - 1].as_secs_f64());
        print_line(&format!(
            "  caught up (next message at most 1 s later): half after {half:.1} s, the last after {last:.1} s\n  \
             most connections in one second: {connections}; most requests that one node got in one: {requests}"
        ));
    });
}

/// Splits the clients into batches of at most [`BATCH`].
fn batches(kinds: &[(ClientKind, usize)]) -> Vec<[(ClientKind, usize); 1]> {
    let cut = |&(kind, count): &(ClientKind, usize)| {
        (0..count).step_by(BATCH).map(move |from| [(kind, BATCH.min(count - from))])
    };
    kinds.iter().flat_map(cut).collect()
}

#[test]
fn all_clients_reconnect_after_a_node_dies() {
    storm("storm", Kind::Redis);
}
