use std::{collections::HashMap, time::Duration};

use millrace_conference::rooms::{RoomOrder, RoomSelection};
use millrace_engine::{Deliver as _, NodeAnswer};
use millrace_protocol::{ChannelName, Code, Error, session::Target};
use millrace_transport::{
    Context, Question,
    admin::{ConnectionFilter, ConnectionOrder},
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::{Admin, filter::Filter};
use crate::auth::Revoked;

/// Timeout of a question to a shard.
const SHARDS: Duration = Duration::from_secs(2);
/// Timeout of a question to the other nodes.
const NODES: Duration = Duration::from_secs(3);
/// Stands for all other nodes if the engine does not answer, so that their names are unknown.
const UNKNOWN: &str = "*";

/// A question to every node. Nodes of other versions answer the questions that they know; see [`Filter`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeQuestion {
    /// Lists connections, in order of their ids those after `after`.
    Connections {
        filter: Filter,
        after: Option<String>,
        limit: usize,
        /// `None`: by id.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        sort: Option<ConnectionOrder>,
    },
    /// Lists the connections that lack most publications.
    Slow {
        limit: usize,
        #[serde(default, skip_serializing_if = "Filter::is_empty")]
        filter: Filter,
    },
    /// Lists rooms, in order of their names those after `after`; or describes one room.
    Rooms {
        room: Option<String>,
        after: Option<String>,
        limit: usize,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        contains: Option<String>,
        /// `None`: by name.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        sort: Option<RoomOrder>,
    },
    /// Lists the allocations of the TURN relay with most bytes.
    Relays {
        limit: usize,
    },
    /// Asks for the state of the hooks.
    Hooks {},
    Disconnect {
        filter: Filter,
    },
    /// Ends the subscription to `filter.channel`.
    Unsubscribe {
        filter: Filter,
    },
    Refresh {
        filter: Filter,
        within_s: u64,
    },
    Revoke {
        revoked: Revoked,
        until_s: u64,
    },
    /// Asks for the number of readers of each channel.
    Readers {
        channels: Vec<String>,
    },
    /// Asks for the row of the node in the overview.
    Overview {},
    /// Asks for the row of the node in the list of nodes.
    Node {},
    /// Asks for the threads of the node.
    Threads {},
    /// Asks for the newest events of the node.
    Events {},
    /// Drains the node with this name, or cancels its drain. Other nodes do nothing.
    Drain {
        node: String,
        cancel: bool,
    },
    /// Asks for the state of the webhooks.
    Webhooks {},
    /// Reports channels with new events, which one of the nodes sends; see `millrace_webhooks`.
    WebhooksChanged {
        channels: Vec<String>,
    },
}

/// Answers of all nodes, this one included, in order of their names.
pub struct Gathered {
    pub answers: Vec<(String, Value)>,
    /// Live nodes that have not answered in time, or do not know the question.
    pub missing: Vec<String>,
    /// Times from the question to the answer of each other node.
    pub round_trips: HashMap<String, Duration>,
}

impl Gathered {
    /// Returns the sum of the counts in all answers.
    pub fn count(&self) -> u64 {
        self.answers.iter().filter_map(|(_, answer)| answer["count"].as_u64()).fold(0, u64::saturating_add)
    }

    /// Adds the missing nodes, if there are any, to the answer of a request.
    pub fn with_missing(missing: Vec<String>, mut answer: Value) -> Value {
        if !missing.is_empty() {
            answer["missing"] = missing.into();
        }
        answer
    }
}

impl Admin {
    /// Asks all nodes of the cluster, and answers for this one.
    ///
    /// Errors: those of [`Admin::answer_question`] on this node.
    pub async fn gather(&self, question: &NodeQuestion) -> Result<Gathered, Error> {
        let text = serde_json::to_string(question).map_err(|error| Error::new(Code::Internal, error.to_string()))?;
        let (own, others) = tokio::join!(self.answer_question(question), self.engine.ask_nodes(&text, NODES));
        let answers = vec![(self.node.clone(), own?)];
        let mut gathered = Gathered { answers, missing: Vec::new(), round_trips: HashMap::new() };
        match others {
            Ok(others) => {
                gathered.missing = others.missing;
                for NodeAnswer { node, text, round_trip } in others.answers {
                    match serde_json::from_str::<Value>(&text) {
                        Ok(answer) if answer.is_object() && answer.get("error").is_none() => {
                            gathered.round_trips.insert(node.clone(), round_trip);
                            gathered.answers.push((node, answer));
                        }
                        _ => gathered.missing.push(node),
                    }
                }
            }
            Err(error) => {
                tracing::debug!(%error, "the other nodes cannot be asked");
                gathered.missing = vec![UNKNOWN.into()];
            }
        }
        gathered.answers.sort_by(|(one, _), (other, _)| one.cmp(other));
        gathered.missing.sort();
        Ok(gathered)
    }

