//! Notifications that the server itself sends, without a request of a back end.

use std::{sync::Arc, time::Duration};

use base64::prelude::{BASE64_STANDARD, Engine as _};
use bytes::Bytes;
use millrace_protocol::{Error, Kind, NewPublication};

use crate::{
    routes::{NOTIFICATIONS, Notification, channel, send},
    sender::Push,
};

impl Push {
    /// Publishes a message to `notifications/{subject}` in the background. If that channel has no reader, also sends
    /// the message to the browsers of the subject.
    ///
    /// If the engine does not answer, the notification is lost: it is a hint, and its cause is stored elsewhere.
    pub fn notify(self: &Arc<Self>, subject: String, message: Bytes, ttl: Duration, urgency: &'static str) {
        let push = self.clone();
        self.start_task(async move {
            if let Err(error) = push.publish(&subject, &message, ttl, urgency).await {
                tracing::debug!(%error, "a notification was not sent");
            }
        });
    }

    async fn publish(&self, subject: &str, message: &Bytes, ttl: Duration, urgency: &'static str) -> Result<(), Error> {
        let notifications = channel(NOTIFICATIONS, subject)?;
        let mut publication = NewPublication::new(Kind::Json, message);
        publication.ttl_ms = Some(ttl.as_millis() as u64);
        let position = self.engine().append(&notifications, publication).await?;
        if self.engine().presence(&notifications).await? == 0 {
            let expires_ms = self.engine().now_ms() + ttl.as_millis() as u64;
            let note = Notification { position, body: BASE64_STANDARD.encode(message), expires_ms, urgency };
            send(self.engine(), self, subject, &note, false).await?;
        }
        Ok(())
    }
}
