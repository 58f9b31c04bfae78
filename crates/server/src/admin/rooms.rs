use std::{cmp::Reverse, rc::Rc, time::Duration};

use millrace_conference::{
    Conference, Question,
    rooms::{RoomName, RoomOrder, RoomSelection},
};
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
        let query = Query::parse_text(query, &["room", "contains", "sort", "after", "limit"], &[])?;
        let text = |name: &str| query.get(name).map(str::to_owned);
        if let Some(room) = text("room") {
            RoomName::parse(&room)?;
            return self.room(room).await;
        }
        let (contains, after) = (text("contains"), text("after"));
        let (limit, order) = (limit(&query)?, order(query.get("sort"))?);
        if after.is_some() && order != RoomOrder::Name {
            let detail = "`after` continues the order of names; omit `sort`, or raise `limit`";
            return Err(Error::new(Code::BadRequest, detail));
        }
        let sort = (order != RoomOrder::Name).then_some(order);
        let question = NodeQuestion::Rooms { room: None, after, limit, contains, sort };
        let Gathered { answers, missing, .. } = self.gather(&question).await?;
        let (mut rooms, mut more, mut total) = (Vec::new(), false, 0);
        for (_, mut answer) in answers {
            total += answer["total"].as_u64().unwrap_or(0);
            more |= answer["more"] == true;
            if let Some(Value::Array(of_node)) = answer.get_mut("rooms").map(Value::take) {
                rooms.extend(of_node);
            }
        }
        let mut end = limit.min(rooms.len());
        let name = |row: &Value| (row["room"].as_str().map(str::to_owned), row["node"].as_str().map(str::to_owned));
        match order {
            RoomOrder::Name => {
                rooms.sort_by_cached_key(name);
                end = page_end(&rooms, limit);
            }
            RoomOrder::Participants => {
                rooms.sort_by_cached_key(|row| (Reverse(row["participants"].as_u64()), name(row)));
            }
        }
        more |= rooms.len() > end;
        rooms.truncate(end);
        Ok(Gathered::with_missing(missing, json!({ "rooms": rooms, "more": more, "total": total })))
    }

    /// Describes a room, on every node that has one with this name.
    async fn room(&self, room: String) -> Result<Value, Error> {
        let question = NodeQuestion::Rooms { room: Some(room), after: None, limit: 1, contains: None, sort: None };
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
    pub(super) async fn own_rooms(&self, selection: RoomSelection) -> Result<Value, Error> {
        let (mut rooms, mut total) = (Vec::new(), 0);
        for shard in 0..self.rooms.len() {
            let of_shard = RoomSelection { limit: selection.limit.saturating_add(1), ..selection.clone() };
            let ask = move |conference: &Rc<Conference>| conference.rooms(&of_shard);
            let (of_shard, count) = self.ask_rooms(shard, ask).await?;
            rooms.extend(of_shard);
            total += count;
        }
        match selection.order {
            RoomOrder::Name => rooms.sort_by(|a, b| a.room.cmp(&b.room)),
            RoomOrder::Participants => {
                rooms.sort_by(|a, b| b.participants.cmp(&a.participants).then_with(|| a.room.cmp(&b.room)));
            }
        }
        let more = rooms.len() > selection.limit;
        rooms.truncate(selection.limit);
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

/// Returns the number of rows of a page in the order of names. The next page begins after the name of the last row, so
/// a room of several nodes is on one page, even if the page then exceeds the limit.
fn page_end(rooms: &[Value], limit: usize) -> usize {
    let is_split = |end: &usize| *end > 0 && *end < rooms.len() && rooms[*end - 1]["room"] == rooms[*end]["room"];
    (limit.min(rooms.len())..).find(|end| !is_split(end)).unwrap_or(limit)
}

/// Returns the order that the parameter `sort` names.
fn order(sort: Option<&str>) -> Result<RoomOrder, Error> {
    match sort {
        None | Some("name") => Ok(RoomOrder::Name),
        Some("participants") => Ok(RoomOrder::Participants),
        Some(_) => Err(Error::new(Code::BadRequest, "unknown `sort`; the orders are name, participants")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_does_not_split_a_room_of_several_nodes() {
        let rooms = ["a", "b", "b", "b", "c"].map(|room| json!({ "room": room }));
        assert_eq!([0, 1, 2, 3, 4, 5, 9].map(|limit| page_end(&rooms, limit)), [0, 1, 4, 4, 4, 5, 5]);
        assert_eq!(page_end(&[], 3), 0);
    }
}