    /// Answers the question of another node. A question of a later version, or a failure, is answered with an error, so
    /// that the other node does not wait.
    pub async fn answer_node(&self, question: &str) -> String {
        let answer = match serde_json::from_str(question) {
            Ok(question) => self.answer_question(&question).await,
            Err(_) => Err(Error::new(Code::BadRequest, "unknown question")),
        };
        answer.unwrap_or_else(|error| json!({ "error": error.to_json() })).to_string()
    }

    /// Answers a question for this node.
    ///
    /// Errors: a malformed filter; [`Code::Unavailable`] if a shard is too busy.
    async fn answer_question(&self, question: &NodeQuestion) -> Result<Value, Error> {
        match question {
            NodeQuestion::Connections { filter, after, limit, sort } => {
                self.own_connections(filter, after.as_deref(), *limit, sort.unwrap_or_default()).await
            }
            NodeQuestion::Slow { limit, filter } => self.own_slow(filter, *limit).await,
            NodeQuestion::Rooms { room: Some(room), .. } => self.own_room(room).await,
            NodeQuestion::Rooms { room: None, after, limit, contains, sort } => {
                let (contains, order, after) = (contains.clone(), sort.unwrap_or_default(), after.clone());
                self.own_rooms(RoomSelection { contains, order, after, limit: *limit }).await
            }
            NodeQuestion::Relays { limit } => Ok(self.own_relays(*limit)),
            NodeQuestion::Hooks {} => Ok(self.own_hooks()),
            NodeQuestion::Disconnect { filter } => {
                self.change(filter, |context, filter| context.disconnect(filter)).await
            }
            NodeQuestion::Unsubscribe { filter } => {
                let target = Target::parse(filter.channel.as_deref().unwrap_or_default())?;
                self.change(filter, move |context, filter| context.unsubscribe(filter, &target)).await
            }
            NodeQuestion::Refresh { filter, within_s } => {
                let within_s = *within_s;
                self.change(filter, move |context, filter| context.refresh(filter, within_s)).await
            }
            NodeQuestion::Revoke { revoked, until_s } => {
                self.auth.revoke(revoked.clone(), *until_s)?;
                Ok(json!({ "count": 1 }))
            }
            NodeQuestion::Readers { channels } => {
                let channels = channels.iter().map(|name| ChannelName::parse(name));
                let readers = channels.map(|name| Ok(self.router.readers(&name?)));
                Ok(json!({ "readers": readers.collect::<Result<Vec<u32>, Error>>()? }))
            }
            NodeQuestion::Overview {} => Ok(self.own_overview()),
            NodeQuestion::Node {} => Ok(self.own_node().await),
            NodeQuestion::Threads {} => Ok(self.own_threads()),
            NodeQuestion::Events {} => Ok(self.own_events()),
            NodeQuestion::Drain { node, cancel } => Ok(self.drain_own(node, *cancel)),
            NodeQuestion::Webhooks {} => Ok(json!(self.configured_webhooks()?.status())),
            NodeQuestion::WebhooksChanged { channels } => {
                if let Some(webhooks) = &self.webhooks {
                    let channels = channels.iter().map(|name| ChannelName::parse(name));
                    webhooks.on_changed(&channels.collect::<Result<Vec<_>, Error>>()?);
                }
                Ok(json!({}))
            }
        }
    }

    /// Applies a change to the matching connections of all shards. Returns `{"count"}`.
    async fn change(
        &self,
        filter: &Filter,
        change: impl Fn(&Context, &ConnectionFilter) -> usize + Clone + Send + 'static,
    ) -> Result<Value, Error> {
        let mut count = 0;
        if let Some(filter) = filter.on(&self.node)? {
            for shard in 0..self.shards.len() {
                let (filter, change) = (filter.clone(), change.clone());
                count += self.ask(shard, move |context| change(context, &filter)).await?;
            }
        }
        Ok(json!({ "count": count }))
    }

