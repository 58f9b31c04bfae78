//! The nodes of the cluster: their state, their round trips, and their drain.

use std::{sync::atomic::Ordering::Relaxed, time::Duration};

use millrace_protocol::{ChannelName, Code, Error, INTERNAL};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::time::{Instant, timeout};

use super::{
    Admin,
    nodes::{Gathered, NodeQuestion},
    recorder::number,
    requests::{decode, no_parameters},
};

/// Timeout of the request that measures the round trip to the engine.
const ENGINE: Duration = Duration::from_secs(2);

/// Drain of a node by an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrainState {
    Serving,
    /// The node reports that it is not ready, and waits for `drain.announce`. The drain can be cancelled.
    Announced,
    /// The readers are being asked to move.
    Moving,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DrainBody {
    node: String,
    #[serde(default)]
    cancel: bool,
}

impl Admin {
    /// Returns the nodes: `{"nodes": [..]}`.
    pub async fn nodes(&self, query: &str) -> Result<Value, Error> {
        no_parameters(query)?;
        let Gathered { answers, missing, round_trips } = self.gather(&NodeQuestion::Node {}).await?;
        let row = |(node, mut row): (String, Value)| {
            let round_trip = round_trips.get(&node).map_or(f64::NAN, Duration::as_secs_f64);
            row["round_trip_ms"] = number(round_trip * 1000.0);
            self.row_of(node, row)
        };
        let rows: Vec<Value> = answers.into_iter().map(row).collect();
        Ok(Gathered::with_missing(missing, json!({ "nodes": rows })))
    }

    /// Returns the row of this node.
    pub async fn own_node(&self) -> Value {
        let engine_round_trip_s = self.engine_round_trip_s().await.unwrap_or(f64::NAN);
        let shards = &self.site.metrics.shards;
        let readers: usize = shards.iter().map(|shard| shard.sockets.open_readers()).sum();
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "uptime_s": self.site.started.elapsed().as_secs(),
            "draining": !self.site.ready.load(Relaxed),
            "connections": readers,
            "engine": self.site.engine_name,
            "engine_up": self.engine.is_up(),
            "engine_round_trip_ms": number(engine_round_trip_s * 1000.0),
            "channels_open": self.router.channels(),
        })
    }

    /// Measures a request to the engine: the end of a log that no client reads.
    async fn engine_round_trip_s(&self) -> Option<f64> {
        let channel = ChannelName::parse(&format!("{INTERNAL}/revocations")).ok()?;
        let began = Instant::now();
        timeout(ENGINE, self.engine.newest(&channel)).await.ok()?.ok()?;
        Some(began.elapsed().as_secs_f64())
    }

    /// Drains a node, or cancels its drain before its readers are asked to move.
    ///
    /// Errors: [`Code::NotFound`] for an unknown node; [`Code::Conflict`] if a drain cannot be cancelled any more.
    pub async fn drain(&self, body: Map<String, Value>) -> Result<Value, Error> {
        let DrainBody { node, cancel } = decode(body)?;
        let Gathered { answers, missing, .. } =
            self.gather(&NodeQuestion::Drain { node: node.clone(), cancel }).await?;
        let Some((_, answer)) = answers.into_iter().find(|(name, _)| *name == node) else {
            let detail = match missing.is_empty() {
                true => "no live node has this name; `GET /v1/admin/nodes` lists them".to_owned(),
                false => format!("the node has not answered; these are missing: {}", missing.join(", ")),
            };
            return Err(Error::new(Code::NotFound, detail));
        };
        match answer["refused"].as_str() {
            Some(refused) => Err(Error::new(Code::Conflict, refused)),
            None => {
                tracing::info!(node, cancel, "an operator drains a node");
                Ok(json!({ "draining": answer["draining"] }))
            }
        }
    }

    /// Begins or cancels the drain of this node if it is the named one.
    pub fn drain_own(&self, node: &str, cancel: bool) -> Value {
        if node != self.node {
            return json!({});
        }
        let mut refused = false;
        self.drain.send_if_modified(|state| {
            let before = *state;
            match (before, cancel) {
                (DrainState::Serving, false) => *state = DrainState::Announced,
                (DrainState::Announced, true) => *state = DrainState::Serving,
                (DrainState::Moving, true) => refused = true,
                _ => {}
            }
            *state != before
        });
        match refused {
            true => json!({ "refused": "the readers are being asked to move already; the drain cannot be cancelled" }),
            false => json!({ "draining": *self.drain.borrow() != DrainState::Serving }),
        }
    }
}
