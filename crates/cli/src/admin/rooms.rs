//! `millrace admin rooms`: rooms, and one room with its participants and tracks.

use clap::Args as ClapArgs;
use serde_json::Value;

use super::{
    request::{Pages, To, list, report_missing, text},
    table::table,
};
use crate::output;

#[derive(ClapArgs)]
pub struct RoomsArgs {
    /// Show this room as JSON, with its participants and tracks
    #[arg(long, value_name = "NAME", conflicts_with_all = ["contains", "limit", "after", "all"])]
    room: Option<String>,
    /// List rooms with this text in their names; upper and lower case are the same
    #[arg(long, value_name = "TEXT")]
    contains: Option<String>,
    #[command(flatten)]
    pages: Pages,
    #[command(flatten)]
    to: To,
}

pub async fn rooms(RoomsArgs { room, contains, pages, to }: RoomsArgs) -> anyhow::Result<()> {
    let Some(room) = room else {
        return list(to, "rooms", "rooms", "room", vec![("contains", contains)], pages, |rooms| {
            let row =
                |room: &Value| ["room", "node", "topology", "participants", "members"].map(|field| text(room, field));
            table(["ROOM", "NODE", "TOPOLOGY", "PARTICIPANTS", "MEDIA"], rooms.iter().map(row))
        })
        .await;
    };
    let answer = to.connect()?.get("rooms", [("room", Some(room.as_str()))].into_iter()).await?;
    report_missing(&answer);
    let found: Vec<&Value> = answer["rooms"].as_array().into_iter().flatten().collect();
    anyhow::ensure!(!found.is_empty(), "no node has the room {room}");
    Ok(found.iter().try_for_each(output::line)?)
}
