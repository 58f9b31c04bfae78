//! Workloads: servers, clients and rates of each.

use std::time::Duration;

use millrace_lab::{
    load::{Role, websocket::Bare},
    targets::{Server, Transport},
};

use crate::{
    client::Client,
    client_group::{BYTES, ClientGroup},
    figures::Figures,
    idle,
    target::{Configured, Target, Variant},
};

/// Publications in flight while the maximum delivery rate is measured.
const IN_FLIGHT: u64 = 32;
/// The channel of the workloads that use one channel.
const CHANNEL: &str = "bench";

/// One kind of load.
pub enum Workload {
    /// One publisher and many subscribers, one message per `interval`. Open loop; the latency starts at the due time.
    Broadcast { subscribers: usize, interval: Duration, seconds: f64 },
    /// Like `Broadcast`, with 32 publications always in flight: measures the maximum delivery rate.
    Saturate { subscribers: usize, seconds: f64 },
    /// Publishers with one subscriber each and `per_s` messages each. Every message wakes another client.
    Pairs { pairs: usize, per_s: f64, seconds: f64 },
    /// One connection that sends a message and waits for its own message.
    Echo { seconds: f64 },
    /// Idle connections: memory between `from` and `to` of them, and their CPU while no ping is due, or over a whole
    /// heartbeat.
    Idle { from: usize, to: usize, heartbeat_s: Option<u64> },
    /// `Broadcast` to readers over HTTP; the publisher uses `POST`.
    HttpBroadcast { transport: Transport, is_tls: bool, readers: usize, interval: Duration, seconds: f64 },
    /// `Saturate` with readers over HTTP; the publisher uses `POST`, with 32 in flight on one connection.
    HttpSaturate { transport: Transport, readers: usize, seconds: f64 },
    /// Memory of idle HTTP readers.
    HttpIdle { transport: Transport, readers: usize },
    /// Publishers with a channel each, which `POST` again as soon as they are answered. Durable: an answer means that
    /// the publication is on disk.
    Post { publishers: usize, is_durable: bool, seconds: f64 },
}

impl Workload {
    pub fn all(seconds: f64, heartbeat_s: Option<u64>) -> Vec<Workload> {
        let interval = Duration::from_millis(5);
        let (sse, poll) = (Transport::Sse, Transport::LongPolling);
        let poll_broadcast = |is_tls| {
            let (transport, readers) = (poll, 300);
            Workload::HttpBroadcast { transport, is_tls, readers, interval, seconds }
        };
        vec![
            Workload::Broadcast { subscribers: 1000, interval, seconds },
            Workload::Saturate { subscribers: 100, seconds },
            Workload::Saturate { subscribers: 1000, seconds },
            Workload::Pairs { pairs: 4000, per_s: 4.0, seconds },
            Workload::Echo { seconds },
            Workload::Idle { from: 1000, to: 19_000, heartbeat_s },
            Workload::HttpBroadcast { transport: sse, is_tls: false, readers: 500, interval, seconds },
            Workload::HttpSaturate { transport: sse, readers: 1000, seconds },
            poll_broadcast(false),
            poll_broadcast(true),
            Workload::HttpIdle { transport: sse, readers: 10_000 },
            Workload::HttpIdle { transport: poll, readers: 10_000 },
            Workload::Post { publishers: 64, is_durable: false, seconds },
            Workload::Post { publishers: 64, is_durable: true, seconds },
        ]
    }

    pub fn names() -> Vec<String> {
        Workload::all(1.0, None).iter().map(Workload::name).collect()
    }

    pub fn name(&self) -> String {
        let short = |transport: &Transport| if *transport == Transport::Sse { "sse" } else { "poll" };
        match self {
            Workload::Broadcast { subscribers, .. } => format!("broadcast-{subscribers}"),
            Workload::Saturate { subscribers, .. } => format!("saturate-{subscribers}"),
            Workload::Pairs { pairs, .. } => format!("pairs-{pairs}"),
            Workload::Echo { .. } => "echo".into(),
            Workload::Idle { .. } => "idle".into(),
            Workload::HttpBroadcast { transport, is_tls, readers, .. } => {
                format!("{}-{readers}{}", short(transport), if *is_tls { "-tls" } else { "" })
            }
            Workload::HttpSaturate { transport, readers, .. } => format!("{}-saturate-{readers}", short(transport)),
            Workload::HttpIdle { transport, .. } => format!("{}-idle", short(transport)),
            Workload::Post { is_durable, .. } => if *is_durable { "post-durable" } else { "post" }.into(),
        }
    }

    pub fn describe(&self) -> String {
        let what = match self {
            Workload::Broadcast { subscribers, interval, .. } => {
                format!("{subscribers} subscribers, one message of {BYTES} bytes each {interval:?}")
            }
            Workload::Saturate { subscribers, .. } => {
                format!("{subscribers} subscribers, {IN_FLIGHT} publications in flight")
            }
            Workload::Pairs { pairs, per_s, .. } => {
                format!("{pairs} publishers with one subscriber each, {per_s} messages/s each")
            }
            Workload::Echo { .. } => "one connection, one message at a time".into(),
            Workload::Idle { from, to, .. } => format!("memory of idle connections, from {from} to {to}"),
            Workload::HttpBroadcast { transport, is_tls, readers, interval, .. } => {
                let tls = if *is_tls { " over TLS" } else { "" };
                format!("{readers} readers by {transport}{tls}, one message of {BYTES} bytes each {interval:?}")
            }
            Workload::HttpSaturate { transport, readers, .. } => {
                format!("{readers} readers by {transport}, {IN_FLIGHT} publications in flight")
            }
            Workload::HttpIdle { transport, readers } => {
                format!("memory of {readers} readers by {transport} to whom nothing is sent")
            }
            Workload::Post { publishers, is_durable, .. } => {
                let durable = if *is_durable { "; answered once it is on disk (fdatasync)" } else { "" };
                format!("{publishers} publishers with a channel each, one POST of {BYTES} bytes at a time{durable}")
            }
        };
        format!("{}: {what}", self.name())
    }

