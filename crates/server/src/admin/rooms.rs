use std::{rc::Rc, time::Duration};

use millrace_conference::{Conference, Question, rooms::RoomName};
use millrace_protocol::{Code, Error};
use millrace_transport::http::Query;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::{
    Admin,
    nodes::{Gathered, NodeQuestion},
    requests::limit,
};

/// Timeout of a question to the rooms of a shard.
const WAIT: Duration = Duration::from_secs(2);

impl Admin {
    /// Lists the rooms of all nodes; with `room` describes one room, its participants and tracks.
    pub async fn rooms(&self, query: &str) -> Result<Value, Error> {
        let query = Query::parse_text(query, &["room", "after", "limit"], &[])?;
        let text = |name: &str| query.get(name).map(str::to_owned);
        if let Some(room) = text("room") {
            RoomName::parse(&room)?;
            return self.room(room).await;
        }
        let (after, limit) = (text("after"), limit(&query)?);
        let Gathered { answers, missing, .. } = self.gather(&NodeQuestion::Rooms { room: None, after, limit }).await?;
        let (mut rooms, mut more, mut total) = (Vec::new(), false, 0);
        for (_, mut answer) in answers {
            total += answer["total"].as_u64().unwrap_or(0);
            more |= answer["more"] == true;
            if let Some(Value::Array(of_node)) = answer.get_mut("rooms").map(Value::take) {
                rooms.extend(of_node);
            }
        }
        let order = |row: &Value| (row["room"].as_str().map(str::to_owned), row["node"].as_str().map(str::to_owned));
        rooms.sort_by_cached_key(order);
        more |= rooms.len() > limit;
        rooms.truncate(limit);
        Ok(Gathered::with_missing(missing, json!({ "rooms": rooms, "more": more, "total": total })))
    }

    /// Describes a room, on every node that has one with this name.
    async fn room(&self, room: String) -> Result<Value, Error> {
        let question = NodeQuestion::Rooms { room: Some(room), after: None, limit: 1 };
        let Gathered { answers, missing, .. } = self.gather(&question).await?;
        let mut rooms = Vec::new();
        for (_, mut answer) in answers {
            if let Some(Value::Array(of_node)) = answer.get_mut("rooms").map(Value::take) {
                rooms.extend(of_node);
            }
        }
        Ok(Gathered::with_missing(missing, json!({ "rooms": rooms })))
    }

    /// Answers [`NodeQuestion::Rooms`] for the rooms of this node.
    pub(super) async fn own_rooms(&self, after: Option<&str>, limit: usize) -> Result<Value, Error> {
        let (mut rooms, mut total) = (Vec::new(), 0);
        for shard in 0..self.rooms.len() {
            let after = after.map(str::to_owned);
            let ask = move |conference: &Rc<Conference>| conference.rooms(after.as_deref(), limit.saturating_add(1));
            let (of_shard, count) = self.ask_rooms(shard, ask).await?;
            rooms.extend(of_shard);
            total += count;
        }
        rooms.sort_by(|a, b| a.room.cmp(&b.room));
        let more = rooms.len() > limit;
        rooms.truncate(limit);
        let row = |summary| {
            let mut row = json!(summary);
            row["node"] = self.node.as_str().into();
            row
        };
        let rooms: Vec<Value> = rooms.iter().map(row).collect();
        Ok(json!({ "rooms": rooms, "more": more, "total": total }))
    }

    /// Answers [`NodeQuestion::Rooms`] for one room.
    pub(super) async fn own_room(&self, room: &str) -> Result<Value, Error> {
        let name = RoomName::parse(room)?;
        let shard = Conference::shard_of(&name, self.rooms.len());
        let found = self.ask_rooms(shard, move |conference| conference.room(&name)).await?;
        let rooms: Vec<Value> = found
            .into_iter()
            .map(|mut state| {
                state["room"] = room.into();
                state["node"] = self.node.as_str().into();
                state
            })
            .collect();
        Ok(json!({ "rooms": rooms }))
    }

    /// Runs `question` on the rooms of a shard and returns its result.
    ///
    /// Errors: [`Code::Unavailable`] if the shard is too busy.
    async fn ask_rooms<T: Send + 'static>(
        &self,
        shard: usize,
        question: impl FnOnce(&Rc<Conference>) -> T + Send + 'static,
    ) -> Result<T, Error> {
        let busy = || Error::new(Code::Unavailable, format!("shard {shard} is too busy to answer; try again"));
        let (sender, receiver) = oneshot::channel();
        let question: Question = Box::new(move |conference| drop(sender.send(question(conference))));
        self.rooms.get(shard).ok_or_else(busy)?.try_send(question).map_err(|_| busy())?;
        tokio::time::timeout(WAIT, receiver).await.ok().and_then(Result::ok).ok_or_else(busy)
    }
}
