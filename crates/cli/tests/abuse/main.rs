//! Attacks on a live server while a hundred honest clients measure their latency.
//!
//! `scripts/abuse.sh` runs all attacks in their short form, one after the other. `scripts/abuse.sh full` runs each
//! attack for half a minute, with 10,000 connections and a million names. docs/explanation/security.md maps each attack
//! to a threat.

mod attack;
#[path = "../cluster/broker.rs"]
#[expect(dead_code, reason = "clusters need more of it")]
mod broker;
mod honest;
mod newcomers;
#[path = "../ports/mod.rs"]
mod ports;
#[path = "../cluster/process.rs"]
#[expect(dead_code, reason = "clusters need more of it")]
mod process;
mod report;
mod server;
mod trial;
#[path = "../cluster/wire.rs"]
#[expect(dead_code, reason = "only clusters have one that fails")]
mod wire;

use std::{
    io::{Read, Write},
    net::TcpStream,
};

use attack::{datagrams, frames, http2, names, readers, requests, tokens};
use broker::{Broker, Kind};
use process::Folder;
use trial::Trial;

#[test]
#[ignore = "needs a quiet machine and a release build: scripts/abuse.sh"]
fn requests_that_never_end() {
    // Full form: 10,000 connections of about 20 kB each, plus a margin. Short form: a third of the connections.
    let memory_mb = if trial::is_full() { 256 } else { 160 };
    Trial::new("requests that never end").memory_mb(memory_mb).at_least(2_000).run(requests::unfinished);
}

#[test]
#[ignore = "needs a quiet machine and a release build: scripts/abuse.sh"]
fn heads_too_large() {
    Trial::new("heads too large").at_least(200).run(requests::large_heads);
}

#[test]
#[ignore = "needs a quiet machine and a release build: scripts/abuse.sh"]
fn connection_churn() {
    Trial::new("connection churn").at_least(1_000).run(requests::churn);
}

#[test]
#[ignore = "needs a quiet machine and a release build: scripts/abuse.sh"]
fn readers_that_do_not_read() {
    // Backlogs of slow readers and history are limited to 32 MiB each. In addition, twenty responses of 5.6 MiB wait
    // unread.
    let bounds = ["limits.logs_bytes_max=33554432", "engine.history_bytes_max=33554432"];
    Trial::new("readers that do not read").set(&bounds).memory_mb(256).at_least(50).run(readers::slow);
}

#[test]
#[ignore = "needs a quiet machine and a release build: scripts/abuse.sh"]
fn compression_bombs() {
    Trial::new("compression bombs").set(&["limits.compression=true"]).at_least(40).run(frames::bombs);
}

#[test]
#[ignore = "needs a quiet machine and a release build: scripts/abuse.sh"]
fn invalid_websocket_frames() {
    Trial::new("invalid WebSocket frames").at_least(1_000).run(frames::invalid);
}

#[test]
#[ignore = "needs a quiet machine and a release build: scripts/abuse.sh"]
fn http2_floods() {
    Trial::new("HTTP/2 floods").at_least(5_000).run(http2::floods);
}

#[test]
#[ignore = "needs a quiet machine and a release build: scripts/abuse.sh"]
fn random_channel_names() {
    let bounds = ["engine.channels_max=50000", "engine.history_bytes_max=33554432"];
    Trial::new("random channel names").set(&bounds).memory_mb(160).at_least(20_000).run(names::channels);
}

/// Runs an attacker that creates as many channels as it can, while a hundred honest clients open new channels.
fn noisy_neighbor(name: &'static str, engine: &str) {
    let trial = Trial::new(name).with(&["--engine", engine]).set(&["engine.channels_max=10000"]);
    trial.memory_mb(128).at_least(9_000).with_newcomers().run(names::neighbour);
}

fn noisy_neighbor_over(name: &'static str, kind: Kind) {
    if !kind.is_there() {
        return;
    }
    let folder = Folder::new(name);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let broker = runtime.block_on(Broker::start(kind, false, &folder));
    if kind == Kind::Redis {
        // With `appendfsync`, disk latency would slow the attacker down, and it would not reach its limit.
        let mut redis = TcpStream::connect(broker.url().trim_start_matches("redis://")).expect("it answers");
        redis.write_all(b"CONFIG SET appendfsync no\r\n").expect("it reads");
        let mut answer = [0; 5];
        redis.read_exact(&mut answer).expect("it answers");
        assert_eq!(&answer, b"+OK\r\n");
    }
    noisy_neighbor(name, &broker.url());
}

#[test]
#[ignore = "needs a quiet machine and a release build: scripts/abuse.sh"]
fn noisy_neighbor_on_memory() {
    noisy_neighbor("noisy neighbor, memory", "memory");
}

#[test]
#[ignore = "needs a quiet machine and a release build: scripts/abuse.sh"]
fn noisy_neighbor_on_sqlite() {
    let folder = Folder::new("noisy-neighbor-sqlite");
    noisy_neighbor("noisy neighbor, sqlite", &format!("sqlite:{}", folder.path("data.db").display()));
}

#[test]
#[ignore = "needs a quiet machine and a release build: scripts/abuse.sh"]
fn noisy_neighbor_on_redis() {
    noisy_neighbor_over("noisy neighbor, redis", Kind::Redis);
}

#[test]
#[ignore = "needs a quiet machine and a release build: scripts/abuse.sh"]
fn noisy_neighbor_on_nats() {
    noisy_neighbor_over("noisy neighbor, nats", Kind::Nats);
}

#[test]
#[ignore = "needs a quiet machine and a release build: scripts/abuse.sh"]
fn idempotency_keys() {
    let bounds = ["engine.history_bytes_max=33554432"];
    Trial::new("idempotency keys").set(&bounds).memory_mb(128).at_least(10_000).run(names::idempotency_keys);
}

#[test]
#[ignore = "needs a quiet machine and a release build: scripts/abuse.sh"]
fn wildcard_subscriptions() {
    Trial::new("wildcard subscriptions").memory_mb(128).at_least(500).run(names::patterns);
}

#[test]
#[ignore = "needs a quiet machine and a release build: scripts/abuse.sh"]
fn scraping_of_presence_and_history() {
    Trial::new("scraping of presence and history").memory_mb(128).at_least(500).run(names::scraping);
}

#[test]
#[ignore = "needs a quiet machine and a release build: scripts/abuse.sh"]
fn garbage_datagrams() {
    Trial::new("garbage datagrams").with(&["--udp", "127.0.0.1:0"]).at_least(20_000).run(datagrams::garbage);
}

#[test]
#[ignore = "needs a quiet machine and a release build: scripts/abuse.sh"]
fn token_floods() {
    let anonymous = r#"namespaces.honest.anonymous=["subscribe","publish","history"]"#;
    let metrics = "server.public_metrics=true";
    let settings = ["auth.secret=a secret of thirty-two bytes at least", anonymous, metrics];
    Trial::new("token floods").set(&settings).at_least(1_000).run(tokens::bad);
}
