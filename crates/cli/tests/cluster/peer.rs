//! A participant of a room with native media over real UDP: it sends video, counts what it receives of each other
//! participant, and joins again on another node when its own one is silent.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use millrace_sfu::{MediaClient, MediaEvent, MediaKind, MediaOutput};
use serde_json::{Value, json};
use tokio::{net::UdpSocket, sync::mpsc, task::spawn_local, time::sleep_until};

use crate::chaos::block_on;

/// Interval between two frames.
const FRAME: Duration = Duration::from_millis(20);
/// A participant that receives no media for this time joins again, on the next node.
const SILENCE: Duration = Duration::from_millis(500);
/// Maximum time of a join until the media connection is established.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// Interval between two reports, which are signs of life.
const REPORT: Duration = Duration::from_secs(4);
const PAUSE: Duration = Duration::from_millis(50);
/// Place of the sender's mark in a payload, after the descriptor of VP8, the first byte of a frame and its number.
const MARK_AT: usize = 6;

/// Media that a participant has received.
#[derive(Default)]
pub struct Seen {
    pub id: String,
    pub secret: String,
    /// Number of joins that succeeded, and the node of the last one.
    pub joins: usize,
    pub node: usize,
    /// By the mark of the sender.
    pub senders: HashMap<u8, Received>,
}

#[derive(Clone, Copy)]
pub struct Received {
    pub packets: u64,
    pub last: Instant,
    /// Longest pause between two packets since [`Peer::forget_pauses`].
    pub pause: Duration,
}

pub struct Peer {
    pub mark: u8,
    seen: Arc<Mutex<Seen>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Peer {
    /// Starts a participant. `nodes`: URLs of the nodes; it joins on the node `first`. `mark`: marks its packets.
    pub fn start(nodes: Vec<String>, room: &str, mark: u8, first: usize) -> Self {
        let (seen, stop) = (Arc::<Mutex<Seen>>::default(), Arc::<AtomicBool>::default());
        let (writing, stopping, room) = (seen.clone(), stop.clone(), room.to_owned());
        let thread = std::thread::spawn(move || {
            block_on(async {
                let http = millrace_client::tls::http().timeout(Duration::from_secs(8)).build().expect("a client");
                let mut life = Life { nodes, room, mark, seen: writing, stop: stopping, http, seat: None };
                life.live(first).await;
            });
        });
        Self { mark, seen, stop, thread: Some(thread) }
    }

    pub fn seen(&self) -> MutexGuard<'_, Seen> {
        lock(&self.seen)
    }

    /// Returns true if packets of this sender have arrived since a time.
    pub fn receives(&self, mark: u8, since: Instant) -> bool {
        self.seen().senders.get(&mark).is_some_and(|received| received.last > since)
    }

