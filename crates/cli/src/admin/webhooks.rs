//! `millrace admin webhooks`: the state of the webhooks, and their dead letters.

use clap::{Args as ClapArgs, Subcommand};
use serde_json::{Map, Value, json};

use super::{
    request::{Pages, To, change, list, report_missing, text},
    table::{table, time},
};
use crate::output;

#[derive(Subcommand)]
pub enum Command {
    /// Show which node sends the events, and how far it is behind
    #[command(after_help = "LAG is the age of the oldest event that the back end has not acknowledged.\n\n\
        Example: see whether the back end receives events\n  millrace admin webhooks list")]
    List(ListArgs),
    /// List the events that the back end has rejected, oldest first
    #[command(after_help = "With --json, each line contains the whole event, with what clients have published.\n\n\
        Example: look at all dead letters\n  millrace admin webhooks dead --all")]
    Dead(DeadArgs),
    /// Send dead letters again
    #[command(
        after_help = "Prints the number of dead letters that will be sent again. A dead letter is deleted once the back end has acknowledged its event.\n\n\
        Example: send all again, after the back end was corrected\n  millrace admin webhooks replay --all\n\
        Example: send one again\n  millrace admin webhooks replay 5e0f6f0c1f0a4d6c9d1c2b3a4f5e6d7c"
    )]
    Replay(ReplayArgs),
}

#[derive(ClapArgs)]
pub struct ListArgs {
    #[command(flatten)]
    to: To,
}

#[derive(ClapArgs)]
pub struct DeadArgs {
    #[command(flatten)]
    pages: Pages,
    #[command(flatten)]
    to: To,
}

#[derive(ClapArgs)]
#[group(id = "which", required = true, multiple = false, args = ["ids", "all"])]
pub struct ReplayArgs {
    /// Ids of dead letters
    #[arg(value_name = "ID")]
    ids: Vec<String>,
    /// Send all dead letters again
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    to: To,
}

pub async fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::List(ListArgs { to }) => show(to).await,
        Command::Dead(DeadArgs { pages, to }) => {
            list(to, "webhooks/dead", "letters", "id", Vec::new(), pages, |letters| {
                let row = |letter: &Value| {
                    let event = &letter["event"];
                    let about = ["channel", "connection"].into_iter().find(|field| event[field].is_string());
                    [
                        text(letter, "id"),
                        text(event, "type"),
                        text(event, about.unwrap_or("channel")),
                        time_ms(letter, "dead_ms"),
                        text(letter, "reason"),
                    ]
                };
                table(["ID", "TYPE", "ABOUT", "DEAD SINCE", "REASON"], letters.iter().map(row))
            })
            .await
        }
        Command::Replay(ReplayArgs { ids, all, to }) => {
            let body = if all { json!({ "all": true }) } else { json!({ "ids": ids }) };
            let body: Map<String, Value> = serde_json::from_value(body)?;
            change(
                to,
                "webhooks/replay",
                body,
                "replayed",
                ["dead letter will be sent again", "dead letters will be sent again"],
            )
            .await
        }
    }
}

async fn show(to: To) -> anyhow::Result<()> {
    let is_json = to.json;
    let answer = to.connect()?.get("webhooks", std::iter::empty()).await?;
    report_missing(&answer);
    let nodes: Vec<&Value> = answer["nodes"].as_array().into_iter().flatten().collect();
    if is_json {
        return Ok(nodes.iter().try_for_each(output::line)?);
    }
    let row = |node: &&Value| {
        let state = match (node["dispatching"] == true, node["failing"] == true) {
            (false, _) => "standby",
            (true, false) => "sending",
            (true, true) => "failing",
        };
        let lag_s = node["lag_ms"].as_f64().unwrap_or(0.0) / 1000.0;
        [
            text(node, "node"),
            state.to_owned(),
            format!("{lag_s:.1} s"),
            text(node, "logs"),
            text(node, "dead"),
            text(node, "url"),
            text(node, "error"),
        ]
    };
    Ok(output::text(table(["NODE", "STATE", "LAG", "LOGS", "DEAD", "URL", "ERROR"], nodes.iter().map(row)))?)
}

fn time_ms(row: &Value, field: &str) -> String {
    row[field].as_u64().map_or_else(|| "-".into(), |ms| time(ms / 1000))
}
