use millrace_hooks::EndpointState;
use millrace_protocol::Error;
use serde_json::{Value, json};

use super::{
    Admin,
    nodes::{Gathered, NodeQuestion},
    requests::no_parameters,
};

impl Admin {
    /// Returns the state of the hooks on each node: one row per hook and URL.
    pub async fn hooks_of_nodes(&self, query: &str) -> Result<Value, Error> {
        no_parameters(query)?;
        let Gathered { answers, missing, .. } = self.gather(&NodeQuestion::Hooks {}).await?;
        let mut hooks = Vec::new();
        for (node, mut answer) in answers {
            let Some(Value::Array(of_node)) = answer.get_mut("hooks").map(Value::take) else { continue };
            hooks.extend(of_node.into_iter().map(|mut row| {
                row["node"] = node.as_str().into();
                row
            }));
        }
        Ok(Gathered::with_missing(missing, json!({ "hooks": hooks })))
    }

    /// Answers [`NodeQuestion::Hooks`] for this node.
    pub(super) fn own_hooks(&self) -> Value {
        let endpoints = self.hooks.as_ref().map(|hooks| hooks.endpoints()).unwrap_or_default();
        json!({ "hooks": endpoints.iter().map(row).collect::<Vec<Value>>() })
    }
}

fn row(endpoint: &EndpointState) -> Value {
    let mut row = json!({
        "hook": endpoint.hook.name(),
        "url": endpoint.url,
        "breaker": endpoint.breaker.name(),
        "requests_total": endpoint.requests_total,
        "failures_total": endpoint.failures_total,
        "cache_hits_total": endpoint.cached_total,
    });
    for (name, value) in [("latency_p50_ms", endpoint.latency_p50_ms), ("latency_p99_ms", endpoint.latency_p99_ms)] {
        if let Some(value) = value {
            row[name] = ((value * 10.0).round() / 10.0).into();
        }
    }
    row
}
