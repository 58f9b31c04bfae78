//! One decision whether a publication may enter: permission, size, quota, the app's back end, congestion, in this
//! order. Every publishing path must refuse the same publication with the same code and the same counter.

use futures_util::SinkExt;
use serde_json::{Value, json};
use tokio::net::UdpSocket;
use tokio_tungstenite::tungstenite::Message as Frame;

use crate::{
    client::{
        Session,
        websocket::{self, Incoming},
    },
    hooks::back_end::{BackEnd, allow, hook, refuse},
    server::{Server, until, within},
};

/// Maximum payload size of the tests' server.
const BYTES_MAX: usize = 100;
/// Quota of the tests' server: publications per second of a connection, or datagrams per second of an address.
const QUOTA: usize = 3;
/// Channel that only the server may publish to.
const RESERVED: &str = "rooms/a/state";

/// Channel for which the app's back end is asked. It refuses the payload [`UNWANTED`].
const ASKED: &str = "asked";
const UNWANTED: &str = "unwanted";

/// Path of a publication into the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Path {
    Post,
    Batch,
    Session,
    BareWebSocket,
    DataChannel,
    Udp,
}

const PATHS: [Path; 6] = [Path::Post, Path::Batch, Path::Session, Path::BareWebSocket, Path::DataChannel, Path::Udp];

/// Result of a publication, as far as its path reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Outcome {
    Accepted,
    Refused(String),
}

/// A client that publishes through one path.
enum Publisher {
    Http,
    Session(Box<Session>),
    BareWebSocket,
    Udp(UdpSocket),
}

fn refused(code: &str) -> Outcome {
    Outcome::Refused(code.to_owned())
}

/// Outcome of a refusal by the app's back end. A datagram has no reply, so its outcome has no text.
fn refused_by_back_end(path: Path) -> Outcome {
    match path {
        Path::Udp => refused("refused"),
        _ => refused("refused: no_credit: your credit is used up"),
    }
}

fn outcome(error: &Value) -> Outcome {
    match (error["code"].as_str(), error["reason"].as_str()) {
        (Some(code), Some(reason)) => {
            refused(&format!("{code}: {reason}: {}", error["detail"].as_str().unwrap_or_default()))
        }
        (Some(code), None) => refused(code),
        (None, _) => Outcome::Accepted,
    }
}

impl Publisher {
    async fn open(path: Path, server: &Server) -> Self {
        match path {
            Path::Post | Path::Batch => Self::Http,
            Path::Session => Self::Session(Box::new(Session::open(server).await)),
            Path::DataChannel => Self::Session(Box::new(Session::open_data_channel(server, None).await)),
            Path::BareWebSocket => Self::BareWebSocket,
            Path::Udp => Self::Udp(udp(server).await),
        }
    }

    async fn publish(&mut self, path: Path, server: &Server, channel: &str, data: &str) -> Outcome {
        match self {
            Self::Http if path == Path::Post => {
                let answer = server.post(&format!("/v1/channels/{channel}"), &[], data.to_owned()).await;
                outcome(&answer.json())
            }
            Self::Http => {
                let line = json!({ "channel": channel, "data": data }).to_string();
                let results = server.post("/v1/publish", &[], line).await.json();
                outcome(&results["results"][0]["error"])
            }
            Self::Session(session) => {
                let replied = session.command("publish", json!({ "channel": channel, "data": data })).await;
                replied.map_or_else(|error| outcome(&error), |_| Outcome::Accepted)
            }
            Self::BareWebSocket => publish_bare(server, channel, data).await,
            Self::Udp(socket) => publish_datagram(server, socket, channel, data).await,
        }
    }
}

async fn udp(server: &Server) -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").await.expect("a free port");
    let address = server.get("/v1/info").await.json()["udp"].as_str().expect("an address").to_owned();
    socket.connect(address).await.expect("an address");
    socket
}

