use std::{
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use bytes::Bytes;
use http::StatusCode;
use millrace_hooks::{
    HookUrl,
    http_client::HttpClient,
    signature::{Signer, signed_headers},
};
use tokio::time::timeout;

use crate::{
    dispatcher::{Attempt, Batch},
    event::batch_id,
};

/// Sends batches to the back end.
pub(crate) struct Sender {
    pub client: HttpClient,
    pub url: HookUrl,
    pub signer: RwLock<Arc<Signer>>,
    pub timeout: Duration,
}

impl Sender {
    /// Sends a batch. Returns the result, and its reason for operators, which names no URL.
    pub async fn send(&self, batch: &Batch) -> (Attempt, String) {
        let body = Bytes::from(batch.to_json());
        let signer = self.signer.read().unwrap_or_else(PoisonError::into_inner).clone();
        let headers = signed_headers(&signer, &batch_id(&batch.events), &body);
        match timeout(self.timeout, self.client.deliver(&self.url, headers, body)).await {
            Ok(Ok(status)) => (of_status(status), format!("the back end has answered with status {}", status.as_u16())),
            Ok(Err(error)) => (Attempt::Failed, error.to_string()),
            Err(_) => (Attempt::Failed, "no answer in time".into()),
        }
    }
}

/// Decides by the status of an answer. A redirect is not followed, and is no reason to lose events.
fn of_status(status: StatusCode) -> Attempt {
    match status {
        _ if status.is_success() => Attempt::Acknowledged,
        StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS => Attempt::Failed,
        _ if status.is_client_error() => Attempt::Rejected,
        _ => Attempt::Failed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_decides_about_the_batch() {
        for (code, attempt) in [
            (200, Attempt::Acknowledged),
            (202, Attempt::Acknowledged),
            (204, Attempt::Acknowledged),
            (302, Attempt::Failed),
            (408, Attempt::Failed),
            (429, Attempt::Failed),
            (500, Attempt::Failed),
            (503, Attempt::Failed),
            (400, Attempt::Rejected),
            (401, Attempt::Rejected),
            (404, Attempt::Rejected),
            (413, Attempt::Rejected),
        ] {
            assert_eq!(of_status(StatusCode::from_u16(code).unwrap()), attempt, "{code}");
        }
    }
}
