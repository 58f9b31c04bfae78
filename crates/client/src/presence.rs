//! Presence: the number of open subscriptions of a channel, and its members. The server keeps the members as a keyed
//! state beside the channel, so [`follow`](crate::state::follow) reads them over any transport.
//!
//! Source: docs/reference/protocol.md, "Presence".

use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;

use crate::{
    http::{BodyError, body, cause, query_value},
    problem::Problem,
    server::Server,
    state::KeyedState,
};

/// Member of a channel. Its key in the roster is its id: the subject of its token, or the id of its connection.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub struct Member {
    /// Number of connections of this member that read the channel, on all nodes.
    pub connections: u64,
    /// Time of joining, in milliseconds since 1970.
    pub since_ms: u64,
    /// Information that the token or the application's back end has given.
    #[serde(default)]
    pub info: Value,
}

/// Reasons why presence is unknown.
#[derive(Debug, thiserror::Error)]
pub enum PresenceError {
    #[error("the server refuses: {0}")]
    Refused(Problem),
    #[error("the server was not reached: {0}")]
    Unreachable(String),
    #[error(transparent)]
    Body(#[from] BodyError),
    #[error("the answer is not JSON with a `count`")]
    Malformed,
}

/// Returns the keyed state that holds the members of a channel.
pub fn roster_channel(channel: &str) -> String {
    format!("{channel}/:members")
}

/// Returns the members in a roster, ordered by id. An entry of another form is omitted.
pub fn members(roster: &KeyedState) -> impl Iterator<Item = (&str, Member)> {
    let member = |entry: &crate::state::Entry| serde_json::from_str(entry.data.get()).ok();
    roster.entries().iter().filter_map(move |(id, entry)| Some((id.as_str(), member(entry)?)))
}

/// Returns the number of open subscriptions of a channel.
///
/// Cost: one request, which `timeout` limits. Errors: see [`PresenceError`].
pub async fn count(
    client: &reqwest::Client,
    server: &Server,
    channel: &str,
    timeout: Duration,
) -> Result<u64, PresenceError> {
    #[derive(Deserialize)]
    struct Answer {
        count: u64,
    }
    let request = server.get(client, &format!("/v1/presence/{}", query_value(channel))).timeout(timeout);
    let response = request.send().await.map_err(|error| PresenceError::Unreachable(cause(&error)))?;
    let status = response.status();
    let answer = body(response).await?;
    match status.is_success() {
        true => serde_json::from_slice(&answer).map(|Answer { count }| count).map_err(|_| PresenceError::Malformed),
        false => Err(PresenceError::Refused(Problem::of(status.as_u16(), &answer))),
    }
}
