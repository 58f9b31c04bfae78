//! Tests `millrace gateway` with native peers.

use std::time::Duration;

use millrace_client::data_channel::{OpenError, PeerSocket};
use millrace_rtc::{Event, Lane};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{BOUND, Server, millrace};

/// A peer of a gateway.
struct Device(PeerSocket);

impl Device {
    async fn join(gateway: &Server, query: &str) -> Self {
        Self::try_join(gateway, query, "").await.unwrap_or_else(|error| panic!("{query}: {error}"))
    }

    async fn try_join(gateway: &Server, query: &str, secret: &str) -> Result<Self, OpenError> {
        let request = client().post(format!("{}/v1/connect?{query}", gateway.url)).bearer_auth(secret);
        PeerSocket::open(request).await.map(Self)
    }

    async fn send(&mut self, lane: Lane, message: &[u8]) {
        assert!(self.0.write(lane, true, message), "there is room");
        self.0.flush().await;
    }

    /// Returns the next message.
    async fn receive(&mut self) -> (Lane, Vec<u8>) {
        let hearing = async {
            loop {
                match self.0.poll_event() {
                    Some(Event::Data(lane, message)) => return (lane, message),
                    Some(Event::Closed) => panic!("the gateway has said good-bye"),
                    Some(_) => {}
                    None => self.0.wait().await,
                }
            }
        };
        tokio::time::timeout(BOUND, hearing).await.expect("a message in time")
    }

    /// Awaits `other` while this peer keeps running, so that its queued data is sent as acknowledgments arrive.
    async fn meanwhile<T>(&mut self, other: impl Future<Output = T>) -> T {
        let mut other = std::pin::pin!(other);
        loop {
            tokio::select! {
                done = &mut other => return done,
                () = self.0.wait() => {}
            }
        }
    }

    async fn hear_bundle(&mut self) -> Value {
        serde_json::from_slice(&self.receive().await.1).expect("a bundle is JSON")
    }
}

fn client() -> reqwest::Client {
    millrace_client::tls::http().build().expect("a client")
}

fn gateway(args: &[&str]) -> Server {
    Server::start_from(millrace(&["gateway", "--listen", "127.0.0.1:0"]).args(args))
}

#[tokio::test]
async fn gateway_forwards_one_to_one_in_both_directions() {
    let gateway = gateway(&[]);
    let mut a = Device::join(&gateway, "name=a&to=b").await;
    // A message to a receiver that has not connected is dropped and counted.
    a.send(Lane::Session, b"too soon").await;
    let is_counted = |stats: &str| stats.contains("\"nowhere\":1");
    gateway.get_until("/v1/stats", |answer| is_counted(&answer.body));
    let mut b = Device::join(&gateway, "name=b&to=a").await;
    for n in 0..100 {
        a.send(Lane::Session, format!("there {n}").as_bytes()).await;
    }
    for n in 0..100 {
        assert_eq!(a.meanwhile(b.receive()).await, (Lane::Session, format!("there {n}").into_bytes()));
    }
    b.send(Lane::Latest, b"and back").await;
    assert_eq!(a.receive().await, (Lane::Latest, b"and back".to_vec()));
    let large = vec![b'x'; 16 * 1024];
    a.send(Lane::Session, &large).await;
    assert_eq!(a.meanwhile(b.receive()).await, (Lane::Session, large));
    // After a peer disconnects, another peer may use its name.
    drop(b);
    gateway.get_until("/v1/stats", |answer| answer.body.contains("\"peers\":1"));
    Device::join(&gateway, "name=b").await;
}

