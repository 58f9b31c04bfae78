//! One probe: a session that stays silent until the first heartbeat of the server.

use std::time::Duration;

use futures_util::StreamExt;
use serde::Deserialize;
use tokio::{
    net::TcpStream,
    time::{Instant, timeout, timeout_at},
};
use tokio_tungstenite::tungstenite::{Error, Message as Frame, client::ClientRequestBuilder};
use tokio_tungstenite::{Connector, MaybeTlsStream, WebSocketStream, connect_async_tls_with_config};

use super::HeartbeatError;
use crate::{http::cause, problem::Problem, server::Server, tls};

const SUBPROTOCOL: &str = "millrace.v1+json";
/// Time for the connection and the first message of the server.
const CONNECT_MAX: Duration = Duration::from_secs(10);
/// Time after which a heartbeat that is due counts as lost. TCP may have to send it again.
const PATIENCE: Duration = Duration::from_secs(5);
/// A server looks once per second which connections need a heartbeat.
pub const LATE_MAX: Duration = Duration::from_secs(1);

/// A session that has begun.
pub struct Probe {
    socket: WebSocketStream<MaybeTlsStream<TcpStream>>,
    /// Interval that the server has granted.
    pub granted: Duration,
    silent_since: Instant,
}

/// Result of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measured {
    /// Time without a packet. If the connection has died, the longest that it can have been.
    pub silence: Duration,
    pub has_survived: bool,
}

#[derive(Deserialize)]
struct ServerMessage {
    push: Option<String>,
    ping_ms: Option<u64>,
}

impl Probe {
    /// Opens a session that asks for heartbeats of this interval, in whole seconds.
    ///
    /// Errors: no connection, or no answer as from Millrace.
    pub async fn open(server: &Server, interval: Duration) -> Result<Self, HeartbeatError> {
        let opening = Self::connect(server, interval);
        timeout(CONNECT_MAX, opening).await.map_err(|_| HeartbeatError::Connect("the server does not answer".into()))?
    }

    async fn connect(server: &Server, interval: Duration) -> Result<Self, HeartbeatError> {
        let url = server.websocket(&format!("/v1/connect?heartbeat={}", interval.as_secs()));
        let uri = url.parse().map_err(|_| HeartbeatError::Refused(format!("{url} is not a valid URL")))?;
        let mut request = ClientRequestBuilder::new(uri).with_sub_protocol(SUBPROTOCOL);
        if let Some((name, bearer)) = server.authorization() {
            request = request.with_header(name, bearer);
        }
        // The roots of the system are read only if they are needed: reading them delays other probes.
        let connector = server.is_tls().then(|| Connector::Rustls(tls::config(&["http/1.1"]).into()));
        let opened = connect_async_tls_with_config(request, None, true, connector).await;
        let (mut socket, _) = opened.map_err(|error| refusal(error, server))?;
        let not_millrace = || HeartbeatError::Refused(format!("{} does not answer as Millrace does", server.shown()));
        loop {
            let frame = socket.next().await.ok_or_else(not_millrace)?;
            let Frame::Text(text) = frame.map_err(|error| HeartbeatError::Connect(cause(&error)))? else { continue };
            let message: ServerMessage = serde_json::from_str(&text).map_err(|_| not_millrace())?;
            if message.push.as_deref() == Some("connected") {
                let granted = Duration::from_millis(message.ping_ms.ok_or_else(not_millrace)?);
                return Ok(Self { socket, granted, silent_since: Instant::now() });
            }
        }
    }

    /// Waits for the first heartbeat.
    ///
    /// Errors: the server ends the session for a reason of its own.
    pub async fn run(mut self) -> Result<Measured, HeartbeatError> {
        let until = self.silent_since + self.granted + LATE_MAX + PATIENCE;
        loop {
            let next = timeout_at(until, self.socket.next()).await;
            let silence = self.silent_since.elapsed();
            match next {
                Ok(Some(Ok(Frame::Ping(_)))) => return Ok(Measured { silence, has_survived: true }),
                Ok(Some(Ok(Frame::Text(text)))) if is_drain(&text) => {
                    return Err(HeartbeatError::Connect("the server is shutting down".into()));
                }
                Ok(Some(Ok(Frame::Close(_))) | None | Some(Err(_))) => {
                    return Ok(Measured { silence, has_survived: false });
                }
                Ok(Some(Ok(_))) => self.silent_since = Instant::now(),
                Err(_) => return Ok(Measured { silence: self.granted + LATE_MAX, has_survived: false }),
            }
        }
    }
}

fn is_drain(text: &str) -> bool {
    serde_json::from_str::<ServerMessage>(text).is_ok_and(|message| message.push.as_deref() == Some("drain"))
}

/// A response other than `101` is final unless the server says that a retry helps.
fn refusal(error: Error, server: &Server) -> HeartbeatError {
    match error {
        Error::Http(response) => {
            let problem = Problem::of(response.status().as_u16(), response.body().as_deref().unwrap_or_default());
            let text = problem.to_string();
            if problem.retry { HeartbeatError::Connect(text) } else { HeartbeatError::Refused(text) }
        }
        error => match tls::permanent_reason(&error, server) {
            Some(why) => HeartbeatError::Refused(why),
            None => HeartbeatError::Connect(cause(&error)),
        },
    }
}
