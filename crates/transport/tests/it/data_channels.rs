//! Data channels beyond the promises of every transport: admission, loss, clients that do not read, and datagrams of
//! strangers.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use millrace_client::data_channel::{Connection, OpenError, ReceivedLine};
use millrace_rtc::{Event, Lane, Outputs, Peer};
use millrace_server::config::Secret;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::{
    client::Session,
    server::{Answer, Server, client, until, within},
};

async fn open(server: &Server) -> Connection {
    within(Connection::open(server.http.post(server.url("/v1/connect")))).await.expect("data channels")
}

fn offer() -> String {
    Peer::offer(SocketAddr::from(([127, 0, 0, 1], 1)), Instant::now()).sdp
}

/// Posts an offer as any HTTP client would.
async fn post(server: &Server, headers: &[(&str, &str)], body: String) -> Answer {
    let headers = [&[("content-type", "application/sdp")], headers].concat();
    server.post("/v1/connect", &headers, body).await
}

async fn heard(connection: &mut Connection) -> (Lane, Value) {
    let ReceivedLine { line, lane } = within(connection.next()).await.expect("an open connection");
    (lane, serde_json::from_str(&line).expect("a line of JSON"))
}

/// Subscribes and returns the reply.
async fn subscribe(connection: &mut Connection, channel: &str, policy: &str) -> Value {
    let command = json!({ "id": 1, "subscribe": { "channel": channel, "policy": policy } });
    connection.send_line(&command.to_string()).await;
    loop {
        let (lane, said) = heard(connection).await;
        if said["id"] == 1 {
            assert_eq!(lane, Lane::Session, "replies are never lost");
            return said["ok"].clone();
        }
    }
}

#[tokio::test]
async fn only_valid_authorized_offer_creates_peer() {
    let server = Server::with(|config| config.rtc.peers_max = 4);
    let other = [("content-type", "application/json")];
    server.post("/v1/connect", &other, offer()).await.assert_problem(400, "bad_request");
    for bad in ["", "v=0\r\n", "\0", &offer().replace("fingerprint", "thumb")] {
        post(&server, &[], bad.to_owned()).await.assert_problem(400, "bad_request");
    }
    post(&server, &[], "x".repeat(100_000)).await.assert_problem(413, "too_large");
    post(&server, &[("origin", "https://elsewhere.example")], offer()).await.assert_problem(403, "forbidden");
    assert_eq!(server.metric("millrace_rtc_peers").await, 0);
    let answer = post(&server, &[], offer()).await;
    assert_eq!((answer.status.as_u16(), answer.header("content-type")), (201, "application/sdp"));
    assert!(answer.text().contains("a=ice-lite") && answer.text().contains("a=candidate:"), "{}", answer.text());
    until("all room is taken", async || post(&server, &[], offer()).await.status == 503).await;
    assert!(server.metric("millrace_rtc_peers").await <= 4);

    let asking = Server::with(|config| {
        config.auth.secret = Secret::from("a secret of thirty-two bytes or more");
        config.server.public_metrics = true;
    });
    post(&asking, &[], offer()).await.assert_problem(401, "unauthorized");
    post(&asking, &[("authorization", "Bearer none")], offer()).await.assert_problem(401, "unauthorized");
    assert_eq!(asking.metric("millrace_rtc_peers").await, 0);

    let without = Server::with(|config| config.rtc.listen = "off".into());
    post(&without, &[], offer()).await.assert_problem(404, "not_found");
}