#[tokio::test]
async fn gateway_gathers_and_splits_at_the_same_time() {
    let gateway = gateway(&["--mode", "both", "--window", "60s"]);
    let mut up = Device::join(&gateway, "name=up").await;
    let mut a = Device::join(&gateway, "name=a&to=up&urgent=!").await;
    let mut b = Device::join(&gateway, "name=b&to=up").await;
    b.send(Lane::Session, b"1").await;
    gateway.get_until("/v1/stats", |answer| answer.body.contains("\"received\":1"));
    a.send(Lane::Session, b"! now").await;
    let bundle = up.hear_bundle().await;
    assert_eq!(bundle, json!([{"peer": "b", "data": "1"}, {"peer": "a", "data": "! now"}]));
    let answer = json!([{"peer": "a", "data": "to a"}, {"peer": "b", "data": "AP8=", "encoding": "base64"}]);
    up.send(Lane::Session, answer.to_string().as_bytes()).await;
    assert_eq!(a.receive().await, (Lane::Session, b"to a".to_vec()));
    assert_eq!(b.receive().await, (Lane::Session, vec![0, 255]));
    let stats: Value = serde_json::from_str(&gateway.get("/v1/stats").body).expect("JSON");
    let counted =
        ["received", "sent", "gathered_bundles", "split_bundles", "urgent", "lost", "nowhere", "refused", "peers"];
    assert_eq!(counted.map(|name| stats[name].as_u64()), [3, 4, 1, 1, 1, 0, 0, 0, 3].map(Some), "{stats}");
}

#[tokio::test]
async fn gathering_window_ends_after_its_time() {
    let gateway = gateway(&["--mode", "multiplex", "--window", "300ms"]);
    let mut up = Device::join(&gateway, "name=up").await;
    let mut a = Device::join(&gateway, "name=a&to=up").await;
    let began = std::time::Instant::now();
    a.send(Lane::Session, b"1").await;
    a.send(Lane::Session, b"2").await;
    let bundle = up.hear_bundle().await;
    assert!(began.elapsed() >= Duration::from_millis(300), "{:?}", began.elapsed());
    assert_eq!(bundle, json!([{"peer": "a", "data": "1"}, {"peer": "a", "data": "2"}]));
}

#[tokio::test]
async fn refused_join_has_an_error_code() {
    let secret = "0123456789abcdef";
    let gateway = Server::start_from(
        millrace(&["gateway", "--listen", "127.0.0.1:0", "--allow-origin", "https://app.example", "--peers", "1"])
            .env("MILLRACE_GATEWAY_SECRET", secret),
    );
    let refused = async |query: &str, secret: &str| match Device::try_join(&gateway, query, secret).await {
        Err(OpenError::Refused(problem)) => problem.code,
        other => panic!("{query}: {:?}", other.map(drop)),
    };
    assert_eq!(refused("name=a", "").await, "unauthorized");
    assert_eq!(refused("name=a", "0123456789abcdeX").await, "unauthorized");
    assert_eq!(refused("name=", secret).await, "bad_request");
    assert_eq!(refused("nome=a", secret).await, "bad_request");
    let bearer = format!("Authorization: Bearer {secret}");
    let sdp = "Content-Type: application/sdp";
    for (headers, body, status) in [
        (&[&bearer[..], "Content-Type: text/plain"][..], "v=0", 400),
        (&[&bearer, sdp], "no offer", 400),
        (&[&bearer, sdp], &"v".repeat(70_000), 400),
        (&[sdp], "no offer", 401),
    ] {
        assert_eq!(gateway.ask("POST", "/v1/connect?name=a", headers, body).status, status, "{headers:?}");
    }
    assert_eq!((gateway.get("/v1/stats").status, gateway.get("/").status), (401, 404));
    // None of the refused peers has taken the only place.
    let first = Device::try_join(&gateway, "name=a", secret).await.expect("a place");
    assert_eq!(refused("name=b", secret).await, "unavailable");
    drop(first);
    for (origin, allowed) in [("https://app.example", true), ("https://other.example", false)] {
        let asked = gateway.ask("OPTIONS", "/v1/connect", &[&format!("Origin: {origin}")], "");
        assert_eq!(asked.head.contains("access-control-allow-origin"), allowed, "{asked:?}");
    }
    let mut process = gateway.process;
    process.signal(Signal::TERM);
    let said = process.err.rest() + &process.out.rest();
    assert!(!said.contains(secret) && process.finish().code == Some(0), "{said}");
}
