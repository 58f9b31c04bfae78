//! Upgrades a server under load: sessions on all transports read while `millrace upgrade` replaces the process.
//! Reports whether a message was lost or doubled, whether a publication was refused, and the longest silence of a
//! reader. docs/how-to/upgrade.md has the figures of one machine.
//!
//! Readers and publisher share one thread of this process, so the delays include their own.

use std::{
    cell::RefCell,
    io::{BufRead as _, BufReader},
    ops::ControlFlow,
    process::{Child, Command, Stdio},
    rc::Rc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail, ensure};
use clap::Parser;
use millrace_client::{
    data_channel::{Connection, ReceivedLine},
    server::Server,
    subscription::{Options, TRANSPORTS, Update, read},
    tls,
};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::{
    task::{LocalSet, spawn_blocking, spawn_local},
    time::{sleep, sleep_until, timeout},
};

/// Longest wait for each step.
const PATIENCE: Duration = Duration::from_secs(120);
const DATA_CHANNEL: &str = "data-channel";

#[derive(Parser)]
struct Args {
    /// Readers over HTTP and WebSocket, in equal parts on all transports
    #[arg(long, default_value_t = 4750)]
    readers: usize,
    /// Readers over data channels
    #[arg(long, default_value_t = 250)]
    data_channels: usize,
    /// Channels that readers and publications are spread over
    #[arg(long, default_value_t = 100)]
    channels: usize,
    /// Publications per second
    #[arg(long, default_value_t = 200)]
    per_s: u32,
    /// Duration of the publications in seconds
    #[arg(long, default_value_t = 60)]
    seconds: u32,
    /// Engine of the server
    #[arg(long, default_value = "memory")]
    engine: String,
    /// Longest time over which the old process spreads the moves of its clients
    #[arg(long, default_value = "20s")]
    window: String,
    /// Passed by `cargo bench`
    #[arg(long, hide = true)]
    bench: bool,
}

/// Payload of a publication.
#[derive(Deserialize)]
struct Tick {
    /// Number of the publication in its channel, from 0.
    n: usize,
    /// Scheduled time of the publication since the start of the run, in microseconds.
    at_us: u64,
}

/// Messages of one reader, and their delays.
#[derive(Default)]
struct Received {
    /// Number of the next publication of its channel.
    next: usize,
    /// Publications that were missing or came twice.
    wrong: usize,
    reconnects: usize,
    last: Option<Instant>,
    /// Longest time between two messages.
    silence: Duration,
    /// Longest time from a publication to its arrival.
    delay: Duration,
}

impl Received {
    fn tick(&mut self, began: Instant, Tick { n, at_us }: &Tick) {
        let now = Instant::now();
        self.wrong += usize::from(*n != self.next);
        self.next = n + 1;
        if let Some(last) = self.last.replace(now) {
            self.silence = self.silence.max(now - last);
        }
        self.delay = self.delay.max((now - began).saturating_sub(Duration::from_micros(*at_us)));
    }
}

type Shared = Rc<RefCell<Received>>;

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    LocalSet::new().block_on(&runtime, run(args))
}