#[tokio::test]
async fn invalid_command_is_answered_and_split_lines_are_joined() {
    let server = Server::start();
    let mut connection = open(&server).await;
    assert_eq!(heard(&mut connection).await.1["push"], "connected");
    connection.send_line("{").await;
    assert_eq!(heard(&mut connection).await.1["code"], "bad_json");
    // Two commands and an empty line in one write, then one command that spans many messages.
    connection.send_line("{\"id\":1,\"ping\":{}}\n\n{\"id\":2,\"ping\":{}}").await;
    assert_eq!(heard(&mut connection).await.1["id"], 1);
    assert_eq!(heard(&mut connection).await.1["id"], 2);
    let data = "ä".repeat(100_000);
    connection.send_line(&json!({ "id": 3, "publish": { "channel": "long", "data": data } }).to_string()).await;
    assert!(heard(&mut connection).await.1["ok"]["position"].is_string());
    assert_eq!(server.get("/v1/channels/long").await.json()["messages"][0]["data"], data);
    connection.send_line(&"x".repeat((2 << 20) + 70_000)).await;
    let last = heard(&mut connection).await.1;
    assert_eq!((&last["push"], &last["code"]), (&json!("close"), &json!(1009)));
    assert!(within(connection.next()).await.is_none(), "it has ended");
    until("the peer has gone", async || server.metric("millrace_rtc_peers").await == 0).await;
}

