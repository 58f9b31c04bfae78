//! Many clients on all transports, and the judgment of their results.

use std::{collections::HashMap, time::Duration};

use millrace_client::server::Server;

use crate::{
    client::{Client, ClientKind},
    cluster::Cluster,
    judge::{Channel, Id, Position, judge},
    load::channel_name,
    process::until,
    report,
};

/// Channels per client. A bare WebSocket reads only one.
const CHANNELS_EACH: usize = 2;
/// Maximum number of failures in the report.
const SHOWN: usize = 30;

#[derive(Default)]
pub struct Crowd {
    pub clients: Vec<Client>,
}

impl Crowd {
    /// Starts the given number of clients of each kind, spread evenly over the load's channels.
    pub fn start(server: &Server, kinds: &[(ClientKind, usize)], channels: usize) -> Self {
        let mut crowd = Self::default();
        crowd.join(server, kinds, channels, CHANNELS_EACH);
        crowd
    }

    /// Adds clients, each with `each` channels.
    pub fn join(&mut self, server: &Server, kinds: &[(ClientKind, usize)], channels: usize, each: usize) {
        for kind in kinds.iter().flat_map(|(kind, count)| std::iter::repeat_n(*kind, *count)) {
            let i = self.clients.len();
            let each = if kind == ClientKind::Bare { 1 } else { each };
            // The offset of a client's second channel differs in every round.
            let names: Vec<String> =
                (0..each).map(|k| channel_name((i + k * (1 + i / channels % (channels - 1))) % channels)).collect();
            let name = format!("client {i} ({})", kind.name());
            self.clients.push(Client::start(name, kind, server, names));
        }
    }

    /// Returns when every client has received a message.
    pub async fn listens(&self, within: Duration) {
        until("every client hears", within, async || {
            self.clients.iter().all(|client| client.seen.borrow().messages > 0)
        })
        .await;
    }

    /// Stops counting silence, because the publishers stop.
    pub fn quiet(&self) {
        self.clients.iter().for_each(|client| client.seen.borrow_mut().listening = false);
    }

    /// Waits until every client has reached the end of its channels, prints the report and judges the results.
    ///
    /// Panics if a result is wrong.
    pub async fn conclude(
        &self,
        cluster: &Cluster,
        acknowledged: Vec<Vec<(Position, Id)>>,
        history_lost: bool,
        within: Duration,
    ) {
        self.quiet();
        let mut tops: HashMap<String, Option<Position>> = HashMap::new();
        for i in 0..acknowledged.len() {
            tops.insert(channel_name(i), cluster.top(&channel_name(i)).await);
        }
        let place = |position: Option<&Position>| position.map(|position| position.place(history_lost));
        let is_at = |client: &Client, name: &String| {
            let position = client.position(name).filter(|position| position.offset > 0);
            place(position.as_ref()) == place(tops[name].as_ref())
        };
        let at_end = |client: &Client| client.channels.iter().all(|name| is_at(client, name));
        let behind = || self.clients.iter().filter(|client| client.kind != ClientKind::Bare && !at_end(client));
        let deadline = tokio::time::Instant::now() + within;
        while behind().next().is_some() && tokio::time::Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        report::table(&self.clients);
        let mut wrong = Vec::new();
        for client in &self.clients {
            let seen = client.seen.borrow();
            if let Some(error) = &seen.error {
                wrong.push(format!("{}: an error reached the application: {error}", client.name));
            }
            if !at_end(client) && client.kind != ClientKind::Bare {
                wrong.push(format!("{}: not at the end; last cut: {:?}", client.name, seen.why));
            }
        }
        for (i, acknowledged) in acknowledged.into_iter().enumerate() {
            let name = channel_name(i);
            let readers = || self.clients.iter().filter(|client| client.channels.contains(&name));
            let bare = readers().filter(|client| client.kind == ClientKind::Bare);
            let others = readers().filter(|client| client.kind != ClientKind::Bare);
            let heard = |client: &Client| client.seen.borrow().heard.get(&name).cloned().unwrap_or_default();
            let channel = Channel {
                acknowledged,
                clients: others.map(|client| (client.name.clone(), heard(client))).collect(),
                bare: bare.map(|client| (client.name.clone(), client.seen.borrow().runs.clone())).collect(),
                top: tops[&name].clone(),
            };
            wrong.extend(judge(&name, &channel, history_lost));
        }
        let (count, shown) = (wrong.len(), &wrong[..wrong.len().min(SHOWN)]);
        assert!(wrong.is_empty(), "{count} things are wrong, such as:\n  {}", shown.join("\n  "));
    }
}
