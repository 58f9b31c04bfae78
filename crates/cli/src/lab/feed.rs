//! Publishes to a channel whose messages a page of a Millrace server shows.

use std::{
    sync::mpsc,
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::{Context, bail};
use millrace_client::{
    http::{body, cause},
    problem::Problem,
    server::Server,
    tls,
};
use millrace_lab::targets::{self, Options};
use serde_json::Value;
use tokio::sync::mpsc::{Receiver, Sender, channel};

use crate::{login, output, trust::Trust};

/// Messages that wait to be published. When the server lags further behind, messages are dropped: the page must not
/// hold up what it shows.
const WAITING_MAX: usize = 16;
/// Time for one publication.
const PATIENCE: Duration = Duration::from_secs(2);

/// Subject and channel of a feed, and the page that shows it.
#[derive(Clone, Copy)]
pub struct Topic {
    /// Subject of the messages, for errors.
    pub subject: &'static str,
    pub channel: &'static str,
    /// Path of the page.
    pub page: &'static str,
}

/// A message, and the seconds for which history keeps it. `None`: as long as the server keeps any message.
pub struct Entry {
    pub message: Value,
    pub ttl_s: Option<u32>,
}

/// Publishes one message after the other. Dropping it waits for the messages in the queue, and ends the page's own
/// server, if there is one.
pub struct Feed {
    server: Server,
    page: String,
    queue: Option<Sender<Entry>>,
    publisher: Option<JoinHandle<()>>,
    /// The page's own server, on a free port of loopback.
    _own: Option<targets::Server>,
}

/// Returns the server of `--live --to URL`, or of `--live=URL`, with the token of the environment.
///
/// Errors: two servers; the token or the certificate authority cannot be used.
pub fn server_of(live: Option<Server>, to: Option<Server>, trust: &Trust) -> anyhow::Result<Option<Server>> {
    trust.decide()?;
    if let (Some(live), Some(to)) = (&live, &to) {
        bail!("--live={} and --to {} name two servers: leave one of them out", live.http(""), to.http(""));
    }
    live.or(to).map(|server| Ok(server.with_token(login::from_environment()?))).transpose()
}

impl Feed {
    /// Publishes `first` to `server`. Without a server, starts one and publishes to that.
    ///
    /// Errors: the server cannot be started, does not answer, or refuses the first message.
    pub fn start(server: Option<Server>, topic: Topic, first: Entry) -> anyhow::Result<Feed> {
        let (server, own) = match server {
            Some(server) => (server, None),
            None => {
                let own = targets::find("millrace")?.start(&Options::default()).context("--live starts a server")?;
                let server = Server::parse(&format!("http://{}", own.address))?;
                (server, Some(own))
            }
        };
        let (queue, entries) = channel(WAITING_MAX);
        queue.try_send(first).ok().context("the queue is empty")?;
        let (accepted, answer) = mpsc::sync_channel(1);
        let to = server.clone();
        let publish = move || publish_all(&to, topic, entries, &accepted);
        let publisher = thread::Builder::new().name("live".into()).spawn(publish)?;
        let answer = answer.recv().context("the publisher has ended")?;
        answer.with_context(|| {
            format!("--live --to {}: the server does not take the {}", server.http(""), topic.subject)
        })?;
        let page = server.http(topic.page);
        Ok(Feed { server, page, queue: Some(queue), publisher: Some(publisher), _own: own })
    }

    /// The server to which this feed publishes.
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// The URL of the page.
    pub fn page(&self) -> &str {
        &self.page
    }

    /// Publishes a message, or drops it if the queue is full.
    pub fn offer(&self, entry: Entry) {
        if let Some(queue) = &self.queue {
            // A full queue drops the message.
            let _ = queue.try_send(entry);
        }
    }

    /// Publishes the last message. It waits for its place in the queue: the page must learn of the end.
    pub fn finish(&mut self, entry: Entry) {
        if let Some(queue) = self.queue.take() {
            // Fails if the publisher has ended, which it has reported.
            let _ = queue.blocking_send(entry);
        }
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        drop(self.queue.take());
        self.publisher.take().into_iter().for_each(|publisher| drop(publisher.join()));
    }
}

/// Publishes messages until the queue ends. `accepted` gets the outcome of the first one; a failure later is reported
/// once.
fn publish_all(
    server: &Server,
    topic: Topic,
    mut entries: Receiver<Entry>,
    accepted: &mpsc::SyncSender<anyhow::Result<()>>,
) {
    let url = server.http(&format!("/v1/channels/{}", topic.channel));
    let work = async {
        let client = tls::http().timeout(PATIENCE).build().map_err(|error| anyhow::anyhow!(cause(&error)))?;
        let mut reported: Option<bool> = None;
        while let Some(Entry { message, ttl_s }) = entries.recv().await {
            let mut request = client.post(&url).header("Content-Type", "application/json").body(message.to_string());
            if let Some(ttl_s) = ttl_s {
                request = request.header("Millrace-TTL", ttl_s);
            }
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
                    output::note(format_args!("live: {url}: {why}; the page misses this part"));
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
