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
        cut(&mut relays, &mut rest, limit);
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

/// Cuts a list of allocations of all nodes, and adds the counts of what is cut to the rest of its node.
fn cut(relays: &mut Vec<Value>, rest: &mut [Value], limit: usize) {
    for row in relays.drain(relays.len().min(limit)..) {
        if let Some(Value::Object(sums)) = rest.iter_mut().find(|rest| rest["node"] == row["node"]) {
            for (name, sum) in sums.iter_mut().filter(|(name, _)| *name != "node") {
                *sum = (sum.as_u64().unwrap_or(0) + row[name].as_u64().unwrap_or(0)).into();
            }
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocations_that_are_cut_count_in_the_rest_of_their_node() {
        let row = |node: &str, bytes: u64| json!({ "node": node, "id": 7, "bytes_to_peers": bytes });
        let rest = |node: &str, bytes: u64| json!({ "node": node, "bytes_to_peers": bytes });
        let mut relays = vec![row("a", 30), row("b", 20), row("a", 10), row("b", 5)];
        let mut rests = [rest("a", 1), rest("b", 2)];
        cut(&mut relays, &mut rests, 9);
        assert_eq!((relays.len(), &rests), (4, &[rest("a", 1), rest("b", 2)]));
        cut(&mut relays, &mut rests, 2);
        assert_eq!(relays, [row("a", 30), row("b", 20)]);
        assert_eq!(rests, [rest("a", 11), rest("b", 7)]);
    }
}
