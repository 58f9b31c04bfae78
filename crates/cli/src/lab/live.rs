//! `--live` of a run: publishes its progress to a Millrace server, whose page `/lab` shows it.

use millrace_client::server::Server;
use millrace_lab::{
    report::live,
    sweep::{Event, View},
};
use serde_json::Value;

use super::feed::{Entry, Feed, Topic};

const TOPIC: Topic = Topic { subject: "progress of this run", channel: live::CHANNEL, page: "/lab" };

/// Publishes each event of a run. Dropping it publishes the last message.
pub struct Live(Feed);

impl Live {
    /// Publishes to `server`, beginning with `first`. Without a server, starts one and publishes to that.
    ///
    /// Errors: the server cannot be started, does not answer, or refuses the first message.
    pub fn start(server: Option<Server>, first: Value) -> anyhow::Result<Live> {
        Ok(Live(Feed::start(server, TOPIC, entry(first))?))
    }

    /// The URL of the page.
    pub fn page(&self) -> &str {
        self.0.page()
    }
}

impl View for Live {
    fn show(&mut self, event: &Event<'_>) {
        self.0.offer(entry(live::message(event)));
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.0.finish(entry(live::finished()));
    }
}

/// A page that is opened late shows the whole run, so history keeps all messages.
fn entry(message: Value) -> Entry {
    Entry { message, ttl_s: None }
}