    /// Returns false if the target does not support this workload.
    pub fn takes(&self, target: Target) -> bool {
        match self {
            Workload::HttpBroadcast { is_tls: true, .. } => matches!(target, Target::Millrace | Target::Nchan),
            Workload::HttpBroadcast { .. } | Workload::HttpSaturate { .. } | Workload::HttpIdle { .. } => {
                target.is_http()
            }
            Workload::Post { is_durable, .. } => target.is_http() && !(*is_durable && target == Target::Nchan),
            _ => target.is_websocket(),
        }
    }

    pub fn run(&self, target: Target) -> anyhow::Result<Figures> {
        match *self {
            Workload::Broadcast { subscribers, interval, seconds } => {
                let server = target.configured(Variant::Plain)?.start()?;
                let readers = websockets(&server, subscribers, |_| format!("/v1/channels/{CHANNEL}"))?;
                let mut group = ClientGroup::new(readers, vec![publisher(&server)?], false)?;
                let messages = (seconds / interval.as_secs_f64()) as u64;
                group.open_loop(&server, messages, interval, subscribers as u64)
            }
            Workload::Saturate { subscribers, seconds } => {
                let server = target.configured(Variant::Plain)?.start()?;
                let readers = websockets(&server, subscribers, |_| format!("/v1/channels/{CHANNEL}"))?;
                let mut group = ClientGroup::new(readers, vec![publisher(&server)?], false)?;
                group.closed_loop(&server, seconds, IN_FLIGHT, subscribers as u64)
            }
            Workload::Pairs { pairs, per_s, seconds } => {
                let server = target.configured(Variant::Plain)?.start()?;
                let readers = websockets(&server, pairs, |i| format!("/v1/channels/pairs/{i}"))?;
                let publishers = websockets(&server, pairs, |i| format!("/v1/channels/pairs/{i}?subscribe=no"))?;
                let mut group = ClientGroup::new(readers, publishers, false)?;
                let interval = Duration::from_secs_f64(1.0 / (per_s * pairs as f64));
                group.open_loop(&server, (seconds * per_s) as u64 * pairs as u64, interval, 1)
            }
            Workload::Echo { seconds } => {
                let server = target.configured(Variant::Plain)?.start()?;
                let path = "/v1/channels/echo";
                let readers = websockets(&server, 1, |_| path.into())?;
                let publisher = readers[0].publisher(Box::new(Bare::new(path)))?;
                ClientGroup::new(readers, vec![publisher], false)?.closed_loop(&server, seconds, 1, 1)
            }
            Workload::Idle { from, to, heartbeat_s } => {
                idle::websockets(&target.configured(Variant::Plain)?.start()?, from, to, heartbeat_s)
            }
            Workload::HttpBroadcast { transport, is_tls, readers, interval, seconds } => {
                let target = target.configured(if is_tls { Variant::Tls } else { Variant::Plain })?;
                let server = target.start()?;
                let messages = (seconds / interval.as_secs_f64()) as u64;
                http_group(&target, &server, transport, readers)?.open_loop(&server, messages, interval, readers as u64)
            }
            Workload::HttpSaturate { transport, readers, seconds } => {
                let target = target.configured(Variant::Plain)?;
                let server = target.start()?;
                let mut group = http_group(&target, &server, transport, readers)?;
                group.closed_loop(&server, seconds, IN_FLIGHT, readers as u64)
            }
            Workload::HttpIdle { transport, readers } => {
                let target = target.configured(Variant::Plain)?;
                idle::waiting(&target.start()?, readers, || target.dialect(transport, Role::Subscriber, CHANNEL))
            }
            Workload::Post { publishers, is_durable, seconds } => {
                let target = target.configured(if is_durable { Variant::Durable } else { Variant::Plain })?;
                let server = target.start()?;
                let publisher = |i| {
                    let channel = format!("{CHANNEL}/{i}");
                    Client::connect(server.address, target.dialect(Transport::Sse, Role::Publisher, &channel))
                };
                let publishers = (0..publishers).map(publisher).collect::<anyhow::Result<Vec<_>>>()?;
                ClientGroup::new(Vec::new(), publishers, true)?.post(&server, seconds)
            }
        }
    }
}

fn websockets(server: &Server, count: usize, path: impl Fn(usize) -> String) -> anyhow::Result<Vec<Client>> {
    (0..count).map(|i| Client::connect(server.address, Box::new(Bare::new(path(i))))).collect()
}

fn publisher(server: &Server) -> anyhow::Result<Client> {
    Client::connect(server.address, Box::new(Bare::new(format!("/v1/channels/{CHANNEL}?subscribe=no"))))
}

/// Connects `readers` readers of one channel, and a publisher.
fn http_group(
    target: &Configured,
    server: &Server,
    transport: Transport,
    readers: usize,
) -> anyhow::Result<ClientGroup> {
    let client = |role| Client::connect(server.address, target.dialect(transport, role, CHANNEL));
    let readers = (0..readers).map(|_| client(Role::Subscriber)).collect::<anyhow::Result<Vec<_>>>()?;
    ClientGroup::new(readers, vec![client(Role::Publisher)?], true)
}
