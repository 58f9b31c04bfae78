use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use async_nats::{Client, ConnectOptions, Event, HeaderMap, Message, Request, RequestErrorKind, Subscriber};
use bytes::Bytes;
use millrace_protocol::{Code, Error};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;
use tokio::sync::{Notify, watch};

use super::url::{Credentials, Url};
use crate::remote::BrokerError;

/// Timeout for a response.
const ANSWER: Duration = Duration::from_secs(2);
const CONNECT: Duration = Duration::from_secs(2);
/// Ping interval. A connection that answers none of three pings is closed.
const PING: Duration = Duration::from_secs(3);
/// Pause for publishers after JetStream was full.
const FULL_RETRY: Duration = Duration::from_secs(10);
/// Maximum pause between two attempts to connect.
const PAUSE_MS_MAX: u64 = 2000;

/// The connection to NATS. The client library reconnects and subscribes again by itself. This type reports these
/// events to waiting requests.
pub struct Link {
    client: OnceLock<Client>,
    state: watch::Sender<State>,
    /// Notified when the client library dropped messages, because this node did not read them in time.
    dropped: Notify,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Number of connections so far. It grows by one with each connection.
    pub connection: u64,
    pub is_up: bool,
}

/// Reason why a request failed.
#[derive(Debug)]
pub enum RequestError {
    /// No server listens on the subject: the request was not executed.
    NoResponders,
    /// The server refused the request: it was not executed.
    Api(ApiError),
    /// The connection or the response was lost: the request may have been executed.
    Lost(&'static str),
}

/// An error of the server's API.
#[derive(Debug, Deserialize)]
pub struct ApiError {
    #[serde(default)]
    pub err_code: u64,
    #[serde(default)]
    pub description: String,
}

/// Error codes from the server's `server/errors.json`.
pub mod code {
    pub const NOT_ENABLED: u64 = 10076;
    pub const NOT_ENABLED_FOR_ACCOUNT: u64 = 10039;
    pub const STREAM_NOT_FOUND: u64 = 10059;
    pub const STREAM_EXISTS: u64 = 10058;
    pub const WRONG_LAST_SEQUENCE: u64 = 10071;
    pub const MESSAGE_NOT_FOUND: u64 = 10037;
    pub const STORE_FAILED: u64 = 10077;
    pub const NO_STORAGE: u64 = 10047;
    pub const NO_MEMORY: u64 = 10028;
    pub const NO_RESOURCES: u64 = 10023;
}

#[derive(Deserialize)]
#[serde(untagged)]
enum ApiAnswer<T> {
    Error { error: ApiError },
    Good(T),
}

impl Link {
    pub fn new() -> Arc<Self> {
        Arc::new(Self { client: OnceLock::new(), state: watch::Sender::default(), dropped: Notify::new() })
    }

    /// Starts to connect, and keeps reconnecting forever. Returns before the connection is established.
    pub async fn connect(self: &Arc<Self>, name: String, url: Url) {
        let link = self.clone();
        let connections = AtomicUsize::new(0);
        let mut options = ConnectOptions::new()
            .name(name)
            .retry_on_initial_connect()
            .connection_timeout(CONNECT)
            .ping_interval(PING)
            .request_timeout(Some(ANSWER))
            .require_tls(url.is_tls)
            .reconnect_delay_callback(pause)
            .event_callback(move |event| {
                match event {
                    Event::Connected => {
                        let connection = connections.fetch_add(1, Relaxed) as u64 + 1;
                        link.state.send_replace(State { connection, is_up: true });
                    }
                    Event::Disconnected | Event::Closed => link.state.send_modify(|state| state.is_up = false),
                    Event::SlowConsumer(_) => link.dropped.notify_one(),
                    Event::ServerError(error) => tracing::warn!(%error, "NATS reports an error"),
                    Event::ClientError(error) => tracing::debug!(%error, "the connection to NATS has an error"),
                    _ => {}
                }
                std::future::ready(())
            });
        options = match url.credentials {
            Some(Credentials::User(user, password)) => options.user_and_password(user, password),
            Some(Credentials::Token(token)) => options.token(token),
            None => options,
        };
        match options.connect(url.servers).await {
            Ok(client) => drop(self.client.set(client)),
            // Connecting continues in the background, so this error means that the options are invalid.
            Err(error) => tracing::error!(kind = %error.kind(), "cannot connect to NATS"),
        }
    }

    pub fn state(&self) -> State {
        *self.state.borrow()
    }

    /// Waits for a connection.
    pub async fn up(&self) -> State {
        let mut state = self.state.subscribe();
        let up = state.wait_for(|state| state.is_up).await.map(|state| *state);
        match up {
            Ok(state) if self.client.get().is_some() => state,
            // The client is set a moment after its first connection is established.
            _ => loop {
                tokio::time::sleep(Duration::from_millis(5)).await;
                if self.client.get().is_some() {
                    break self.state();
                }
            },
        }
    }

    /// Waits until this connection is lost, or the client library has dropped messages.
    pub async fn lost(&self, during: State) {
        let mut state = self.state.subscribe();
        tokio::select! {
            _ = state.wait_for(|state| *state != during) => {}
            () = self.dropped.notified() => tracing::info!("publications from NATS arrived faster than they could be delivered; reading the missed ones from history"),
        }
    }

