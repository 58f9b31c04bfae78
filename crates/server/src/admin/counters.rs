//! The counters of this node at one time.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use millrace_node::{Metrics, histogram::Samples, metrics::Value};
use millrace_protocol::Transport;
use millrace_transport::SocketMetrics;
use rustix::time::{ClockId, clock_gettime};
use tokio::time::Instant;

use crate::{memory, metrics::ShardMetrics, pages::Site};

/// Everything that the overview shows, as totals since the start.
#[derive(Clone)]
pub struct Counters {
    pub at: Instant,
    pub messages_in: u64,
    pub messages_out: u64,
    /// Payload bytes of publications.
    pub bytes_in: u64,
    pub bytes_out: u64,
    pub gaps: u64,
    pub refused: u64,
    /// CPU time of the process.
    pub cpu_ns: u64,
    /// Channels with readers.
    pub channels_open: u64,
    /// Memory in bytes, by use.
    pub memory: Vec<(&'static str, u64)>,
    pub transports: Vec<TransportCounters>,
    pub shards: Vec<ShardCounters>,
}

/// Counters of one transport. Both kinds of WebSockets count as one.
#[derive(Clone)]
pub struct TransportCounters {
    pub name: &'static str,
    pub open: u64,
    /// Ages of publications when they were written.
    pub written: Samples,
}

#[derive(Clone)]
pub struct ShardCounters {
    pub cpu_ns: u64,
    pub connections: u64,
    pub messages_in: u64,
    pub messages_out: u64,
    pub pings: u64,
    pub loop_lag: Samples,
    pub turn_time: Samples,
}

impl Counters {
    /// Reads the counters. `history_bytes` is the size of the engine's history. Cost: microseconds, and one read of
    /// `/proc/self/status`.
    pub fn read(site: &Site, history_bytes: u64) -> Self {
        let shards = &site.metrics.shards;
        let sum = |of: &dyn Fn(&ShardMetrics) -> u64| shards.iter().map(of).fold(0, u64::wrapping_add);
        let deliveries = |shard| site.metrics.router.namespaces().deliveries(shard);
        let rss = memory::resident().map(|bytes| ("rss", bytes as u64));
        let kinds = memory_of(shards).chain([("history", history_bytes)]);
        Self {
            at: Instant::now(),
            messages_in: sum(&|shard| value(&shard.delivery.publications)),
            messages_out: (0..shards.len()).map(deliveries).sum(),
            bytes_in: sum(&|shard| value(&shard.delivery.published_bytes)),
            bytes_out: sum(&|shard| value(&shard.sockets.sent_bytes)),
            gaps: sum(&|shard| value(&shard.delivery.gaps)),
            refused: site.limits.refused().map(|(_, count)| count).sum(),
            cpu_ns: process_cpu_ns(),
            channels_open: site.metrics.router.channels() as u64,
            memory: rss.into_iter().chain(kinds).collect(),
            transports: transports(shards),
            shards: shards.iter().enumerate().map(|(id, shard)| ShardCounters::read(shard, deliveries(id))).collect(),
        }
    }
}

impl ShardCounters {
    fn read(ShardMetrics { delivery, sockets }: &ShardMetrics, messages_out: u64) -> Self {
        Self {
            cpu_ns: value(&delivery.cpu_ns),
            connections: sockets.open_readers() as u64,
            messages_in: value(&delivery.publications),
            messages_out,
            pings: value(&sockets.pings),
            loop_lag: delivery.loop_lag.samples(),
            turn_time: delivery.turn_time.samples(),
        }
    }
}

fn value(counter: &AtomicU64) -> u64 {
    counter.load(Relaxed)
}

/// Returns the memory that the shards measure.
fn memory_of(shards: &[ShardMetrics]) -> impl Iterator<Item = (&'static str, u64)> {
    fn sum<M>(shards: &[ShardMetrics], of: fn(&ShardMetrics) -> &M, memory: Value<M>) -> u64 {
        shards.iter().map(|shard| value(memory(of(shard)))).sum()
    }
    let delivery = Metrics::MEMORY.iter().map(|(kind, memory)| (*kind, sum(shards, |shard| &*shard.delivery, *memory)));
    let sockets =
        SocketMetrics::MEMORY.iter().map(|(kind, memory)| (*kind, sum(shards, |shard| &*shard.sockets, *memory)));
    delivery.chain(sockets)
}

fn transports(shards: &[ShardMetrics]) -> Vec<TransportCounters> {
    let mut all: Vec<TransportCounters> = Vec::new();
    for transport in Transport::COUNTED {
        let name = if transport == Transport::Session { Transport::WebSocket } else { transport }.name();
        let open: u64 = shards.iter().map(|shard| shard.sockets.open(transport)).sum();
        let written = Samples::sum(shards.iter().map(|shard| shard.sockets.publish_to_write(transport).samples()));
        match all.iter_mut().find(|known| known.name == name) {
            Some(known) => {
                known.open += open;
                known.written = Samples::sum([known.written.clone(), written]);
            }
            None => all.push(TransportCounters { name, open, written }),
        }
    }
    all
}

fn process_cpu_ns() -> u64 {
    let cpu = clock_gettime(ClockId::ProcessCPUTime);
    cpu.tv_sec as u64 * 1_000_000_000 + cpu.tv_nsec as u64
}
