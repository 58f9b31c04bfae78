//! `millrace admin`: operator requests to a running server or cluster.

mod readers;
mod request;
mod rooms;
mod table;
mod webhooks;

use std::time::Duration;

use clap::{Args as ClapArgs, Subcommand};
use serde_json::{Map, Value, json};

use crate::retry::duration;
use request::{Pages, To, change, list, text};
use table::{bytes, table, time};

pub const EXAMPLES: &str = "\
The commands take effect on all nodes of a cluster; --to names any of them. They need a token or an API key with the permission `admin`, or the admin listener with `admin.token` (docs/reference/admin.md). Nodes that do not answer in time are reported on standard error.

Example: create an API key for operators, and list the busiest namespace
  millrace token api-key --name operator --admin
  MILLRACE_TOKEN=mrk_.. millrace admin channels --namespace cars --to https://live.example
Example: use the admin listener of an open server on this machine
  MILLRACE_TOKEN=$MILLRACE_ADMIN__TOKEN millrace admin connections --to http://127.0.0.1:8082";

#[derive(Subcommand)]
pub enum Command {
    /// List channels with their readers, newest position and rates
    #[command(after_help = "Prints a table, or with --json one object per line.\n\n\
        Example: all channels of one namespace\n  millrace admin channels --namespace cars\n\
        Example: names of channels with more than 1,000 publications per second\n  \
        millrace admin channels --all --json | jq -r 'select(.publications_per_s > 1000).channel'")]
    Channels(ChannelsArgs),
    /// List open connections with their subscriptions
    #[command(
        after_help = "Prints a table, or with --json one object per line. Polls are not listed, because they are short-lived.\n\n\
        Example: the connections of one user\n  millrace admin connections --subject ann\n\
        Example: every reader of a channel\n  millrace admin connections --channel news/today --all"
    )]
    Connections(ConnectionsArgs),
    /// List the readers that lack most messages
    #[command(
        after_help = "Prints a table, or with --json one object per line. BEHIND is the number of messages that the connection has not been sent yet, SINCE the time since it lacks any.\n\n\
        Example: the ten slowest readers of a channel\n  millrace admin slow --channel news/today --limit 10\n\
        Example: close the readers that have been behind for a minute\n  \
        millrace admin slow --json | jq -r 'select(.since_ms > 60000).id' | xargs -n 1 millrace admin disconnect --id"
    )]
    Slow(readers::SlowArgs),
    /// List rooms, or show one with its participants and tracks
    #[command(after_help = "Prints a table, or with --json one object per line.\n\n\
        Example: all rooms of one school\n  millrace admin rooms --contains school-7 --all\n\
        Example: the participants and tracks of one room, as JSON\n  millrace admin rooms --room kitchen")]
    Rooms(rooms::RoomsArgs),
    /// Close connections
    #[command(
        after_help = "Closes the connections that match all given flags, with close code 4003, and prints their number. Their clients do not reconnect. To keep a user out, revoke the tokens, too.\n\n\
        Example: close one connection of the list\n  millrace admin disconnect --id 3f2b9c0d1e4a5b67-0-12-4\n\
        Example: close all streams from an address\n  millrace admin disconnect --address 192.0.2.7 --transport sse"
    )]
    Disconnect(DisconnectArgs),
    /// End the subscriptions to a channel or pattern
    #[command(
        after_help = "Sessions are notified and go on. Streams and bare WebSockets end. Prints the number of ended subscriptions.\n\n\
        Example: remove one user from a channel\n  millrace admin unsubscribe chat/lobby --subject ann\n\
        Example: remove every reader\n  millrace admin unsubscribe chat/lobby"
    )]
    Unsubscribe(UnsubscribeArgs),
    /// Revoke a token, an API key, or all tokens of a subject
    #[command(
        after_help = "The server refuses the tokens from now on and closes their connections. The revocation holds on all nodes, also on those that start later.\n\n\
        Example: revoke all tokens that a user has received until now\n  millrace admin revoke --sub ann\n\
        Example: revoke one token by its id, or an API key by its name\n  millrace admin revoke --jti kR2oX9dQ3mT0aZpL"
    )]
    Revoke(RevokeArgs),
    /// Require a new token from connections
    #[command(
        after_help = "The tokens of the matching connections expire in --within. Sessions are notified and send a new token; other connections end and connect again with one. Prints the number of connections. The old token stays valid for new connections; revoke it to refuse it.\n\n\
        Example: apply changed permissions of a user within a minute\n  millrace admin refresh --subject ann --within 1m"
    )]
    Refresh(RefreshArgs),
    /// Show the webhooks, list their dead letters, and replay these
    #[command(
        subcommand,
        after_help = "Example: replay all events that the back end has rejected\n  millrace admin webhooks replay --all"
    )]
    Webhooks(webhooks::Command),
}

/// Flags that select connections. A connection matches if it matches all of them.
#[derive(ClapArgs)]
struct Which {
    /// Id of one connection, as `connections` lists it
    #[arg(long)]
    id: Option<String>,
    /// Subject of the token
    #[arg(long)]
    subject: Option<String>,
    /// IP address of the peer, or of the client that a trusted proxy reports
    #[arg(long)]
    address: Option<String>,
    /// Transport: websocket, sse, stream or data-channel
    #[arg(long)]
    transport: Option<String>,
}

impl Which {
    fn fields(self, channel: Option<String>) -> Vec<(&'static str, Option<String>)> {
        vec![
            ("id", self.id),
            ("subject", self.subject),
            ("address", self.address),
            ("transport", self.transport),
            ("channel", channel),
        ]
    }