    /// Returns information about the connected server.
    pub fn server(&self) -> Option<async_nats::ServerInfo> {
        self.client.get()?.try_server_info()
    }

    /// Sends a request and waits for the response. A request is not repeated on a later connection, because the caller
    /// must know whether it was executed.
    pub async fn request(
        &self,
        subject: String,
        headers: Option<HeaderMap>,
        payload: Bytes,
    ) -> Result<Message, RequestError> {
        let client = self.client()?;
        let during = self.state();
        let mut state = self.state.subscribe();
        let mut request = Request::new().payload(payload);
        if let Some(headers) = headers {
            request = request.headers(headers);
        }
        tokio::select! {
            biased;
            answer = client.send_request(subject, request) => answer.map_err(|error| match error.kind() {
                RequestErrorKind::NoResponders => RequestError::NoResponders,
                RequestErrorKind::MaxPayloadExceeded => RequestError::Api(ApiError {
                    err_code: 0,
                    description: "larger than the server takes (max_payload)".into(),
                }),
                RequestErrorKind::TimedOut => RequestError::Lost("NATS does not answer in time"),
                _ => RequestError::Lost("the connection to NATS is closed"),
            }),
            _ = state.wait_for(|state| *state != during) => Err(RequestError::Lost("the connection to NATS was lost")),
        }
    }

    /// Calls the server's API, for example `$JS.API.STREAM.INFO.name`.
    pub async fn api<T: DeserializeOwned>(&self, subject: String, body: &Value) -> Result<T, RequestError> {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let message = self.request(subject, None, body.into()).await?;
        api_answer(&message.payload)
    }

    pub async fn publish(&self, subject: String, payload: Bytes) -> Result<(), RequestError> {
        let sent = self.client()?.publish(subject, payload).await;
        sent.map_err(|_| RequestError::Lost("the connection to NATS is closed"))
    }

    /// Subscribes to a subject. [`Link::confirm`] then waits until the server has processed the subscription.
    pub async fn subscribe(&self, subject: String) -> Result<Subscriber, RequestError> {
        let subscribed = self.client()?.subscribe(subject).await;
        subscribed.map_err(|_| RequestError::Lost("the connection to NATS is closed"))
    }

    /// Waits until the server has processed everything sent before. It sends a request to a subject without listeners,
    /// which the server itself answers.
    pub async fn confirm(&self, prefix: &str) -> Result<(), RequestError> {
        match self.request(format!("{prefix}.nobody"), None, Bytes::new()).await {
            Ok(_) | Err(RequestError::NoResponders) => Ok(()),
            Err(trouble) => Err(trouble),
        }
    }

    fn client(&self) -> Result<&Client, RequestError> {
        let client = self.client.get().filter(|_| self.state().is_up);
        client.ok_or(RequestError::Lost("there is no connection to NATS"))
    }
}

pub fn api_answer<T: DeserializeOwned>(payload: &[u8]) -> Result<T, RequestError> {
    match serde_json::from_slice(payload) {
        Ok(ApiAnswer::Good(answer)) => Ok(answer),
        Ok(ApiAnswer::Error { error }) => Err(RequestError::Api(error)),
        Err(_) => Err(RequestError::Lost("an answer of NATS is not understood")),
    }
}

impl RequestError {
    pub fn is_api(&self, code: u64) -> bool {
        matches!(self, RequestError::Api(error) if error.err_code == code)
    }
}

impl From<RequestError> for BrokerError {
    fn from(trouble: RequestError) -> Self {
        match trouble {
            RequestError::NoResponders => BrokerError::Unavailable("JetStream does not answer".into()),
            RequestError::Lost(why) => BrokerError::Unavailable(why.into()),
            RequestError::Api(ApiError { err_code, description }) => match err_code {
                code::NOT_ENABLED | code::NOT_ENABLED_FOR_ACCOUNT => not_enabled(),
                code::STORE_FAILED | code::NO_STORAGE | code::NO_MEMORY | code::NO_RESOURCES => {
                    let detail = format!(
                        "NATS has no room for more publications ({description}): its operator has to raise the limits of \
                         JetStream; try again later"
                    );
                    BrokerError::Refused(Error::new(Code::Unavailable, detail).retry_after(FULL_RETRY))
                }
                _ => BrokerError::Unavailable(format!("NATS refuses: {description}")),
            },
        }
    }
}

pub fn not_enabled() -> BrokerError {
    let detail = "JetStream, which keeps history in NATS, is not enabled: start nats-server with `-js -sd DIRECTORY`, \
                  or enable it for this account";
    BrokerError::Refused(Error::new(Code::Unavailable, detail))
}

/// Returns the pause before the next attempt. Pauses double and are random, so that nodes do not reconnect at the same
/// time.
fn pause(attempts: usize) -> Duration {
    if attempts <= 1 {
        return Duration::ZERO;
    }
    let longest_ms = (50u64 << attempts.min(10)).min(PAUSE_MS_MAX);
    let chance = u64::from(getrandom::u32().unwrap_or_default());
    Duration::from_millis(longest_ms / 2 + chance % (longest_ms / 2))
}
