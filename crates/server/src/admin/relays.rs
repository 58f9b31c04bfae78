use std::net::SocketAddr;

use millrace_conference::turn::{AllocationRow, Client, Counts};
use millrace_protocol::Error;
use millrace_transport::http::Query;
use serde_json::{Value, json};

use super::{
    Admin,
    nodes::{Gathered, NodeQuestion},
    requests::limit,
};

impl Admin {
    /// Lists the allocations of the TURN relays of all nodes, those with most bytes first.
    pub async fn relays(&self, query: &str) -> Result<Value, Error> {
        let query = Query::parse_text(query, &["limit"], &[])?;
        let limit = limit(&query)?;
        let Gathered { answers, missing, .. } = self.gather(&NodeQuestion::Relays { limit }).await?;
        let (mut relays, mut rest, mut total) = (Vec::new(), Vec::new(), 0);
        for (node, mut answer) in answers {
            total += answer["total"].as_u64().unwrap_or(0);
            let mut others = answer["rest"].take();
            if others.is_object() {
                others["node"] = node.as_str().into();
                rest.push(others);
            }
            if let Some(Value::Array(of_node)) = answer.get_mut("relays").map(Value::take) {
                relays.extend(of_node.into_iter().map(|mut row| {
                    row["node"] = node.as_str().into();
                    row
                }));
            }
        }
        relays.sort_by_key(|row| std::cmp::Reverse(bytes(row)));
        relays.truncate(limit);
        let answer = json!({ "relays": relays, "rest": rest, "total": total });
        Ok(Gathered::with_missing(missing, answer))
    }

    /// Answers [`NodeQuestion::Relays`] for this node. `rest`: the sum of the allocations that are not listed, so that
    /// all rows and the rest together are the totals of `/metrics`.
    pub(super) fn own_relays(&self, limit: usize) -> Value {
        let Some(metrics) = &self.site.turn else { return json!({ "relays": [], "total": 0 }) };
        let (mut rows, mut rest) = metrics.registry.read();
        let total = rows.iter().filter(|row| !row.has_ended).count();
        rows.sort_by_key(|row| std::cmp::Reverse(row.counts.bytes_to_peers + row.counts.bytes_to_clients));
        let unlisted = rows.split_off(rows.len().min(limit));
        unlisted.iter().for_each(|row| rest += row.counts);
        json!({ "relays": rows.iter().map(row).collect::<Vec<_>>(), "rest": counts(&rest), "total": total })
    }
}

fn bytes(row: &Value) -> u64 {
    ["bytes_to_peers", "bytes_to_clients"].iter().filter_map(|name| row[*name].as_u64()).sum()
}

fn row(allocation: &AllocationRow) -> Value {
    let (address, transport): (SocketAddr, &str) = match allocation.client {
        Client::Datagram(address) => (address, "udp"),
        Client::Stream(_, address) => (address, "stream"),
    };
    let mut row = counts(&allocation.counts);
    row["id"] = allocation.id.into();
    row["user"] = (*allocation.user).into();
    row["client"] = address.to_string().into();
    row["transport"] = transport.into();
    row["relayed"] = allocation.relayed.to_string().into();
    row["began_ms"] = allocation.began_ms.into();
    row["ended"] = allocation.has_ended.into();
    row
}

fn counts(counts: &Counts) -> Value {
    let Counts { datagrams_to_peers, bytes_to_peers, datagrams_to_clients, bytes_to_clients, over_quota } = counts;
    json!({
        "datagrams_to_peers": datagrams_to_peers,
        "bytes_to_peers": bytes_to_peers,
        "datagrams_to_clients": datagrams_to_clients,
        "bytes_to_clients": bytes_to_clients,
        "over_quota": over_quota,
    })
}
