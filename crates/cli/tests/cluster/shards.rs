//! One node with two shards: both shards do their part of the work.
//!
//! The gain of two shards is measured where the load generator is not the limit: `cargo bench -p millrace-cli --bench
//! overload -- --scenarios shards`.

use std::{collections::BTreeMap, fs, time::Duration};

use crate::{
    broker::Kind,
    chaos::block_on,
    client::ClientKind,
    cluster::Cluster,
    crowd::Crowd,
    load::Load,
    process::{BOUND, is_there, print_line, turn, until},
};

const CHANNELS: usize = 20;
const PER_S: f64 = 200.0;
/// Minimum share of each shard in the total CPU time. Chance decides which shard accepts a connection. With 240
/// connections, a share of one third is about five standard deviations below one half.
const SHARE_MIN: f64 = 0.33;
/// CPU time of both shards together. It is long enough for meaningful kernel figures.
const WORK: Duration = Duration::from_millis(500);

#[test]
fn connections_and_work_spread_over_all_shards() {
    let _turn = turn();
    if !is_there("haproxy") {
        return;
    }
    block_on(async {
        let cluster = Cluster::start("shards", Kind::Memory, 1, 1, &["server.shards=2"]).await;
        let kinds = ClientKind::ALL.map(|kind| (kind, 40));
        let crowd = Crowd::start(&cluster.node(0), &kinds, CHANNELS);
        let load = Load::start(&cluster.node(0), CHANNELS, PER_S);
        crowd.listens(BOUND).await;
        let before = shards(cluster.id(0));
        let mut used = BTreeMap::new();
        until("the shards work", BOUND, async || {
            used = shards(cluster.id(0));
            used.iter_mut().for_each(|(name, time)| *time -= before[name]);
            used.values().sum::<Duration>() > WORK
        })
        .await;
        let acknowledged =
            load.stop(BOUND).await.unwrap_or_else(|errors| panic!("publishers were refused: {errors:#?}"));
        print_line(&format!("\nshards: processor time {used:?}"));
        crowd.conclude(&cluster, acknowledged, false, BOUND).await;
        assert_eq!(used.len(), 2);
        let share = |time: &Duration| time.as_secs_f64() / used.values().sum::<Duration>().as_secs_f64();
        assert!(used.values().all(|time| share(time) >= SHARE_MIN), "one shard does the other's work: {used:?}");
    });
}

/// Returns the CPU time of each shard thread of a node.
fn shards(process: u32) -> BTreeMap<String, Duration> {
    let threads = fs::read_dir(format!("/proc/{process}/task")).expect("a process that runs");
    let used = |thread: fs::DirEntry| {
        let name = fs::read_to_string(thread.path().join("comm")).ok()?.trim().to_owned();
        let stat = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        let on_cpu_ns = stat.split(' ').next()?.parse().ok()?;
        name.starts_with("shard-").then(|| (name, Duration::from_nanos(on_cpu_ns)))
    };
    threads.filter_map(|thread| used(thread.ok()?)).collect()
}