/// Publishes over a new bare WebSocket. A refusal is the reason of its close frame, because the protocol has no errors.
async fn publish_bare(server: &Server, channel: &str, data: &str) -> Outcome {
    let mut socket = websocket::connect(server, &format!("/v1/channels/{channel}"), None).await;
    socket.send(Frame::text(data.to_owned())).await.expect("an open socket");
    match within(websocket::receive(&mut socket)).await {
        // The client reads the channel, too, so it receives what was accepted.
        Incoming::Text(text) if text == data => Outcome::Accepted,
        Incoming::Closed(Some((1009, _))) => refused("too_large"),
        Incoming::Closed(Some((4008, reason))) => refused(&format!("refused: {reason}")),
        Incoming::Closed(Some((_, reason))) => refused(&reason),
        _ => panic!("neither the publication nor a close frame"),
    }
}

/// Publishes a datagram. It has no reply, so a refusal is known by its counters only.
async fn publish_datagram(server: &Server, socket: &UdpSocket, channel: &str, data: &str) -> Outcome {
    let before = [counters(server).await, [datagrams(server).await[0], hook_refusals(server).await, 0]].concat();
    let [_, dropped] = datagrams(server).await;
    let stored = server.get(&format!("/v1/channels/{channel}")).await.body;
    let line = json!({ "channel": channel, "data": data }).to_string();
    socket.send(line.as_bytes()).await.expect("a socket");
    until("the datagram has arrived", async || datagrams(server).await[0] > before[3]).await;
    if channel == ASKED {
        // The back end is asked while further datagrams are received.
        let is_stored = async || server.get(&format!("/v1/channels/{channel}")).await.body != stored;
        until("the back end has answered", async || is_stored().await || datagrams(server).await[1] > dropped).await;
    }
    let after = counters(server).await;
    match datagrams(server).await[1] > dropped {
        false => Outcome::Accepted,
        true if after[0] > before[0] => refused("too_large"),
        true if after[2] > before[2] => refused("rate_limited"),
        true if hook_refusals(server).await > before[4] => refused("refused"),
        true => refused("forbidden"),
    }
}

async fn hook_refusals(server: &Server) -> u64 {
    server.metric("millrace_hook_requests_total{hook=\"publish\",result=\"refused\"}").await
}

/// Returns how many datagrams were received and dropped. A datagram is handled before the next one is received.
async fn datagrams(server: &Server) -> [u64; 2] {
    [server.metric("millrace_udp_received_total").await, server.metric("millrace_udp_dropped_total").await]
}

/// Returns the counters of refusals: for the size, for the quota of a connection, for the datagrams of an address.
async fn counters(server: &Server) -> [u64; 3] {
    let mut counted = [0; 3];
    for (counted, limit) in counted.iter_mut().zip(["message_bytes_max", "publishes_per_s", "datagrams_per_s"]) {
        *counted = server.metric(&format!("millrace_refused_total{{limit=\"{limit}\"}}")).await;
    }
    counted
}

fn server(back_end: &BackEnd, publishes_per_s: usize, datagrams_per_s: usize) -> Server {
    Server::with(|config| {
        hook(config, back_end, &[]);
        config.namespaces.entry(ASKED.into()).or_default().hooks.publish = Some(back_end.url("/publish"));
        // With one shard the order of events of one client is the order of their effects.
        config.server.shards = 1;
        config.server.udp = "127.0.0.1:0".into();
        config.limits.message_bytes_max = BYTES_MAX;
        config.limits.exempt = Vec::new();
        config.limits.publishes_per_s = publishes_per_s as u64;
        config.limits.datagrams_per_s = datagrams_per_s as u64;
    })
}

async fn back_end() -> BackEnd {
    BackEnd::start(|question| if question.json()["data"] == UNWANTED { refuse() } else { allow() }).await
}