    /// Runs `question` on a shard and returns its result.
    ///
    /// Errors: [`Code::Unavailable`] if the shard is too busy.
    pub(super) async fn ask<T: Send + 'static>(
        &self,
        shard: usize,
        question: impl FnOnce(&Context) -> T + Send + 'static,
    ) -> Result<T, Error> {
        let busy = || Error::new(Code::Unavailable, format!("shard {shard} is too busy to answer; try again"));
        let (sender, receiver) = oneshot::channel();
        let question: Question = Box::new(move |context| drop(sender.send(question(context))));
        self.shards[shard].try_send(question).map_err(|_| busy())?;
        tokio::time::timeout(SHARDS, receiver).await.ok().and_then(Result::ok).ok_or_else(busy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nodes of other versions must be able to read the questions of this one.
    #[test]
    fn questions_keep_their_form_on_the_wire() {
        let filter = || Filter { subject: Some("ann".into()), ..Filter::default() };
        for (question, text) in [
            (
                NodeQuestion::Connections { filter: filter(), after: None, limit: 5, sort: None },
                r#"{"connections":{"filter":{"subject":"ann"},"after":null,"limit":5}}"#,
            ),
            (
                NodeQuestion::Connections {
                    filter: filter(),
                    after: None,
                    limit: 5,
                    sort: Some(ConnectionOrder::Behind),
                },
                r#"{"connections":{"filter":{"subject":"ann"},"after":null,"limit":5,"sort":"behind"}}"#,
            ),
            (NodeQuestion::Slow { limit: 5, filter: Filter::default() }, r#"{"slow":{"limit":5}}"#),
            (NodeQuestion::Slow { limit: 5, filter: filter() }, r#"{"slow":{"limit":5,"filter":{"subject":"ann"}}}"#),
            (
                NodeQuestion::Rooms { room: None, after: Some("a".into()), limit: 5, contains: None, sort: None },
                r#"{"rooms":{"room":null,"after":"a","limit":5}}"#,
            ),
            (
                NodeQuestion::Rooms {
                    room: None,
                    after: None,
                    limit: 5,
                    contains: Some("a".into()),
                    sort: Some(RoomOrder::Participants),
                },
                r#"{"rooms":{"room":null,"after":null,"limit":5,"contains":"a","sort":"participants"}}"#,
            ),
            (NodeQuestion::Hooks {}, r#"{"hooks":{}}"#),
            (NodeQuestion::Disconnect { filter: filter() }, r#"{"disconnect":{"filter":{"subject":"ann"}}}"#),
            (
                NodeQuestion::Refresh { filter: filter(), within_s: 3 },
                r#"{"refresh":{"filter":{"subject":"ann"},"within_s":3}}"#,
            ),
            (
                NodeQuestion::Revoke { revoked: Revoked::Id("a".into()), until_s: 9 },
                r#"{"revoke":{"revoked":{"jti":"a"},"until_s":9}}"#,
            ),
            (
                NodeQuestion::Revoke { revoked: Revoked::Subject { subject: "a".into(), before_s: 7 }, until_s: 9 },
                r#"{"revoke":{"revoked":{"sub":{"subject":"a","before_s":7}},"until_s":9}}"#,
            ),
            (NodeQuestion::Readers { channels: vec!["a".into()] }, r#"{"readers":{"channels":["a"]}}"#),
            (NodeQuestion::Overview {}, r#"{"overview":{}}"#),
            (NodeQuestion::Node {}, r#"{"node":{}}"#),
            (NodeQuestion::Threads {}, r#"{"threads":{}}"#),
            (NodeQuestion::Events {}, r#"{"events":{}}"#),
            (NodeQuestion::Drain { node: "ab".into(), cancel: false }, r#"{"drain":{"node":"ab","cancel":false}}"#),
            (NodeQuestion::Webhooks {}, r#"{"webhooks":{}}"#),
            (
                NodeQuestion::WebhooksChanged { channels: vec!["a".into()] },
                &millrace_webhooks::changed_question(&[ChannelName::parse("a").unwrap()]),
            ),
        ] {
            assert_eq!(serde_json::to_string(&question).unwrap(), text);
            assert_eq!(serde_json::from_str::<NodeQuestion>(text).unwrap(), question);
            assert!(ChannelName::parse(text).is_err(), "a question must not be a channel name");
        }
        for unknown in [
            r#"{"dance":{}}"#,
            r#"{"disconnect":{"filter":{"subject":"ann","country":"x"}}}"#,
            r#"{"disconnect":{}}"#,
            "[]",
            "",
            "{",
            r#"{"readers":{"channels":[1]}}"#,
        ] {
            assert!(serde_json::from_str::<NodeQuestion>(unknown).is_err(), "{unknown}");
        }
    }
}