async fn run(args: Args) -> anyhow::Result<()> {
    let mut server = Command::new(env!("CARGO_BIN_EXE_millrace"))
        .args(["serve", "--listen", "127.0.0.1:0", "--engine", &args.engine])
        .args(["--set", &format!("drain.window_max={}", args.window), "--set", "drain.per_s_max=1000"])
        .args(["--set", "limits.connections_per_address_max=20000"])
        .args(["--set", "limits.connects_per_s=20000", "--set", "limits.connects_per_address_per_s=20000"])
        .stdout(Stdio::piped())
        .spawn()?;
    let url = first_line(&mut server)?;
    let url = url.strip_prefix("listening on ").context("the server prints its address")?.to_owned();
    let began = Instant::now();
    let mut readers: Vec<(&'static str, usize, Shared)> = Vec::new();
    for reader in 0..args.readers + args.data_channels {
        let (channel, received) = (reader % args.channels, Shared::default());
        let transport = match reader < args.readers {
            true => {
                let transport = TRANSPORTS[reader / args.channels % TRANSPORTS.len()];
                let options = Options {
                    server: Server::parse(&url)?,
                    channels: vec![name(channel)],
                    transport,
                    since: Some("earliest".into()),
                    policy: "every".into(),
                    poll_interval: Duration::from_secs(1),
                    retry_for: None,
                };
                spawn_local(subscribe(options, began, received.clone()));
                transport.name()
            }
            false => {
                spawn_local(subscribe_over_data_channel(url.clone(), name(channel), began, received.clone()));
                DATA_CHANNEL
            }
        };
        readers.push((transport, channel, received));
        // A reader opens its connection before the next one starts, so that no queue of a listener overflows.
        sleep(Duration::from_millis(if reader < args.readers { 1 } else { 20 })).await;
    }
    let each = args.per_s as usize * args.seconds as usize / args.channels;
    let start = Instant::now();
    let period = Duration::from_secs(1) * args.channels as u32 / args.per_s;
    let publishers: Vec<_> = (0..args.channels)
        .map(|channel| {
            let first = start + period / args.channels as u32 * channel as u32;
            let path = format!("{url}/v1/channels/{}", name(channel));
            spawn_local(publish(path, each, first, period, began))
        })
        .collect();
    sleep_until((start + Duration::from_secs(args.seconds.into()) / 3).into()).await;
    let upgraded = Instant::now();
    let command = Command::new(env!("CARGO_BIN_EXE_millrace"))
        .args(["upgrade", "--pid", &server.id().to_string()])
        .stdout(Stdio::piped())
        .spawn()?;
    let output = timeout(PATIENCE, spawn_blocking(|| command.wait_with_output())).await???;
    ensure!(output.status.success(), "the upgrade failed");
    println!("{}", String::from_utf8_lossy(&output.stdout).trim());
    let (mut refused, mut longest_publish) = (Vec::new(), Duration::ZERO);
    for publisher in publishers {
        let published = publisher.await?;
        refused.extend(published.refused);
        longest_publish = longest_publish.max(published.longest);
    }
    let is_complete = || readers.iter().all(|(.., received)| received.borrow().next >= each);
    let waiting = Instant::now();
    while !is_complete() && waiting.elapsed() < PATIENCE {
        sleep(Duration::from_millis(100)).await;
    }
    let ended = timeout(PATIENCE, spawn_blocking(move || server.wait())).await.context("the old process ends")???;
    println!(
        "the old process ended with {ended}, {:.1} s after the start of the upgrade",
        upgraded.elapsed().as_secs_f64()
    );
    report(&readers, each);
    let count = each * args.channels;
    println!("publications: {count}, refused: {}, longest answer: {longest_publish:.0?}", refused.len());
    let wrong: usize = readers.iter().map(|(.., received)| received.borrow().wrong).sum();
    end_successor(&output.stdout)?;
    if let Some(error) = refused.first() {
        bail!("a publication was refused: {error}");
    }
    ensure!(is_complete() && wrong == 0, "messages were lost or doubled");
    Ok(())
}

/// Result of the publications to one channel.
#[derive(Default)]
struct Published {
    refused: Vec<String>,
    /// Longest time to an answer.
    longest: Duration,
}

/// Publishes to one channel in the order of the numbers, without retries. The time of a publication is that of its
/// schedule, also if the answer to the one before it was late.
async fn publish(path: String, count: usize, first: Instant, period: Duration, began: Instant) -> Published {
    let mut published = Published::default();
    let Ok(http) = tls::http().build() else { return published };
    for n in 0..count {
        let at = first + period * n as u32;
        sleep_until(at.into()).await;
        let tick = json!({ "n": n, "at_us": (at - began).as_micros() as u64 });
        let sent = Instant::now();
        let answer = http.post(&path).json(&tick).send().await.and_then(|answer| answer.error_for_status());
        published.refused.extend(answer.err().map(|error| format!("{error:?}")));
        published.longest = published.longest.max(sent.elapsed());
    }
    published
}

/// Ends the new process, whose id the command prints as `process PID serves ..`.
fn end_successor(out: &[u8]) -> anyhow::Result<()> {
    let text = String::from_utf8_lossy(out);
    let pid = text.strip_prefix("process ").and_then(|rest| rest.split(' ').next()).and_then(|pid| pid.parse().ok());
    let pid = pid.and_then(rustix::process::Pid::from_raw).context("the command prints the process id")?;
    Ok(rustix::process::kill_process(pid, rustix::process::Signal::INT)?)
}

fn first_line(server: &mut Child) -> anyhow::Result<String> {
    let mut lines = BufReader::new(server.stdout.take().context("a pipe")?).lines();
    let line = lines.next().context("the server ended")??;
    // The new process writes to the same pipe.
    std::thread::spawn(move || lines.for_each(drop));
    Ok(line)
}

fn name(channel: usize) -> String {
    format!("upgrade/{channel}")
}

async fn subscribe(options: Options, began: Instant, received: Shared) {
    let mut sink = |update| {
        let mut received = received.borrow_mut();
        match update {
            Update::Message(message) => match serde_json::from_str(message.data.get()) {
                Ok(tick) => received.tick(began, &tick),
                Err(_) => received.wrong += 1,
            },
            Update::Gap(_) => received.wrong += 1,
            Update::Lost(_) => received.reconnects += 1,
            Update::StateComplete(_) => {}
        }
        ControlFlow::Continue(())
    };
    if let Err(error) = read(&options, &mut sink).await {
        eprintln!("{}: {error}", options.transport);
    }
}

/// Reads over data channels, and moves with a resume ticket when the server asks for it.
async fn subscribe_over_data_channel(url: String, channel: String, began: Instant, received: Shared) {
    let Ok(http) = tls::http().pool_max_idle_per_host(0).build() else { return };
    let mut ticket: Option<String> = None;
    loop {
        let request = http.post(format!("{url}/v1/connect"));
        let request = match &ticket {
            Some(ticket) => request.header("millrace-resume", ticket),
            None => request,
        };
        let mut connection = match Connection::open(request).await {
            Ok(connection) => connection,
            Err(error) => {
                eprintln!("{DATA_CHANNEL}: {error}");
                sleep(Duration::from_millis(500)).await;
                continue;
            }
        };
        if ticket.is_none() {
            let command = json!({ "id": 1, "subscribe": { "channel": channel, "since": "earliest" } });
            connection.send_line(&command.to_string()).await;
        }
        let mut moves_at = None;
        loop {
            let next = match moves_at {
                Some(at) => match tokio::time::timeout_at(at, connection.next()).await {
                    Ok(next) => next,
                    Err(_) => break,
                },
                None => connection.next().await,
            };
            let Some(ReceivedLine { line, .. }) = next else { break };
            let Ok(mut line) = serde_json::from_str::<Value>(&line) else { continue };
            let mut received = received.borrow_mut();
            if line["push"] == "gap" {
                received.wrong += 1;
            } else if line["push"] == "drain" {
                let after = Duration::from_millis(line["after_ms"].as_u64().unwrap_or_default());
                moves_at = Some(tokio::time::Instant::now() + after);
                ticket = line["resume"].as_str().map(str::to_owned);
            } else if line["push"] == "message"
                && let Ok(tick) = serde_json::from_value::<Tick>(line["data"].take())
            {
                // A ticket names the positions at the drain: what came since then comes again.
                if tick.n >= received.next {
                    received.tick(began, &tick);
                }
            }
        }
        received.borrow_mut().reconnects += 1;
    }
}

fn report(readers: &[(&'static str, usize, Shared)], expected: usize) {
    println!("transport      readers  incomplete  wrong  reconnects  longest silence  longest delay");
    for transport in TRANSPORTS.iter().map(|transport| transport.name()).chain([DATA_CHANNEL]) {
        let mut all = Received::default();
        let (mut count, mut incomplete) = (0, 0);
        for (.., received) in readers.iter().filter(|(name, ..)| *name == transport) {
            let received = received.borrow();
            count += 1;
            incomplete += usize::from(received.next != expected);
            all.wrong += received.wrong;
            all.reconnects += received.reconnects;
            all.silence = all.silence.max(received.silence);
            all.delay = all.delay.max(received.delay);
        }
        let Received { wrong, reconnects, silence, delay, .. } = all;
        println!(
            "{transport:<14} {count:>7} {incomplete:>11} {wrong:>6} {reconnects:>11} {:>13} ms {:>11} ms",
            silence.as_millis(),
            delay.as_millis()
        );
    }
}