    /// Returns the body that selects these connections.
    fn body(self, channel: Option<String>) -> Map<String, Value> {
        let fields = self.fields(channel).into_iter();
        fields.filter_map(|(name, value)| Some((name.to_owned(), value?.into()))).collect()
    }
}

#[derive(ClapArgs)]
pub struct ChannelsArgs {
    /// List channels that match this pattern, for example cars/+/telemetry
    #[arg(long)]
    pattern: Option<String>,
    /// List channels whose first level is this
    #[arg(long, conflicts_with = "pattern")]
    namespace: Option<String>,
    #[command(flatten)]
    pages: Pages,
    #[command(flatten)]
    to: To,
}

#[derive(ClapArgs)]
pub struct ConnectionsArgs {
    #[command(flatten)]
    which: Which,
    /// A channel that the connection reads, by its name or by a pattern; or a pattern that it subscribes to
    #[arg(long)]
    channel: Option<String>,
    #[command(flatten)]
    pages: Pages,
    #[command(flatten)]
    to: To,
}

#[derive(ClapArgs)]
pub struct DisconnectArgs {
    #[command(flatten)]
    which: Which,
    /// A channel that the connection reads, by its name or by a pattern; or a pattern that it subscribes to
    #[arg(long)]
    channel: Option<String>,
    #[command(flatten)]
    to: To,
}

#[derive(ClapArgs)]
pub struct UnsubscribeArgs {
    /// Subscription to end: a channel or a pattern, as the client has subscribed to it
    channel: String,
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    to: To,
}

#[derive(ClapArgs)]
#[group(required = true, multiple = false)]
struct Revoked {
    /// Id of a token (its claim `jti`), or name of an API key
    #[arg(long)]
    jti: Option<String>,
    /// Subject whose tokens are revoked, as far as they were issued until now
    #[arg(long)]
    sub: Option<String>,
}

#[derive(ClapArgs)]
pub struct RevokeArgs {
    #[command(flatten)]
    revoked: Revoked,
    #[command(flatten)]
    to: To,
}

#[derive(ClapArgs)]
pub struct RefreshArgs {
    #[command(flatten)]
    which: Which,
    /// A channel that the connection reads, by its name or by a pattern; or a pattern that it subscribes to
    #[arg(long)]
    channel: Option<String>,
    /// Time until the tokens expire, in whole seconds, at most one day
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration)]
    within: Duration,
    #[command(flatten)]
    to: To,
}

pub async fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Channels(ChannelsArgs { pattern, namespace, pages, to }) => {
            let filter = vec![("pattern", pattern), ("namespace", namespace)];
            list(to, "channels", "channels", "channel", filter, pages, |rows| {
                let row = |row: &Value| {
                    [
                        text(row, "channel"),
                        text(row, "position"),
                        text(row, "readers"),
                        text(row, "publications_per_s"),
                        bytes(row["bytes_per_s"].as_f64().unwrap_or(0.0)),
                    ]
                };
                table(["CHANNEL", "POSITION", "READERS", "MESSAGES/S", "BYTES/S"], rows.iter().map(row))
            })
            .await
        }
        Command::Connections(ConnectionsArgs { which, channel, pages, to }) => {
            list(to, "connections", "connections", "id", which.fields(channel), pages, |rows| {
                let row = |row: &Value| {
                    let address = if row["for"].is_string() { "for" } else { "address" };
                    [
                        text(row, "id"),
                        text(row, "transport"),
                        text(row, "subject"),
                        text(row, address),
                        row["expires_s"].as_u64().map_or_else(|| "-".into(), time),
                        subscriptions(row),
                    ]
                };
                table(["ID", "TRANSPORT", "SUBJECT", "ADDRESS", "EXPIRES", "SUBSCRIPTIONS"], rows.iter().map(row))
            })
            .await
        }
        Command::Slow(args) => readers::slow(args).await,
        Command::Rooms(args) => rooms::rooms(args).await,
        Command::Disconnect(DisconnectArgs { which, channel, to }) => {
            change(to, "disconnect", which.body(channel), "disconnected", ["connection closed", "connections closed"])
                .await
        }
        Command::Unsubscribe(UnsubscribeArgs { channel, which, to }) => {
            change(
                to,
                "unsubscribe",
                which.body(Some(channel)),
                "unsubscribed",
                ["subscription ended", "subscriptions ended"],
            )
            .await
        }
        Command::Revoke(RevokeArgs { revoked: Revoked { jti, sub }, to }) => {
            let body = jti.map_or_else(|| json!({ "sub": sub }), |jti| json!({ "jti": jti }));
            let Value::Object(body) = body else { unreachable!("an object") };
            change(to, "revoke", body, "", ["revoked"; 2]).await
        }
        Command::Refresh(RefreshArgs { which, channel, within, to }) => {
            let mut body = which.body(channel);
            anyhow::ensure!(!body.is_empty(), "name the connections, for example with --subject");
            body.insert("within_s".into(), within.as_secs().into());
            change(to, "refresh", body, "refreshed", ["connection needs a new token", "connections need a new token"])
                .await
        }
        Command::Webhooks(command) => webhooks::run(command).await,
    }
}

/// Returns the first subscriptions of a connection, and the number of the others.
fn subscriptions(row: &Value) -> String {
    const SHOWN: usize = 3;
    let names: Vec<&str> =
        row["subscriptions"].as_array().into_iter().flatten().flat_map(Value::as_str).take(SHOWN).collect();
    let total = row["subscriptions_total"].as_u64().unwrap_or(0) as usize;
    match (names.is_empty(), total.saturating_sub(names.len())) {
        (true, _) => "-".into(),
        (false, 0) => names.join(" "),
        (false, more) => format!("{} +{more}", names.join(" ")),
    }
}
