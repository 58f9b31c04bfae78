//! `--live`: publishes the progress of a run to a Millrace server, whose page `/lab` shows it.

use std::{
    sync::mpsc,
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::Context;
use millrace_client::{
    http::{body, cause},
    problem::Problem,
    server::Server,
    tls,
};
use millrace_lab::{
    report::live,
    sweep::{Event, View},
    targets::{self, Options},
};
use serde_json::Value;
use tokio::sync::mpsc::{Receiver, Sender, channel};

use crate::output;

/// Messages that wait to be published. When the server lags further behind, messages are dropped: the page must not
/// hold up a run.
const WAITING_MAX: usize = 16;
/// Time for one publication.
const PATIENCE: Duration = Duration::from_secs(2);

/// Publishes each event of a run. Dropping it publishes the last message and ends the page's own server, if there is
/// one.
pub struct Live {
    page: String,
    feed: Option<Sender<Value>>,
    publisher: Option<JoinHandle<()>>,
    /// The page's own server, on a free port of loopback.
    _own: Option<targets::Server>,
}

impl Live {
    /// Publishes to `server`. Without one, starts a server and publishes to that.
    ///
    /// Errors: the server cannot be started, does not answer, or refuses the first message.
    pub fn start(server: Option<Server>, command: &str) -> anyhow::Result<Live> {
        let (server, own) = match server {
            Some(server) => (server, None),
            None => {
                let own = targets::find("millrace")?.start(&Options::default()).context("--live starts a server")?;
                let server = Server::parse(&format!("http://{}", own.address))?;
                (server, Some(own))
            }
        };
        let (feed, events) = channel(WAITING_MAX);
        feed.try_send(live::announced(command)).context("the queue is empty")?;
        let (accepted, answer) = mpsc::sync_channel(1);
        let (page, to) = (server.http("/lab"), server.http(""));
        let publish = move || publish_all(&server, events, &accepted);
        let publisher = thread::Builder::new().name("live".into()).spawn(publish)?;
        let answer = answer.recv().context("the publisher has ended")?;
        answer.with_context(|| format!("--live={to}: the server does not take the progress of this run"))?;
        Ok(Live { page, feed: Some(feed), publisher: Some(publisher), _own: own })
    }

    /// The URL of the page.
    pub fn page(&self) -> &str {
        &self.page
    }
}

impl View for Live {
    fn show(&mut self, event: &Event<'_>) {
        self.feed.iter().for_each(|feed| drop(feed.try_send(live::message(event))));
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        // The page must learn of the end: this message waits for its place in the queue.
        self.feed.take().into_iter().for_each(|feed| drop(feed.blocking_send(live::finished())));
        self.publisher.take().into_iter().for_each(|publisher| drop(publisher.join()));
    }
}

/// Publishes messages until the feed ends. `accepted` gets the outcome of the first one; a failure later is reported
/// once.
fn publish_all(server: &Server, mut events: Receiver<Value>, accepted: &mpsc::SyncSender<anyhow::Result<()>>) {
    let url = server.http(&format!("/v1/channels/{}", live::CHANNEL));
    let work = async {
        let client = tls::http().timeout(PATIENCE).build().map_err(|error| anyhow::anyhow!(cause(&error)))?;
        let mut reported: Option<bool> = None;
        while let Some(event) = events.recv().await {
            let mut request = client.post(&url).header("Content-Type", "application/json").body(event.to_string());
            if let Some((name, bearer)) = server.authorization() {
                request = request.header(name, bearer);
            }
            let outcome = match request.send().await {
                Err(error) => Err(tls::permanent_reason(&error, server).unwrap_or_else(|| cause(&error))),
                Ok(response) if response.status().is_success() => {
                    body(response).await.map(drop).map_err(|error| error.to_string())
                }
                Ok(response) => {
                    let status = response.status().as_u16();
                    Err(Problem::of(status, &body(response).await.unwrap_or_default()).to_string())
                }
            };
            match (reported, outcome) {
                (None, outcome) => {
                    reported = Some(false);
                    drop(accepted.send(outcome.map_err(anyhow::Error::msg)));
                }
                (Some(false), Err(why)) => {
                    reported = Some(true);
                    output::note(format_args!("live: {url}: {why}; the page misses this part of the run"));
                }
                _ => {}
            }
        }
        anyhow::Ok(())
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    if let Err(error) = runtime.map_err(anyhow::Error::from).and_then(|runtime| runtime.block_on(work)) {
        drop(accepted.try_send(Err(error)));
    }
}
