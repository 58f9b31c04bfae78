//! One call: a server with its relay, one browser behind each link, and what they report.

use std::{
    fs,
    io::{Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    path::Path,
    sync::{
        OnceLock,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant, SystemTime},
};

use anyhow::{Context, anyhow, ensure};
use millrace_call::y4m::Size;
use millrace_link::{Config, Traces};
use serde::Deserialize;

use super::{
    browser::{self, Browser},
    flows::{Flow, Flows},
};
use crate::{
    host::{
        sampler::{Root, Sampler, Settings},
        series::Series,
    },
    path::{
        Emulator, Report,
        behind::{self, Options},
        emulator::Records,
    },
    targets,
};

/// Conditions of a call.
pub struct Plan<'a> {
    pub browsers: &'a [Browser],
    /// Link of each participant to the relay.
    pub links: &'a [Config],
    pub size: Size,
    /// Calls of each two participants, and the time between their starts.
    pub calls: usize,
    pub offset: Duration,
    pub max_bits_per_s: u64,
    /// TCP flows per direction and participant, and when they start.
    pub flows: usize,
    pub tcp_start: Duration,
    pub test: Duration,
    pub patience: Duration,
    /// Video in front of the cameras (y4m).
    pub camera: &'a Path,
    pub seed: u64,
}

/// Results of a call.
pub struct Measured {
    pub ends: Vec<End>,
    /// CPU and memory: one tree per participant ([`name_of`]), and [`SERVER`].
    pub series: Series,
    pub flows: Vec<Flow>,
    /// When the call was over.
    pub ended: Instant,
    pub clock: Clock,
}

/// One participant.
pub struct End {
    /// Its connections to the others.
    pub links: Vec<Uploaded>,
    pub report: Report,
    pub user_agent: String,
}

/// Statistics of one connection.
#[derive(Clone, Debug, Default)]
pub struct Uploaded {
    pub peer: usize,
    /// Number of the call among those with this peer.
    pub call: usize,
    pub setup_ms: f64,
    pub samples: Vec<Sample>,
}

/// A reading of `getStats`. Fields that a browser does not report are `None`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Sample {
    /// Milliseconds since 1970.
    pub at: f64,
    /// Type of the local ICE candidate.
    pub route: Option<String>,
    pub cipher: Option<String>,
    pub codec: Option<String>,
    pub rtt_s: Option<f64>,
    pub sent: Option<Sent>,
    pub received: Option<Received>,
}

/// Source: W3C "Identifiers for WebRTC's Statistics API", `RTCOutboundRtpStreamStats`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Sent {
    pub ssrc: u32,
    pub bytes_sent: u64,
    /// Heads and padding.
    pub header_bytes_sent: Option<u64>,
    pub packets_sent: u64,
    pub frames_encoded: u64,
    pub frame_width: u64,
    pub frame_height: u64,
}

/// Source: W3C "Identifiers for WebRTC's Statistics API", `RTCInboundRtpStreamStats`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Received {
    pub ssrc: u32,
    pub bytes_received: u64,
    /// Heads and padding.
    pub header_bytes_received: Option<u64>,
    pub packets_received: u64,
    /// Negative if packets were duplicated.
    pub packets_lost: i64,
    pub retransmitted_packets_received: Option<u64>,
    pub frames_decoded: u64,
    pub freeze_count: u64,
}

/// One clock for captures, statistics of browsers, and resources: the browsers run on this machine.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin: Instant,
    wall: Duration,
}

impl Clock {
    fn start() -> Self {
        let wall = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self { origin: Instant::now(), wall }
    }

    /// Returns the time since the start.
    pub fn of(&self, instant: Instant) -> Duration {
        instant.saturating_duration_since(self.origin)
    }

    /// Returns the time since the start for milliseconds since 1970.
    pub fn of_wall_ms(&self, ms: f64) -> Duration {
        Duration::try_from_secs_f64(ms / 1000.0).unwrap_or_default().saturating_sub(self.wall)
    }
}

