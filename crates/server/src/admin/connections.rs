//! The list of connections, and the list of slow readers.

use millrace_protocol::{Code, Error};
use millrace_transport::{
    admin::{Connection, ConnectionKey, ConnectionOrder, Scanned, Selection},
    http::Query,
};
use serde_json::{Value, json};

use super::{
    Admin,
    filter::{ConnectionId, Filter},
    nodes::{Gathered, NodeQuestion},
    requests::limit,
};

/// Parameters that select connections.
const FILTERS: [&str; 5] = ["id", "subject", "address", "transport", "channel"];
/// Maximum size of a list of connections in the answer of one node, in bytes. A list that is cut has `"more": true`.
const LIST_BYTES_MAX: usize = 256 * 1024;

impl Admin {
    /// Lists open connections of all nodes.
    pub async fn connections(&self, query: &str) -> Result<Value, Error> {
        let query = Query::parse_text(query, &[&FILTERS[..], &["sort", "after", "limit"]].concat(), &[])?;
        let filter = filter(&query)?;
        let after = query.get("after").map(str::to_owned);
        let (limit, order) = (limit(&query)?, order(query.get("sort"))?);
        if let Some(after) = &after {
            after.parse::<ConnectionId>()?;
            if order != ConnectionOrder::Id {
                let detail = "`after` continues the order of ids; omit `sort`, or raise `limit`";
                return Err(Error::new(Code::BadRequest, detail));
            }
        }
        let sort = (order != ConnectionOrder::Id).then_some(order);
        let Gathered { answers, missing, .. } =
            self.gather(&NodeQuestion::Connections { filter, after, limit, sort }).await?;
        let (mut connections, mut more, mut total) = (Vec::new(), false, 0);
        for (_, mut answer) in answers {
            total += answer["total"].as_u64().unwrap_or(0);
            // In the order of ids, the rest of a node comes before the connections of the next one.
            if more && order == ConnectionOrder::Id {
                continue;
            }
            if let Some(Value::Array(of_node)) = answer.get_mut("connections").map(Value::take) {
                connections.extend(of_node);
            }
            more |= answer["more"] == true || connections.len() > limit;
        }
        let rank = |row: &Value| row[rank_field(order)].as_u64().unwrap_or(0);
        if order != ConnectionOrder::Id {
            connections.sort_by_key(|row| std::cmp::Reverse(rank(row)));
        }
        connections.truncate(limit);
        Ok(Gathered::with_missing(missing, json!({ "connections": connections, "more": more, "total": total })))
    }

    /// Lists the matching readers that lack most publications, on all nodes.
    pub async fn slow(&self, query: &str) -> Result<Value, Error> {
        let query = Query::parse_text(query, &[&FILTERS[..], &["limit"]].concat(), &[])?;
        let (filter, limit) = (filter(&query)?, limit(&query)?);
        let Gathered { answers, missing, .. } = self.gather(&NodeQuestion::Slow { limit, filter }).await?;
        let (mut readers, mut total) = (Vec::new(), 0);
        for (_, mut answer) in answers {
            total += answer["total"].as_u64().unwrap_or(0);
            if let Some(Value::Array(of_node)) = answer.get_mut("readers").map(Value::take) {
                readers.extend(of_node);
            }
        }
        let rank = |row: &Value| (row["behind"].as_u64(), row["behind_bytes"].as_u64());
        readers.sort_by_key(|row| std::cmp::Reverse(rank(row)));
        readers.truncate(limit);
        Ok(Gathered::with_missing(missing, json!({ "readers": readers, "total": total })))
    }

    /// Answers [`NodeQuestion::Connections`] for this node.
    pub(super) async fn own_connections(
        &self,
        filter: &Filter,
        after: Option<&str>,
        limit: usize,
        order: ConnectionOrder,
    ) -> Result<Value, Error> {
        let after: Option<ConnectionId> = after.map(str::parse).transpose()?;
        let Some(filter) = filter.on(&self.node)? else {
            return Ok(json!({ "connections": [], "more": false, "total": 0 }));
        };
        let selection = Selection { filter, order, limit: limit.saturating_add(1), ..Selection::default() };
        let selection = match after {
            // All connections of this node come before.
            Some(after) if after.node > self.node => Selection { limit: 0, ..selection },
            Some(after) if after.node == self.node => Selection { after: Some(after.key), ..selection },
            _ => selection,
        };
        let (found, total) = self.select(&selection).await?;
        let mut more = found.len() > limit;
        let (mut connections, mut bytes) = (Vec::new(), 0);
        for connection in found.into_iter().take(limit) {
            let mut shown = json!(connection);
            shown["id"] = self.id_of(&connection).into();
            shown["node"] = self.node.as_str().into();
            bytes += shown.to_string().len();
            if bytes > LIST_BYTES_MAX && !connections.is_empty() {
                more = true;
                break;
            }
            connections.push(shown);
        }
        Ok(json!({ "connections": connections, "more": more, "total": total }))
    }

