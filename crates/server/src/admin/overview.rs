//! The overview: what each node does, in one row per node.

use std::sync::atomic::Ordering::Relaxed;

use millrace_protocol::Error;
use serde_json::{Map, Value, json};

use super::{
    Admin,
    nodes::{Gathered, NodeQuestion},
    recorder::{Delivery, Rates, number},
    requests::no_parameters,
};

impl Admin {
    /// Returns the overview of all nodes: `{"nodes": [..]}`.
    pub async fn overview(&self, query: &str) -> Result<Value, Error> {
        no_parameters(query)?;
        let Gathered { answers, missing, .. } = self.gather(&NodeQuestion::Overview {}).await?;
        let rows: Vec<Value> = answers.into_iter().map(|(node, row)| self.row_of(node, row)).collect();
        Ok(Gathered::with_missing(missing, json!({ "nodes": rows })))
    }

    /// Adds the name of the node to its row.
    pub fn row_of(&self, node: String, mut row: Value) -> Value {
        row["is_self"] = (node == self.node).into();
        row["node"] = node.into();
        row
    }

    /// Returns the overview of this node.
    pub fn own_overview(&self) -> Value {
        let mut row = json!({
            "version": env!("CARGO_PKG_VERSION"),
            "uptime_s": self.site.started.elapsed().as_secs(),
            "draining": !self.site.ready.load(Relaxed),
            "congested": self.router.is_congested(),
        });
        let recorder = self.recorder.borrow();
        if let (Some(rates), Some(row)) = (recorder.newest(), row.as_object_mut()) {
            row.append(&mut figures(rates));
        }
        row
    }
}

fn figures(rates: &Rates) -> Map<String, Value> {
    let counters = &rates.counters;
    let connections: Map<_, _> = counters.transports.iter().map(|one| (one.name.to_owned(), one.open.into())).collect();
    let memory = |(kind, bytes): &(&str, u64)| {
        let name = if *kind == "rss" { "rss_bytes" } else { kind };
        (name.to_owned(), Value::from(*bytes))
    };
    let by_transport = counters.transports.iter().zip(&rates.transports);
    let by_transport = by_transport.filter(|(_, delivery)| delivery.per_s > 0.0);
    let by_transport: Map<_, _> = by_transport.map(|(one, delivery)| (one.name.to_owned(), shown(delivery))).collect();
    let shards = counters.shards.iter().zip(&rates.shards).enumerate();
    let shards = shards.map(|(id, (counters, rates))| {
        json!({
            "shard": id, "cpu": number(rates.cpu), "loop_lag_ms": number(rates.loop_lag_ms),
            "connections": counters.connections, "deliveries_per_s": number(rates.messages_out),
        })
    });
    let Value::Object(figures) = json!({
        "connections": connections,
        "messages_in_total": counters.messages_in,
        "messages_out_total": counters.messages_out,
        "messages_in_per_s": number(rates.messages_in),
        "messages_out_per_s": number(rates.messages_out),
        "bytes_in_per_s": number(rates.bytes_in),
        "bytes_out_per_s": number(rates.bytes_out),
        "delivery_p50_ms": number(rates.delivery.p50_ms),
        "delivery_p99_ms": number(rates.delivery.p99_ms),
        "delivery_by_transport": by_transport,
        "refused_per_s": number(rates.refused),
        "gaps_per_s": number(rates.gaps),
        "cpu_cores": number(rates.cpu),
        "memory": counters.memory.iter().map(memory).collect::<Map<_, _>>(),
        "shards": shards.collect::<Vec<_>>(),
        "channels_open": counters.channels_open,
    }) else {
        return Map::new();
    };
    figures
}

fn shown(delivery: &Delivery) -> Value {
    json!({
        "p50_ms": number(delivery.p50_ms), "p99_ms": number(delivery.p99_ms), "per_s": number(delivery.per_s),
    })
}
