//! Requests to the server: one batch at a time.

use std::{convert::Infallible, rc::Rc, sync::Arc, time::Duration};

use millrace_buffer::{Batch, Check, HistoryMessage, LineResult, Outcome, Step};
use millrace_client::{
    http::{body, cause, query_value},
    problem::Problem,
    tls::{http, permanent_reason},
};
use reqwest::{StatusCode, header};
use serde::{Deserialize, de::IgnoredAny};

use super::{
    config::Config,
    store::{Checked, Next, Store, StoreError},
};

/// Maximum time without an answer. Every batch is repeated with the same keys, so a late answer does no harm.
const ANSWER_TIME: Duration = Duration::from_secs(30);
const CONNECT_TIME: Duration = Duration::from_secs(10);
/// Wait after the server has refused the whole request permanently, for example because of the token.
const REFUSED_WAIT_MS: u64 = 10_000;
/// Pause after a failure to read the journal.
const DISK_PAUSE: Duration = Duration::from_secs(1);

/// The results of a batch (docs/reference/protocol.md, "Writing").
#[derive(Deserialize)]
struct Results {
    results: Vec<Line>,
}

/// A page of history (docs/reference/protocol.md, "How one publication looks").
#[derive(Deserialize)]
struct Page {
    position: String,
    #[serde(default)]
    more: bool,
    messages: Vec<HistoryMessage>,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    Position(IgnoredAny),
    Error(Problem),
}

pub struct Sender {
    config: Rc<Config>,
    store: Arc<Store>,
    client: reqwest::Client,
    /// The last line about the connection, so that it is reported once.
    noted: String,
}

impl Sender {
    /// Errors: no HTTP client can be created; the text is the reason.
    pub fn new(config: Rc<Config>, store: Arc<Store>) -> Result<Self, String> {
        let client = http().timeout(ANSWER_TIME).connect_timeout(CONNECT_TIME).build();
        let client = client.map_err(|error| cause(&error))?;
        Ok(Self { config, store, client, noted: String::new() })
    }

    /// Sends until the thread of the buffer ends.
    pub async fn run(mut self) -> Result<Infallible, StoreError> {
        loop {
            match self.store.next().await? {
                Ok(Next::Step(Step::Send(batch))) => {
                    let outcome = self.send(&batch).await;
                    self.store.handle_outcome(batch, outcome).await?;
                }
                Ok(Next::Step(Step::Check(mut check))) => {
                    let result = self.check(&mut check).await;
                    self.store.handle_check(check, result).await?;
                }
                Ok(Next::Wait(limit)) => {
                    let limit = limit.unwrap_or(Duration::MAX);
                    let _ = tokio::time::timeout(limit, self.store.stored()).await;
                }
                Err(error) => {
                    self.note(&format!("cannot read the journal: {error}; the messages stay, and reading is repeated"));
                    tokio::time::sleep(DISK_PAUSE).await;
                }
            }
        }
    }

    async fn send(&mut self, batch: &Batch) -> Outcome {
        let server = &self.config.server;
        // `ordered`: after a message that the server refuses for now, it takes no later message of the same channel.
        let request = self.client.post(server.http("/v1/publish?ordered"));
        let mut request = request.header(header::CONTENT_TYPE, "application/x-ndjson").body(batch.body.clone());
        if let Some((name, value)) = server.authorization() {
            request = request.header(name, value);
        }
        let failed = |retry_after_ms| Outcome::Failed { retry_after_ms };
        let response = match request.send().await {
            Ok(response) => response,
            Err(error) => {
                let why = permanent_reason(&error, server).unwrap_or_else(|| cause(&error));
                self.note(&format!("no answer: {why}; messages wait in the buffer"));
                return if error.is_connect() { Outcome::NotReached } else { failed(None) };
            }
        };
        let status = response.status();
        let retry_after = response.headers().get(header::RETRY_AFTER).and_then(|value| value.to_str().ok());
        let retry_after_ms = retry_after.and_then(|text| text.parse::<u64>().ok()).map(|s| s.saturating_mul(1000));
        let answer = match body(response).await {
            Ok(answer) => answer,
            Err(error) => {
                self.note(&format!("incomplete answer: {error}; messages wait in the buffer"));
                return failed(None);
            }
        };
        if !status.is_success() {
            return self.handle_problem(status, &Problem::of(status.as_u16(), &answer), retry_after_ms, batch);
        }
        match serde_json::from_slice::<Results>(&answer) {
            Ok(Results { results }) if results.len() == batch.seqs.len() => {
                self.note("messages are sent");
                Outcome::Answered(results.into_iter().map(Line::result).collect())
            }
            _ => {
                self.note("unexpected answer; is this a Millrace server? Messages wait in the buffer");
                failed(Some(REFUSED_WAIT_MS))
            }
        }
    }

    /// Reads the history of a channel, until it is clear which messages the server has.
    async fn check(&mut self, check: &mut Check) -> Checked {
        let server = self.config.server.clone();
        let path = format!("/v1/channels/{}", query_value(&check.channel));
        let mut since = "earliest".to_owned();
        loop {
            let request = server.get(&self.client, &format!("{path}?limit=1000&since={}", query_value(&since)));
            let response = match request.send().await {
                Ok(response) => response,
                Err(error) => {
                    self.note(&format!("no answer: {}; messages wait in the buffer", cause(&error)));
                    return Checked::Failed;
                }
            };
            let status = response.status();
            let Ok(answer) = body(response).await else { return Checked::Failed };
            if status == StatusCode::NO_CONTENT {
                return Checked::Read;
            }
            if !status.is_success() {
                let problem = Problem::of(status.as_u16(), &answer);
                self.note(&format!("the history of {} cannot be read: {problem}", check.channel));
                return if problem.retry { Checked::Failed } else { Checked::NotReadable };
            }
            let Ok(page) = serde_json::from_slice::<Page>(&answer) else { return Checked::NotReadable };
            page.messages.into_iter().for_each(|message| check.handle_message(message));
            // A position that does not advance would repeat the page without end.
            if !page.more || check.is_complete() || page.position == since {
                return Checked::Read;
            }
            since = page.position;
        }
    }

    /// Handles an error of the whole request.
    fn handle_problem(
        &mut self,
        status: StatusCode,
        problem: &Problem,
        retry_after_ms: Option<u64>,
        batch: &Batch,
    ) -> Outcome {
        if matches!(status, StatusCode::PAYLOAD_TOO_LARGE | StatusCode::BAD_REQUEST) || problem.code == "too_many" {
            self.note(&format!("a batch of {} messages is refused: {problem}", batch.seqs.len()));
            return Outcome::TooLarge;
        }
        match problem.retry {
            true => {
                self.note(&format!("{problem}; messages wait in the buffer"));
                Outcome::Failed { retry_after_ms }
            }
            false => {
                self.note(&format!("the server refuses all messages: {problem}; they wait in the buffer"));
                Outcome::Failed { retry_after_ms: Some(retry_after_ms.unwrap_or(REFUSED_WAIT_MS)) }
            }
        }
    }

    /// Reports a change of the connection.
    fn note(&mut self, line: &str) {
        if self.noted != line {
            (self.config.note)(&format_args!("{}: {line}", self.config.server.shown()));
            line.clone_into(&mut self.noted);
        }
    }
}

impl Line {
    fn result(self) -> LineResult {
        match self {
            Self::Position(_) => LineResult::Accepted,
            Self::Error(problem) if problem.retry => LineResult::Retry,
            Self::Error(_) => LineResult::Refused,
        }
    }
}
