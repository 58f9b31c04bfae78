//! The channels of a kit: commands come from NAME/led, reports go to NAME/state and NAME/light.

use std::{ops::ControlFlow, time::Duration};

use millrace_client::{
    publish::{HttpPublisher, PublishError},
    server::Server,
    subscription::{Options, SubscriptionError, Transport, Update, read},
};
use millrace_earl::Report;
use tokio::sync::watch;

/// Reason why the channels of a kit cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    #[error("cannot read the channel {0}/led: {1}")]
    Read(String, SubscriptionError),
    #[error("cannot publish to the channel {0}: {1}")]
    Publish(String, PublishError),
    #[error(transparent)]
    Client(PublishError),
}

/// The channels of a kit.
#[derive(Clone, Debug)]
pub struct Channels {
    pub server: Server,
    /// Prefix of the channels, for example `earl/1`.
    pub name: String,
    /// Maximum time without an answer of the server.
    pub retry_for: Duration,
    /// Called with a line for people, for example about a lost connection.
    pub note: fn(&dyn std::fmt::Display),
}

/// The newest report of each kind. If the server is slower than the kit, older reports are dropped.
pub struct Reports {
    state: watch::Sender<String>,
    light: watch::Sender<String>,
}

impl Default for Reports {
    fn default() -> Self {
        Self { state: watch::Sender::new(String::new()), light: watch::Sender::new(String::new()) }
    }
}

impl Reports {
    pub fn send(&self, report: Report) {
        match report {
            Report::State(json) => self.state.send_replace(json),
            Report::Light(json) => self.light.send_replace(json),
        };
    }
}

impl Channels {
    /// Calls `handle_command` with each command, and publishes the reports, until an error occurs.
    ///
    /// Commands that were published before are read, too, so that a kit that starts later shows them.
    /// Errors: the server refuses, or it did not answer for [`Channels::retry_for`].
    pub async fn serve(&self, reports: &Reports, mut handle_command: impl FnMut(&[u8])) -> Result<(), ChannelError> {
        let options = Options {
            server: self.server.clone(),
            channels: vec![format!("{}/led", self.name)],
            transport: Transport::WebSocket,
            since: Some("earliest".into()),
            policy: "every".into(),
            poll_interval: Duration::from_secs(1),
            retry_for: Some(self.retry_for),
        };
        let mut sink = |update: Update| {
            match update {
                Update::Message(message) => handle_command(message.data.get().as_bytes()),
                Update::Gap(gap) => (self.note)(&gap),
                Update::Lost(lost) => (self.note)(&lost),
                Update::StateComplete(_) => {}
            }
            ControlFlow::Continue(())
        };
        let read =
            async { read(&options, &mut sink).await.map_err(|error| ChannelError::Read(self.name.clone(), error)) };
        tokio::select! {
            ended = read => ended.map(drop),
            ended = self.publish("state", reports.state.subscribe()) => ended,
            ended = self.publish("light", reports.light.subscribe()) => ended,
        }
    }

    /// Publishes each new value to the channel NAME/`what`.
    ///
    /// Errors: as [`Channels::serve`].
    pub async fn publish(&self, what: &str, mut values: watch::Receiver<String>) -> Result<(), ChannelError> {
        let channel = format!("{}/{what}", self.name);
        // A retry is reported by the reader of commands.
        let mut publisher = HttpPublisher::new(self.retry_for, |_| {}).map_err(ChannelError::Client)?;
        let (path, headers) = (format!("/v1/channels/{channel}"), [("Content-Type", "application/json")]);
        values.mark_changed();
        while values.changed().await.is_ok() {
            let value = values.borrow_and_update().clone();
            if value.is_empty() {
                continue;
            }
            let posted = publisher.post(&self.server, &path, &headers, value.into_bytes(), |_| Ok(())).await;
            posted.map_err(|error| ChannelError::Publish(channel.clone(), error))?;
        }
        Ok(())
    }
}
