//! Pages of the roster of a channel: `GET /v1/presence/{channel}?members`, and the command `presence` of a session.
//!
//! Source: docs/reference/protocol.md, "Presence".

use millrace_delivery::{PageLimit, Part};
use millrace_node::{Metrics, Shard, Sockets};
use millrace_protocol::{
    ChannelName, Code, Error, ListEntry, Position, Publication, Since,
    session::{Policy, RosterPage},
};
use serde_json::{Value, json};

use super::ANSWER_BYTES_MAX;

/// One page of a roster.
#[derive(Debug)]
pub struct MembersPage {
    count: u32,
    members: Vec<Member>,
    /// Position of the end of the page. After the last page, the changes begin here.
    pub position: Position,
    next: Option<Since>,
    /// The page begins the roster anew, because the previous page can no longer be continued.
    restart: bool,
}

/// A member, or one that left while the pages were read: its entry has no connection.
#[derive(Debug)]
struct Member {
    id: String,
    entry: ListEntry,
}

/// Reads a page of the roster of a channel.
///
/// Errors: `bad_request` if the channel has no roster; those of the engine.
pub async fn page<S: Sockets>(
    shard: &Shard<S>,
    channel: &ChannelName,
    RosterPage { since, limit }: RosterPage,
) -> Result<MembersPage, Error> {
    let has_roster = shard.observer().is_some_and(|observer| observer.has_roster(channel));
    let roster = channel.members().filter(|_| has_roster).ok_or_else(no_roster)?;
    let limit = PageLimit { count: limit, bytes: ANSWER_BYTES_MAX };
    let page = shard.engine.page(&roster, since, Policy::Every, limit).await?;
    let count = shard.engine.presence(channel).await?;
    if page.gap.is_some() {
        Metrics::add(&shard.metrics.gaps, 1);
    }
    let member = |publication: &Publication| {
        let id = publication.key.as_deref()?.to_owned();
        let left = publication.is_deletion.then(ListEntry::default);
        Some(Member { id, entry: left.or_else(|| ListEntry::decode(publication.data()))? })
    };
    Ok(MembersPage {
        count,
        members: page.publications.iter().filter_map(member).collect(),
        position: page.end,
        next: matches!(page.part, Part::State { .. }).then(|| page.next()),
        restart: page.gap.is_some(),
    })
}

impl MembersPage {
    /// Returns `{"channel"?, "count", "members": [{"id", "connections", "since_ms", "info"?}], "position", "next"?,
    /// "restart"?}`.
    pub fn to_json(&self, channel: Option<&ChannelName>) -> Value {
        let members: Vec<Value> = self.members.iter().map(Member::to_json).collect();
        let mut page = json!({ "count": self.count, "members": members, "position": self.position.to_string() });
        if let Some(channel) = channel {
            page["channel"] = channel.as_str().into();
        }
        if let Some(next) = self.next {
            page["next"] = next.to_string().into();
        }
        if self.restart {
            page["restart"] = true.into();
        }
        page
    }
}

impl Member {
    fn to_json(&self) -> Value {
        let Self { id, entry } = self;
        if entry.nodes.is_empty() {
            return json!({ "id": id, "connections": 0 });
        }
        let mut member = json!({ "id": id, "connections": entry.connections(), "since_ms": entry.since_ms });
        if let Some(info) = entry.info.as_deref().and_then(|info| serde_json::from_str::<Value>(info).ok()) {
            member["info"] = info;
        }
        member
    }
}

/// Returns the error for a channel without a roster.
fn no_roster() -> Error {
    let detail = "the channel has no roster: set `roster = true` in its namespace; its name has at most 246 bytes";
    Error::new(Code::BadRequest, detail)
}