#[tokio::test]
async fn latest_and_every_use_separate_channels() {
    let server = Server::start();
    let mut connection = open(&server).await;
    let start = subscribe(&mut connection, "lossy", "latest").await;
    assert!(start["position"].is_string(), "{start}");
    subscribe(&mut connection, "all", "every").await;
    server.publish("lossy", "1").await;
    server.publish("all", "2").await;
    let mut came = [heard(&mut connection).await, heard(&mut connection).await];
    came.sort_by_key(|(_, said)| said["data"].as_u64());
    let came = came.map(|(lane, said)| (lane, said["channel"].clone(), said["data"].clone()));
    assert_eq!(came, [(Lane::Latest, json!("lossy"), json!(1)), (Lane::Session, json!("all"), json!(2))]);
    server.await_presence("lossy", 1).await;
    connection.send_line(r#"{"id":7,"unsubscribe":{"channel":"lossy"}}"#).await;
    assert_eq!(heard(&mut connection).await.1, json!({ "id": 7, "ok": {} }));
    connection.send_line(r#"{"id":8,"unsubscribe":{"channel":"lossy"}}"#).await;
    assert_eq!(heard(&mut connection).await.1["error"]["code"], "not_subscribed");
    server.await_presence("lossy", 0).await;
    assert_eq!(connection.lost(), 0);
}

#[tokio::test]
async fn stalled_peer_resumes_by_its_policy() {
    const COUNT: u64 = 3000;
    let server = Server::start();
    let mut all = open(&server).await;
    subscribe(&mut all, "slow", "every").await;
    let mut newest = open(&server).await;
    subscribe(&mut newest, "slow", "latest").await;
    let mut quick = Session::open(&server).await;
    quick.subscribe("slow", "now", "every").await;
    // Neither connection answers during this time: it acknowledges no datagram.
    for batch in 0..COUNT / 1000 {
        let data = (0..1000).map(|i| json!({ "n": batch * 1000 + i, "text": "x".repeat(1000) }));
        server.publish_all("slow", data).await;
    }
    for n in 0..COUNT {
        assert_eq!(quick.push().await["data"]["n"], n, "others are not held up");
    }
    for n in 0..COUNT {
        assert_eq!(heard(&mut all).await.1["data"]["n"], n);
    }
    let mut got = Vec::new();
    while got.last() != Some(&(COUNT - 1)) {
        let (lane, said) = heard(&mut newest).await;
        assert_eq!(lane, Lane::Latest);
        got.push(said["data"]["n"].as_u64().expect("a number"));
    }
    assert!(got.is_sorted() && got.len() < 100, "{} of {COUNT} were still news", got.len());
}

#[tokio::test]
async fn unknown_senders_are_counted_without_reply() {
    let server = Server::with(|config| config.server.shards = 1);
    let answer = post(&server, &[], offer()).await.text();
    let candidate = answer.lines().find(|line| line.starts_with("a=candidate:")).expect("a candidate");
    let port: u16 = candidate.split(' ').nth(5).expect("a port").parse().expect("a number");
    let ufrag = answer.lines().find_map(|line| line.strip_prefix("a=ice-ufrag:")).expect("a name");
    let stranger = tokio::net::UdpSocket::bind("127.0.0.1:0").await.expect("a socket");
    stranger.connect(("127.0.0.1", port)).await.expect("a way");
    // A request with a valid user name but without the password, DTLS of an unknown peer, RTP, and noise.
    let name = format!("{ufrag}:abcd");
    let mut request = [&[0, 1, 0, 0, 0x21, 0x12, 0xa4, 0x42][..], &[7; 12], &[0, 6, 0, name.len() as u8]].concat();
    request.extend_from_slice(name.as_bytes());
    request.resize(request.len().next_multiple_of(4), 0);
    let length = (request.len() - 20) as u8;
    request[3] = length;
    let hello = [&[22, 254, 255, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4][..], &[1; 4]].concat();
    let noise = [request, hello, vec![0x80; 200], vec![255; 1400], Vec::new(), vec![0], vec![0, 1]];
    for datagram in &noise {
        stranger.send(datagram).await.expect("sent");
    }
    let count = noise.len() as u64;
    until("all were dropped", async || server.metric("millrace_rtc_dropped_total").await >= count).await;
    let mut buffer = [0; 2000];
    let told = tokio::time::timeout(Duration::from_millis(100), stranger.recv(&mut buffer)).await;
    assert!(told.is_err(), "{told:?}");
    let mut connection = open(&server).await;
    assert_eq!(heard(&mut connection).await.1["push"], "connected", "others come in");
}

/// A client that no UDP datagram reaches. The datagrams of its peer travel over one TCP stream, each prefixed with its
/// length.
struct ByStream {
    stream: TcpStream,
    peer: Peer,
    out: Outputs,
    local: SocketAddr,
    server: SocketAddr,
    lines: String,
}

/// Returns the address at which an answer offers TCP.
fn streams(answer: &str) -> Option<SocketAddr> {
    let candidate =
        answer.lines().find(|line| line.starts_with("a=candidate:") && line.contains(" tcptype passive"))?;
    let words: Vec<_> = candidate.split(' ').collect();
    Some(SocketAddr::new(words[4].parse().expect("an address"), words[5].parse().expect("a port")))
}

impl ByStream {
    async fn open(server: &Server) -> Self {
        // The source port of the stream is unknown before the stream is connected. RFC 6544 prescribes port 9 for an
        // active end.
        let local = SocketAddr::from(([127, 0, 0, 1], 9));
        let offer = Peer::offer(local, Instant::now());
        let answer = post(server, &[], offer.sdp.clone()).await.text();
        let address = streams(&answer).expect("streams are taken");
        let stream = TcpStream::connect(address).await.expect("a stream");
        let peer = offer.accept(&answer).expect("an answer");
        let out = Outputs::default();
        let mut made = Self { stream, peer, out, local, server: address, lines: String::new() };
        let begun = made.peer.handle_timeout(Instant::now(), &mut made.out);
        begun.expect("a beginning");
        while !made.out.events.contains(&Event::Open(Lane::Session)) {
            made.go_on().await;
        }
        made
    }

    /// Sends the pending datagrams, then waits for a datagram or a timer.
    async fn go_on(&mut self) {
        for (_, datagram) in std::mem::take(&mut self.out.datagrams) {
            let framed = [&(datagram.len() as u16).to_be_bytes()[..], &datagram].concat();
            // In pieces, because a stream may split any write.
            for piece in framed.chunks(700) {
                self.stream.write_all(piece).await.expect("sent");
            }
        }
        let timer = self.peer.timeout();
        tokio::select! {
            ready = self.stream.readable() => {
                ready.expect("a stream");
                let length = self.stream.read_u16().await.expect("a length");
                let mut datagram = vec![0; usize::from(length)];
                self.stream.read_exact(&mut datagram).await.expect("a datagram");
                let taken = self.peer.handle_datagram(Instant::now(), self.server, self.local, &datagram, &mut self.out);
                taken.expect("a connection");
            }
            () = tokio::time::sleep_until(timer.into()) => {
                self.peer.handle_timeout(Instant::now(), &mut self.out).expect("a connection");
            }
        }
    }

    async fn send_text(&mut self, line: &str) {
        let line = format!("{line}\n");
        for piece in line.as_bytes().chunks(10_000) {
            let taken = self.peer.write(Instant::now(), Lane::Session, true, piece, &mut self.out);
            assert!(taken.expect("a connection"), "there is room");
        }
    }

    async fn line(&mut self) -> Value {
        loop {
            while let Some(event) = self.out.events.pop_front() {
                if let Event::Data(Lane::Session, data) = event {
                    self.lines.push_str(std::str::from_utf8(&data).expect("text"));
                }
            }
            if let Some((line, rest)) = self.lines.split_once('\n') {
                let line = serde_json::from_str(line).expect("a line of JSON");
                self.lines = rest.to_owned();
                return line;
            }
            self.go_on().await;
        }
    }
}

#[tokio::test]
async fn peer_without_udp_connects_over_tcp() {
    let server = Server::with(|config| config.server.shards = 1);
    let mut client = within(ByStream::open(&server)).await;
    assert_eq!(within(client.line()).await["push"], "connected");
    let data = "ä".repeat(50_000);
    client.send_text(&json!({ "id": 1, "subscribe": { "channel": "far", "since": "now" } }).to_string()).await;
    client.send_text(&json!({ "id": 2, "publish": { "channel": "far", "data": data } }).to_string()).await;
    let mut came = Vec::new();
    while came.len() < 3 {
        came.push(within(client.line()).await);
    }
    assert!(came.iter().any(|line| line["id"] == 1 && line["ok"].is_object()), "{came:?}");
    assert!(came.iter().any(|line| line["data"] == data.as_str()), "what was published comes back");

    // Datagrams from a stranger's stream are dropped without an answer. A stream with invalid lengths is closed.
    let dropped = server.metric("millrace_rtc_dropped_total").await;
    let mut stranger = TcpStream::connect(client.server).await.expect("a stream");
    stranger.write_all(&[0, 3, 1, 2, 3, 0, 0, 0, 1, 255]).await.expect("sent");
    until("all were dropped", async || server.metric("millrace_rtc_dropped_total").await == dropped + 3).await;
    stranger.write_all(&[255; 100]).await.expect("sent");
    let mut told = Vec::new();
    within(stranger.read_to_end(&mut told)).await.ok();
    assert!(told.is_empty(), "{told:?}");
    client.send_text(r#"{"id":3,"ping":{}}"#).await;
    assert_eq!(within(client.line()).await["id"], 3, "others go on");
    drop(client);

    let without = Server::with(|config| config.rtc.tcp = false);
    assert_eq!(streams(&post(&without, &[], offer()).await.text()), None);
}

#[tokio::test]
async fn ticket_resumes_both_channels() {
    let server = Server::with(|config| {
        config.drain.window = Duration::from_millis(500);
        config.server.secret = Secret::from("sixteen bytes or more");
    });
    let other = Server::with(|config| config.server.secret = Secret::from("sixteen bytes or more"));
    let mut connection = open(&server).await;
    subscribe(&mut connection, "a", "every").await;
    subscribe(&mut connection, "b", "latest").await;
    let drained = tokio::spawn(server.drain());
    let (_, drain) = heard(&mut connection).await;
    assert_eq!(drain["push"], "drain");
    let ticket = drain["resume"].as_str().expect("a ticket").to_owned();
    let mut last = Value::Null;
    while let Some(ReceivedLine { line, .. }) = within(connection.next()).await {
        last = serde_json::from_str(&line).expect("JSON");
    }
    assert_eq!((&last["push"], &last["code"]), (&json!("close"), &json!(1012)));
    within(drained).await.expect("it ends");
    let mut resumed = Session::open_data_channel(&other, Some(&ticket)).await;
    assert_eq!(resumed.connected["resumed"], json!(["a", "b"]), "{}", resumed.connected);
    for channel in ["a", "b"] {
        assert_eq!(resumed.reply(0).await.expect("a subscription")["channel"], channel);
    }
}

#[tokio::test]
async fn unreachable_server_is_reported() {
    let request = client(false).post("http://127.0.0.1:1/v1/connect");
    assert!(matches!(within(Connection::open(request)).await, Err(OpenError::Lost(_))));
}