    /// Answers [`NodeQuestion::Slow`] for this node.
    pub(super) async fn own_slow(&self, filter: &Filter, limit: usize) -> Result<Value, Error> {
        let Some(filter) = filter.on(&self.node)? else { return Ok(json!({ "readers": [], "total": 0 })) };
        let selection = Selection { filter, order: ConnectionOrder::Behind, is_behind: true, after: None, limit };
        let (found, total) = self.select(&selection).await?;
        let readers: Vec<Value> = found.iter().map(|connection| self.slow_reader(connection)).collect();
        Ok(json!({ "readers": readers, "total": total }))
    }

    fn slow_reader(&self, connection: &Connection) -> Value {
        let lag = &connection.lag;
        let mut row = json!({
            "id": self.id_of(connection), "node": self.node, "transport": connection.transport,
            "channels": lag.channels, "behind": lag.behind, "behind_bytes": lag.bytes,
            "since_ms": u64::from(lag.since_s.unwrap_or(0)) * 1000, "blocked": lag.is_blocked, "gaps": lag.gaps,
        });
        let text = |name: &str, value: Option<String>, row: &mut Value| {
            if let Some(value) = value {
                row[name] = value.into();
            }
        };
        text("subject", connection.subject.clone(), &mut row);
        text("address", connection.address.map(|address| address.to_string()), &mut row);
        text("for", connection.client.map(|client| client.to_string()), &mut row);
        text("channel", lag.furthest.as_ref().map(|(channel, _)| channel.to_string()), &mut row);
        text("policy", connection.policy.map(str::to_owned), &mut row);
        row
    }

    fn id_of(&self, connection: &Connection) -> String {
        ConnectionId { node: self.node.clone(), key: connection.key }.to_string()
    }

    /// Returns the selected connections of all shards in their order, and the number of all that match. The shards
    /// scan their connections in parts, so that they serve clients meanwhile.
    async fn select(&self, selection: &Selection) -> Result<(Vec<Connection>, u64), Error> {
        let mut all = Scanned::default();
        for shard in 0..self.shards.len() {
            let mut slot = Some(0);
            while let Some(first) = slot {
                let of_shard = selection.clone();
                let part = self.ask(shard, move |context| context.scan(&of_shard, first)).await?;
                all.add(part, selection.limit);
                slot = all.next;
            }
        }
        let keys: Vec<ConnectionKey> = all.selected.iter().map(|ranked| ranked.key).collect();
        let mut described = Vec::with_capacity(keys.len());
        for shard in 0..self.shards.len() {
            let of_shard: Vec<ConnectionKey> = keys.iter().copied().filter(|key| key.shard == shard).collect();
            if !of_shard.is_empty() {
                described.extend(self.ask(shard, move |context| context.describe(&of_shard)).await?);
            }
        }
        described.sort_by_cached_key(|connection| keys.iter().position(|key| *key == connection.key));
        Ok((described, all.matching))
    }
}

/// Returns the filter that the parameters of a list make.
///
/// Errors: [`Code::BadRequest`] for an address that is none.
fn filter(query: &Query<'_>) -> Result<Filter, Error> {
    let text = |name: &str| query.get(name).map(str::to_owned);
    let address = query.get("address").map(|address| {
        address.parse().map_err(|_| Error::new(Code::BadRequest, "`address` is an IP address without a port"))
    });
    Ok(Filter {
        id: text("id"),
        subject: text("subject"),
        address: address.transpose()?,
        transport: text("transport"),
        channel: text("channel"),
    })
}

/// Returns the order that the parameter `sort` names.
fn order(sort: Option<&str>) -> Result<ConnectionOrder, Error> {
    let Some(sort) = sort else { return Ok(ConnectionOrder::default()) };
    ConnectionOrder::ALL.into_iter().find(|order| order.name() == sort).ok_or_else(|| {
        let known = ConnectionOrder::ALL.map(ConnectionOrder::name).join(", ");
        Error::new(Code::BadRequest, format!("unknown `sort`; the orders are {known}"))
    })
}

/// Returns the field of a row by which an order compares.
fn rank_field(order: ConnectionOrder) -> &'static str {
    match order {
        ConnectionOrder::Id => "id",
        ConnectionOrder::Behind => "behind",
        ConnectionOrder::Bytes => "bytes_out",
        ConnectionOrder::Opened => "opened_ms",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_order_names_the_known_ones() {
        assert_eq!(order(None), Ok(ConnectionOrder::Id));
        assert_eq!(order(Some("bytes")), Ok(ConnectionOrder::Bytes));
        let refused = order(Some("<b>")).unwrap_err();
        assert!(refused.code == Code::BadRequest && refused.detail.contains("id, behind, bytes, opened"), "{refused}");
    }
}