#[tokio::test]
async fn every_publish_path_refuses_with_same_code() {
    let small = "x".repeat(BYTES_MAX);
    let large = "x".repeat(BYTES_MAX + 1);
    let unwanted = UNWANTED.to_owned();
    // Channel and payload; the outcome; how often the size was counted as the reason.
    let cases = [
        (("a", &small), Outcome::Accepted, 0),
        ((RESERVED, &small), refused("forbidden"), 0),
        (("a", &large), refused("too_large"), 1),
        // The permission comes before the size.
        ((RESERVED, &large), refused("forbidden"), 0),
        ((ASKED, &small), Outcome::Accepted, 0),
        ((ASKED, &unwanted), refused("back end"), 0),
        // The size comes before the back end.
        ((ASKED, &large), refused("too_large"), 1),
    ];
    let back_end = back_end().await;
    for path in PATHS {
        let server = server(&back_end, 0, 0);
        let mut publisher = Publisher::open(path, &server).await;
        for ((channel, data), expected, counted) in &cases {
            let before = counters(&server).await[0];
            let got = publisher.publish(path, &server, channel, data).await;
            let what = format!("{path:?}: {} bytes to {channel}", data.len());
            let expected = match *expected == refused("back end") {
                true => &refused_by_back_end(path),
                false => expected,
            };
            assert_eq!(got, *expected, "{what}");
            assert_eq!(counters(&server).await[0] - before, *counted, "{what}");
        }
        let history = server.get("/v1/channels/a?since=earliest").await.json();
        assert_eq!(history["messages"].as_array().map(Vec::len), Some(1), "{path:?}: {history}");
        let history = server.get(&format!("/v1/channels/{ASKED}?since=earliest")).await.json();
        assert_eq!(history["messages"].as_array().map(Vec::len), Some(1), "{path:?}: {history}");
    }
}

#[tokio::test]
async fn refused_publication_takes_no_quota() {
    let (small, large) = ("x".repeat(BYTES_MAX), "x".repeat(BYTES_MAX + 1));
    // The quota of datagrams counts them before they are parsed, and a new WebSocket has a new quota.
    for path in [Path::Post, Path::Batch, Path::Session, Path::DataChannel] {
        let back_end = back_end().await;
        let server = server(&back_end, QUOTA, 0);
        let mut publisher = Publisher::open(path, &server).await;
        for _ in 0..2 * QUOTA {
            assert_eq!(publisher.publish(path, &server, RESERVED, &small).await, refused("forbidden"), "{path:?}");
            assert_eq!(publisher.publish(path, &server, "a", &large).await, refused("too_large"), "{path:?}");
        }
        assert_eq!(counters(&server).await[1], 0, "{path:?}");
        assert_eq!(publisher.publish(path, &server, "a", &small).await, Outcome::Accepted, "{path:?}");
    }
}

#[tokio::test]
async fn every_publish_path_uses_the_quota() {
    let small = "x".repeat(BYTES_MAX);
    for path in [Path::Post, Path::Batch, Path::Session, Path::DataChannel] {
        let back_end = back_end().await;
        let server = server(&back_end, QUOTA, 0);
        let mut publisher = Publisher::open(path, &server).await;
        let mut refusals = 0;
        until("the quota is spent", async || {
            let got = publisher.publish(path, &server, "a", &small).await;
            assert!(got == Outcome::Accepted || got == refused("rate_limited"), "{path:?}: {got:?}");
            refusals += u64::from(got != Outcome::Accepted);
            refusals > 0
        })
        .await;
        assert_eq!(counters(&server).await[1..], [refusals, 0], "{path:?}");
    }
    // A bare WebSocket has no errors: all its publications are accepted, and it is read more slowly.
    let back_end = back_end().await;
    let slow = server(&back_end, QUOTA, 0);
    let mut socket = websocket::connect(&slow, "/v1/channels/a?subscribe=no", None).await;
    for _ in 0..QUOTA + 2 {
        socket.send(Frame::text(small.clone())).await.expect("an open socket");
    }
    let all = async || slow.get("/v1/channels/a?since=earliest").await.json()["messages"].as_array().map(Vec::len);
    until("everything was accepted", async || all().await == Some(QUOTA + 2)).await;
    assert!(counters(&slow).await[1] > 0);
    // Datagrams above the rate of their address are dropped.
    let dropping = server(&back_end, 0, QUOTA);
    let mut publisher = Publisher::open(Path::Udp, &dropping).await;
    until("the rate is reached", async || {
        publisher.publish(Path::Udp, &dropping, "a", &small).await == refused("rate_limited")
    })
    .await;
}