pub enum Outcome {
    Measured(Box<Measured>),
    /// The participants had no media in time, or a browser has failed.
    Failed(String),
}

/// Name of the process tree of the server.
pub const SERVER: &str = "server";
const CHANNEL: &str = "lab/call";
const LOOK: Duration = Duration::from_millis(200);
const REQUEST_MAX: Duration = Duration::from_secs(5);
/// Time for the upload of the statistics after the test.
const UPLOAD_MAX: Duration = Duration::from_secs(60);
const RESPONSE_BYTES_MAX: u64 = 64 << 20;
const LOG_TAIL_BYTES: usize = 600;

/// Returns the letter of a participant, as in the thesis.
pub fn name_of(end: usize) -> String {
    char::from(b'A' + end as u8).to_string()
}

/// Makes a call.
///
/// Errors: this machine cannot make calls, or the run was stopped.
pub fn run(
    plan: &Plan<'_>,
    server: &targets::Options,
    go_on: &dyn Fn() -> anyhow::Result<()>,
) -> anyhow::Result<Outcome> {
    let folder = tempfile::tempdir()?;
    let page = folder.path().join("call.html");
    fs::write(&page, include_str!("call.html"))?;
    let hosts = behind::hosts().map(|host| format!("\"{host}\"")).collect::<Vec<_>>().join(",");
    let settings = [format!("server.hosts=[{hosts}]"), "limits.allowed_origins=[\"*\"]".to_owned()];
    let mut options = server.clone();
    options.arguments.extend(settings.into_iter().flat_map(|setting| ["--set".to_owned(), setting]));
    let server = targets::find("millrace")?.start(&options)?;
    let flows = (plan.flows > 0).then(Flows::listen).transpose()?;
    let (clock, count) = (Clock::start(), plan.browsers.len());
    let (stop, may_flow) = (AtomicBool::new(false), AtomicBool::new(false));
    let (width, height) = (plan.size.width(), plan.size.height());
    let command = |(own, browser): (usize, &Browser)| {
        let query = format!(
            "channel={CHANNEL}&own={own}&of={count}&calls={}&offset_ms={}&for_ms={}&width={width}&height={height}&max_bits_per_s={}",
            plan.calls,
            plan.offset.as_millis(),
            plan.test.as_millis(),
            plan.max_bits_per_s
        );
        let query = (server.address.port(), query.as_str());
        browser.command(&folder.path().join(name_of(own)), &page, plan.camera, query)
    };
    let commands = plan.browsers.iter().enumerate().map(command).collect::<anyhow::Result<Vec<_>>>()?;
    thread::scope(|scope| -> anyhow::Result<Outcome> {
        let mut running = Vec::new();
        for (own, (command, link)) in commands.into_iter().zip(plan.links).enumerate() {
            let records = Records { heads: true, ..Records::default() };
            // Links of one seed must not lose the same packets.
            let seed = plan.seed.wrapping_add((own as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
            let link = Options { config: link.clone(), traces: Traces::default(), seed, records };
            let (stop, may_flow, flows, plan) = (&stop, &may_flow, &flows, &plan);
            running.push(scope.spawn(move || {
                let (host, mut has_flows) = (OnceLock::<Ipv4Addr>::new(), false);
                let start = |address| {
                    let _ = host.set(address);
                };
                let look = |_: &Emulator| {
                    if let (Some(flows), Some(host), false, true) =
                        (flows, host.get(), has_flows, may_flow.load(Relaxed))
                    {
                        has_flows = true;
                        for _ in 0..plan.flows {
                            // A flow without threads delivers nothing, which the table shows.
                            let _ = flows.open(*host);
                        }
                    }
                };
                behind::run(link, command, stop, start, look)
            }));
        }
        let is_over = || running.iter().any(thread::ScopedJoinHandle::is_finished);
        let watched =
            watch(plan, (server.address, &server.root_pids()), folder.path(), clock, &may_flow, &is_over, go_on);
        let ended = Instant::now();
        let flows = flows.as_ref().map(Flows::finish).unwrap_or_default();
        stop.store(true, Relaxed);
        let mut reports = Vec::new();
        for end in running {
            reports.push(end.join().map_err(|_| anyhow!("the thread of a browser died"))??.1);
        }
        let (uploads, series) = match watched? {
            Watched::Done(uploads, series) => (uploads, series),
            Watched::Failed(why) => return Ok(Outcome::Failed(why)),
        };
        let ends = uploads.into_iter().zip(reports);
        let ends = ends.map(|((links, user_agent), report)| End { links, report, user_agent }).collect();
        Ok(Outcome::Measured(Box::new(Measured { ends, series, flows, ended, clock })))
    })
}

enum Watched {
    /// Connections and browser of each participant.
    Done(Vec<(Vec<Uploaded>, String)>, Series),
    Failed(String),
}

/// Follows a call until all participants have uploaded their statistics.
fn watch(
    plan: &Plan<'_>,
    (server, server_pids): (SocketAddr, &[u32]),
    folder: &Path,
    clock: Clock,
    may_flow: &AtomicBool,
    is_over: &dyn Fn() -> bool,
    go_on: &dyn Fn() -> anyhow::Result<()>,
) -> anyhow::Result<Watched> {
    let count = plan.browsers.len();
    let (started, mut began, mut sampler) = (Instant::now(), None::<Instant>, None);
    loop {
        go_on()?;
        let messages = messages(server).context("the figures of the call")?;
        if sampler.is_none()
            && let Some(roots) = roots(folder, count, server_pids)
        {
            // Each sample, one per second, reads the proportional set size.
            let settings = Settings { pss_interval: Duration::ZERO, ..Settings::default() };
            sampler = Some(Sampler::start(&roots, settings, move || clock.of(Instant::now()))?);
        }
        if let Some(message) = messages.iter().find(|message| message.error.is_some()) {
            let error = message.error.as_deref().unwrap_or_default();
            return Ok(Watched::Failed(format!("{}: {error}", name_of(message.from))));
        }
        if began.is_none() && messages.iter().filter(|message| message.began).count() == count {
            began = Some(Instant::now());
        }
        if began.is_some_and(|began| began.elapsed() >= plan.tcp_start) {
            may_flow.store(true, Relaxed);
        }
        if messages.iter().filter(|message| message.done).count() == count {
            let series = sampler.map(Sampler::finish).unwrap_or_default();
            return Ok(Watched::Done((0..count).map(|end| uploaded(&messages, end)).collect(), series));
        }
        let limit = began.map_or((started, plan.patience), |began| (began, plan.test + UPLOAD_MAX));
        let is_late = limit.0.elapsed() > limit.1;
        if is_late || is_over() {
            let what = match (is_late, began) {
                (false, _) => "a browser has ended".to_owned(),
                (true, None) => format!("no media of all participants within {} s", plan.patience.as_secs()),
                (true, Some(_)) => "the statistics were not uploaded".to_owned(),
            };
            let logs = (0..count).map(|end| format!("\nlog of {}: {}", name_of(end), log_tail(folder, end)));
            return Ok(Watched::Failed(format!("{what}{}", logs.collect::<String>())));
        }
        thread::sleep(LOOK);
    }
}

/// Returns the process trees, once all browsers have started.
fn roots(folder: &Path, count: usize, server: &[u32]) -> Option<Vec<Root>> {
    let pid = |end: usize| {
        let text = fs::read_to_string(folder.join(name_of(end)).join(browser::PID_FILE)).ok()?;
        Some(Root { name: name_of(end), pid: text.trim().parse().ok()? })
    };
    let mut roots = (0..count).map(pid).collect::<Option<Vec<Root>>>()?;
    roots.extend(server.iter().map(|pid| Root { name: SERVER.into(), pid: *pid }));
    Some(roots)
}

fn log_tail(folder: &Path, end: usize) -> String {
    let log = fs::read(folder.join(name_of(end)).join(browser::LOG)).unwrap_or_default();
    String::from_utf8_lossy(&log[log.len().saturating_sub(LOG_TAIL_BYTES)..]).trim().to_owned()
}

/// Message of a page.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Message {
    from: usize,
    began: bool,
    done: bool,
    browser: String,
    error: Option<String>,
    peer: Option<usize>,
    call: usize,
    setup_ms: f64,
    samples: Vec<Sample>,
}

fn uploaded(messages: &[Message], end: usize) -> (Vec<Uploaded>, String) {
    let mut links: Vec<Uploaded> = Vec::new();
    let mut user_agent = String::new();
    for message in messages.iter().filter(|message| message.from == end) {
        if message.done {
            user_agent.clone_from(&message.browser);
        }
        let Some(peer) = message.peer else { continue };
        let call = message.call;
        let place = links.iter().position(|link| (link.peer, link.call) == (peer, call)).unwrap_or_else(|| {
            links.push(Uploaded { peer, call, setup_ms: message.setup_ms, samples: Vec::new() });
            links.len() - 1
        });
        links[place].samples.extend(message.samples.iter().cloned());
    }
    (links, user_agent)
}

/// Reads all messages of the pages so far.
fn messages(server: SocketAddr) -> anyhow::Result<Vec<Message>> {
    #[derive(Deserialize)]
    struct Page {
        messages: Vec<Publication>,
    }
    #[derive(Deserialize)]
    struct Publication {
        data: Message,
    }
    let mut stream = TcpStream::connect_timeout(&server, REQUEST_MAX)?;
    stream.set_read_timeout(Some(REQUEST_MAX))?;
    let path = format!("/v1/channels/{CHANNEL}/figures?since=earliest&limit=1000");
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {server}\r\nConnection: close\r\n\r\n")?;
    let mut response = String::new();
    stream.take(RESPONSE_BYTES_MAX).read_to_string(&mut response)?;
    if response.starts_with("HTTP/1.1 204") {
        return Ok(Vec::new());
    }
    let (head, body) = response.split_once("\r\n\r\n").context("the server closed the connection")?;
    ensure!(head.starts_with("HTTP/1.1 200"), "the server answered: {head}\n{body}");
    let page: Page = serde_json::from_str(body)?;
    Ok(page.messages.into_iter().map(|publication| publication.data).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uploads_are_put_together_by_connection() {
        let text = r#"[
            {"from": 0, "began": true},
            {"from": 0, "peer": 1, "setup_ms": 250.5, "samples": [{"at": 1000.0, "sent": {"ssrc": 5, "bytesSent": 10}}]},
            {"from": 1, "peer": 0, "setup_ms": 1.0, "samples": []},
            {"from": 0, "peer": 1, "call": 1, "setup_ms": 300.0, "samples": [{"at": 1000.0}]},
            {"from": 0, "peer": 1, "setup_ms": 250.5, "samples": [{"at": 2000.0, "received": {"packetsLost": -1}}]},
            {"from": 0, "done": true, "browser": "Firefox"}
        ]"#;
        let messages: Vec<Message> = serde_json::from_str(text).expect("messages");
        let (links, user_agent) = uploaded(&messages, 0);
        assert_eq!(user_agent, "Firefox");
        let found: Vec<(usize, usize, usize, f64)> =
            links.iter().map(|link| (link.peer, link.call, link.samples.len(), link.setup_ms)).collect();
        assert_eq!(found, [(1, 0, 2, 250.5), (1, 1, 1, 300.0)]);
        let received = links[0].samples[1].received.as_ref().expect("statistics");
        assert_eq!((received.packets_lost, received.retransmitted_packets_received), (-1, None));
    }

    #[test]
    fn clock_maps_the_time_of_browsers() {
        let clock = Clock { origin: Instant::now(), wall: Duration::from_secs(100) };
        assert_eq!(clock.of_wall_ms(101_500.0), Duration::from_millis(1500));
        for before in [0.0, -1.0, f64::NAN] {
            assert_eq!(clock.of_wall_ms(before), Duration::ZERO);
        }
    }
}