    pub fn forget_pauses(&self) {
        self.seen().senders.values_mut().for_each(|received| received.pause = Duration::ZERO);
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A participant from its first join to its end.
struct Life {
    nodes: Vec<String>,
    room: String,
    mark: u8,
    seen: Arc<Mutex<Seen>>,
    stop: Arc<AtomicBool>,
    http: reqwest::Client,
    /// Id and ticket of the seat.
    seat: Option<(String, String)>,
}

/// A connection to one node.
struct Session {
    url: String,
    secret: String,
    http: reqwest::Client,
}

#[derive(Default)]
struct Output {
    datagrams: Vec<(SocketAddr, Vec<u8>)>,
    events: Vec<MediaEvent>,
}

impl MediaOutput for Output {
    fn send(&mut self, to: SocketAddr, datagram: Vec<u8>) {
        self.datagrams.push((to, datagram));
    }

    fn event(&mut self, event: MediaEvent) {
        self.events.push(event);
    }
}

impl Life {
    async fn live(&mut self, first: usize) {
        let mut node = first;
        while !self.stop.load(Relaxed) {
            let base = self.nodes[node].clone();
            if let Some((session, joined)) = self.join(&base, node).await {
                self.talk(&base, &session, &joined).await;
            }
            node = (node + 1) % self.nodes.len();
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn join(&mut self, base: &str, node: usize) -> Option<(Session, Value)> {
        let mut asked = json!({ "name": format!("peer {}", self.mark), "topology": "switch" });
        if let Some((id, ticket)) = &self.seat {
            asked["resume"] = json!({ "participant": id, "ticket": ticket });
        }
        let url = format!("{base}/v1/rooms/{}/participants", self.room);
        let answer = self.http.post(url).body(asked.to_string()).send().await.ok()?;
        if answer.status() != 201 {
            return None;
        }
        let joined: Value = answer.json().await.ok()?;
        let text = |name: &str| joined[name].as_str().unwrap_or_default().to_owned();
        let (id, secret) = (text("participant"), text("secret"));
        self.seat = Some((id.clone(), text("ticket")));
        let mut seen = lock(&self.seen);
        (seen.id, seen.secret, seen.node) = (id.clone(), secret.clone(), node);
        seen.joins += 1;
        let url = format!("{base}/v1/rooms/{}/participants/{id}", self.room);
        Some((Session { url, secret, http: self.http.clone() }, joined))
    }

    /// Sends and receives media until the node is silent.
    async fn talk(&self, base: &str, session: &Session, joined: &Value) {
        let socket = UdpSocket::bind("127.0.0.1:0").await.expect("a socket");
        let local = socket.local_addr().expect("an address");
        let (mut client, offer) = MediaClient::offer(local, &[MediaKind::Video], &[], Instant::now());
        session.signal("offer", &offer);
        let (signals, mut arriving) = mpsc::unbounded_channel();
        let (inbox, since) = self.inbox(joined);
        let reading = spawn_local(read_inbox(self.http.clone(), format!("{base}/v1/channels/{inbox}"), since, signals));
        let (began, mut reported) = (Instant::now(), Instant::now());
        let (mut received, mut is_connected) = (None::<Instant>, false);
        let (mut next, mut number, mut is_key) = (Instant::now(), 0_u32, true);
        let (mut out, mut buffer) = (Output::default(), vec![0; 2048]);
        loop {
            for (to, datagram) in out.datagrams.drain(..) {
                let _ = socket.send_to(&datagram, to).await;
            }
            for event in out.events.drain(..) {
                match event {
                    MediaEvent::Connected => is_connected = true,
                    MediaEvent::KeyframeWanted { .. } => is_key = true,
                    MediaEvent::Packet { payload, .. } => {
                        received = Some(Instant::now());
                        self.record(payload.get(MARK_AT).copied().unwrap_or_default());
                    }
                    MediaEvent::Estimate { .. } => {}
                    MediaEvent::Closed => received = Some(began),
                }
            }
            let is_silent = received.is_some_and(|at| at.elapsed() > SILENCE);
            let is_stuck = !is_connected && began.elapsed() > CONNECT_MAX;
            if is_silent || is_stuck || self.stop.load(Relaxed) {
                break;
            }
            let due = client.timeout().min(next);
            tokio::select! {
                arrived = socket.recv_from(&mut buffer) => if let Ok((length, from)) = arrived {
                    let _ = client.handle_datagram(Instant::now(), (from, local), &buffer[..length], &mut out);
                },
                Some(signal) = arriving.recv() => {
                    handle_signal(&mut client, session, &signal);
                    let _ = client.handle_timeout(Instant::now(), &mut out);
                }
                () = sleep_until(due.into()) => {}
            }
            let now = Instant::now();
            if client.timeout() <= now {
                let _ = client.handle_timeout(now, &mut out);
            }
            if next <= now {
                next = now + FRAME;
                if is_connected {
                    let descriptor = [0x10, u8::from(!is_key)];
                    let payload = [&descriptor[..], &number.to_be_bytes(), &[self.mark; 200]].concat();
                    let _ = client.send(0, (number.wrapping_mul(1800), true, payload.into()), now, &mut out);
                    (number, is_key) = (number + 1, false);
                }
            }
            if reported.elapsed() > REPORT {
                reported = now;
                session.post("reports", json!({}));
            }
        }
        reading.abort();
    }

    /// Returns the inbox of the participant, and the position after which its signals follow.
    fn inbox(&self, joined: &Value) -> (String, String) {
        let inbox = format!("rooms/{}/inbox/{}", self.room, joined["participant"].as_str().unwrap_or_default());
        let since = joined["positions"][&inbox].as_str().unwrap_or("now").to_owned();
        (inbox, since)
    }

    fn record(&self, mark: u8) {
        let (mut seen, now) = (lock(&self.seen), Instant::now());
        let received = seen.senders.entry(mark).or_insert(Received { packets: 0, last: now, pause: Duration::ZERO });
        received.pause = received.pause.max(now - received.last);
        (received.packets, received.last) = (received.packets + 1, now);
    }
}

impl Session {
    fn signal(&self, kind: &str, sdp: &str) {
        self.post("signals", json!({ "to": "switch", "description": { "type": kind, "sdp": sdp } }));
    }

    /// Posts in the background, in three attempts.
    fn post(&self, what: &str, body: Value) {
        let (url, secret, http) = (format!("{}/{what}", self.url), self.secret.clone(), self.http.clone());
        spawn_local(async move {
            for _ in 0..3 {
                let request = http.post(&url).header("millrace-participant", &secret).body(body.to_string());
                if request.send().await.is_ok_and(|answer| answer.status() == 204) {
                    return;
                }
                tokio::time::sleep(PAUSE).await;
            }
        });
    }
}

fn handle_signal(client: &mut MediaClient, session: &Session, signal: &Value) {
    let text = |name: &str| signal["description"][name].as_str().unwrap_or_default();
    match text("type") {
        "answer" => drop(client.accept(text("sdp"))),
        "offer" => {
            if let Ok(answer) = client.answer(text("sdp")) {
                session.signal("answer", &answer);
            }
        }
        _ => {}
    }
}

/// Reads the signals of an inbox by long polling, until the task is aborted.
async fn read_inbox(http: reqwest::Client, url: String, mut since: String, signals: mpsc::UnboundedSender<Value>) {
    loop {
        let Ok(answer) = http.get(format!("{url}?since={since}&wait=2")).send().await else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        if let Some(position) = answer.headers().get("millrace-position").and_then(|value| value.to_str().ok()) {
            since = position.to_owned();
        }
        let body: Value = answer.json().await.unwrap_or_default();
        for message in body["messages"].as_array().into_iter().flatten() {
            let _ = signals.send(message["data"].clone());
        }
    }
}

fn lock(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}
