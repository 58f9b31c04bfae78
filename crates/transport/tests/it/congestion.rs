//! Publishers that are faster than the readers are served. A publisher that can retry is refused for now; other
//! publishers are read more slowly. No publication is lost.
#![allow(clippy::unwrap_used, reason = "a test may stop where it is wrong")]

use std::{
    net::SocketAddr,
    sync::{Arc, atomic::Ordering::Relaxed},
    thread::JoinHandle,
};

use futures_util::{SinkExt, StreamExt};
use http::request::Parts;
use millrace_delivery::{ChannelKey, Hub};
use millrace_engine::MemoryEngine;
use millrace_node::{ChannelEvent, Delivery, Metrics, Router, Shard};
use millrace_protocol::{ChannelName, Epoch, ticket::TicketKey};
use millrace_transport::{
    Admission, Config, Context, Listener, Pages, SocketMetrics, Sockets,
    access::{Access, AllowAll},
    bind_udp,
    http::Response,
    serve,
};
use serde_json::{Value, json};
use tokio::{sync::watch, task::LocalSet};
use tokio_tungstenite::tungstenite::Message as Frame;

use crate::{
    client::websocket,
    server::{Server, until, within},
};

/// Number of entries at which a mailbox counts as congested.
const HIGH_WATER: usize = 8192;

/// The first of two shards. The second shard has a reader of `busy`, and only the test reads its mailbox.
struct Half {
    server: Server,
    datagrams: SocketAddr,
    router: Arc<Router>,
    metrics: Arc<Metrics>,
    sockets: Arc<SocketMetrics>,
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

struct NoPages;

impl Pages for NoPages {
    fn answer(&self, _: &Parts) -> Option<Response> {
        None
    }
}

impl Half {
    fn start() -> Self {
        let listener = Listener::bind(SocketAddr::from(([127, 0, 0, 1], 0)), 1).unwrap().remove(0);
        let address = listener.address().unwrap();
        let socket = bind_udp(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        let datagrams = socket.local_addr().unwrap();
        let (router, metrics) = (Arc::new(Router::new(2)), Arc::<Metrics>::default());
        let sockets = Arc::<SocketMetrics>::default();
        let key = ChannelKey::from_bits(1 << 32).unwrap();
        router.set_readers(1, &ChannelName::parse("busy").unwrap(), key, 1, |_| {});
        let (stop, mut stopped) = watch::channel(false);
        let (of_shard, counted, counted_sockets) = (router.clone(), metrics.clone(), sockets.clone());
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            LocalSet::new().block_on(&runtime, async move {
                let engine = Arc::new(MemoryEngine::new(Default::default(), Epoch(1), of_shard.clone(), || 1));
                let (config, sockets) = (Config::default(), Sockets::new(counted_sockets).unwrap());
                let shard = Shard::new(0, of_shard, engine, Hub::new(config.hub()), sockets, counted);
                let (_never, draining) = watch::channel(None);
                let tickets = Arc::new(TicketKey::new(b"secret"));
                let access = Arc::new(Access::from(AllowAll::default()));
                let limits = millrace_transport::Limits::new(&config, 1024);
                let admission = Admission::new(config, draining, tickets, access, limits, None, None);
                let context = Context::new(shard, admission, Arc::new(NoPages));
                let stop = async move { drop(stopped.wait_for(|stopped| *stopped).await) };
                serve(context, listener, Some(socket), None, stop).await.unwrap();
            });
        });
        Self { server: Server::at(address), datagrams, router, metrics, sockets, stop, thread: Some(thread) }
    }

    /// Returns the offsets that were sent to the second shard since the last call.
    fn take(&self) -> Vec<u64> {
        let published = |delivery: &Delivery| match &delivery.event {
            ChannelEvent::Published(_, publication) => Some(publication.offset),
            ChannelEvent::Moved(_) => None,
        };
        self.router.mailbox(1).take(Vec::new()).0.iter().filter_map(published).collect()
    }

    /// Waits until a pause has expired once, then serves the second shard until it has received everything up to
    /// `last`.
    async fn drain_slowly(&self, last: u64, frame_bytes: usize) {
        let paused = || self.sockets.publishers_paused.load(Relaxed) as usize;
        until("the publisher is paused again", async || paused() >= 2).await;
        let mut heard = self.take();
        // Each pause begins after one read beyond the limit.
        let most = HIGH_WATER + (paused() + 1) * 64 * 1024 / frame_bytes;
        assert!((HIGH_WATER..=most).contains(&heard.len()), "{} of at most {most}", heard.len());
        until("everything has come", async || {
            heard.extend(self.take());
            heard.len() as u64 >= last
        })
        .await;
        assert!(heard.into_iter().eq(1..=last), "each once and in order");
    }
}

impl Drop for Half {
    fn drop(&mut self) {
        self.stop.send_replace(true);
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(matches!(ended, Some(Ok(()))) || std::thread::panicking());
    }
}

#[tokio::test]
async fn congested_http_publish_gets_retry_after() {
    let half = Half::start();
    let lines = (json!({ "channel": "busy", "data": 1 }).to_string() + "\n").repeat(1000);
    let mut refused = 0;
    for _ in 0..=HIGH_WATER / 1000 {
        let results = half.server.post("/v1/publish", &[], lines.clone()).await.json();
        let errors = results["results"].as_array().unwrap().iter().filter(|result| result["error"].is_object());
        let errors: Vec<&Value> = errors.map(|result| &result["error"]).collect();
        assert!(errors.iter().all(|error| error["code"] == "congested" && error["retry"] == true), "{errors:?}");
        refused += errors.len();
    }
    assert_eq!(refused, 9000 - HIGH_WATER);
    let answer = half.server.post("/v1/channels/busy", &[], "1").await;
    answer.assert_problem(429, "congested");
    assert_eq!(answer.header("retry-after"), "1");
    assert_eq!(half.metrics.publications_refused.load(Relaxed) as usize, refused + 1);
    assert_eq!(half.server.publish("quiet", "1").await, "00000001:1", "other channels do not mind");
    let large = "x".repeat(Config::default().message_bytes_max + 1);
    half.server.post("/v1/channels/busy", &[], large).await.assert_problem(413, "too_large");
    let device = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    device.send_to(br#"{"channel":"busy","data":1}"#, half.datagrams).unwrap();
    until("the datagram is refused, too", async || half.sockets.udp_dropped.load(Relaxed) == 1).await;
    assert_eq!(half.metrics.publications_refused.load(Relaxed) as usize, refused + 2, "the size comes first");

    assert!(half.take().into_iter().eq(1..=HIGH_WATER as u64));
    let next = HIGH_WATER + 1;
    assert_eq!(half.server.publish("busy", "1").await, format!("00000001:{next}"), "what was refused has no position");
    assert_eq!(half.take(), [next as u64]);
}

#[tokio::test]
async fn congested_bare_websocket_is_read_more_slowly() {
    const ALL: u64 = 40_000;
    let half = Half::start();
    let mut socket = websocket::connect(&half.server, "/v1/channels/busy?subscribe=no", None).await;
    let payload = "x".repeat(200);
    let publishing = async {
        for _ in 0..ALL {
            socket.feed(Frame::text(payload.clone())).await.unwrap();
        }
        socket.flush().await.unwrap();
    };
    within(async { tokio::join!(publishing, half.drain_slowly(ALL, payload.len())) }).await;
}

#[tokio::test]
async fn congested_session_is_read_more_slowly() {
    const ALL: u64 = 20_000;
    let half = Half::start();
    let (mut commands, mut replies) =
        websocket::connect(&half.server, "/v1/connect", Some("millrace.v1+json")).await.split();
    let payload = "x".repeat(200);
    let publishing = async {
        for id in 1..=ALL {
            let command = json!({ "id": id, "publish": { "channel": "busy", "data": payload } });
            commands.feed(Frame::text(command.to_string())).await.unwrap();
        }
        commands.flush().await.unwrap();
    };
    let reading = async {
        replies.next().await.unwrap().unwrap();
        for id in 1..=ALL {
            let reply: Value = serde_json::from_str(replies.next().await.unwrap().unwrap().to_text().unwrap()).unwrap();
            assert_eq!(reply, json!({ "id": id, "ok": { "position": format!("00000001:{id}") } }));
        }
    };
    within(async { tokio::join!(publishing, reading, half.drain_slowly(ALL, payload.len())) }).await;
}
