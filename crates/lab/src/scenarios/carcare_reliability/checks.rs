//! The checks: each disturbs a connection and measures the effect.

use std::{
    net::{Ipv4Addr, SocketAddr, TcpStream},
    thread,
    time::{Duration, Instant},
};

use super::client::{Client, ask, presence, publish};
use crate::{
    load::{Role, http::get},
    middlebox::{Behaviour, Middlebox},
    targets::{ClientOptions, Target, Transport},
};

const HOME: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 1);
/// Source address of a client after a change of network.
const ROAMED_ADDRESS: Ipv4Addr = Ipv4Addr::new(127, 77, 0, 1);
/// Maximum time in which a message must arrive to count as immediate.
const AT_ONCE: Duration = Duration::from_secs(1);
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Number of consecutive presence requests without a subscriber after which the server has noticed the fault.
const LOOKS_WITHOUT: u32 = 10;

/// One row of the table: the result of a check with one transport.
#[derive(Clone, Debug, Default)]
pub struct Row {
    /// Name of the check.
    pub check: String,
    pub transport: String,
    /// True if Millrace promises that this check passes. The other rows show what happens without the feature.
    pub promised: bool,
    pub passed: bool,
    /// Seconds from the fault until the client noticed; `None` if it did not. After a change of network: seconds
    /// until the client has received all missed messages.
    pub client_s: Option<f64>,
    /// Seconds from the fault until the server noticed; `None` if it did not.
    pub server_s: Option<f64>,
    pub stale: u64,
    pub lost: u64,
    pub again: u64,
}

/// Server and transport that a check uses.
#[derive(Clone, Copy)]
pub struct Path {
    pub target: &'static dyn Target,
    pub server: SocketAddr,
    pub transport: Transport,
}

impl Path {
    fn client(&self, channel: &str) -> Client {
        let poll_every = Duration::from_millis(100);
        Client::new(self.target.dialect(self.transport, &ClientOptions { role: Role::Subscriber, channel, poll_every }))
    }
}

/// Checks a silence that is longer than the NAT's idle timeout, followed by a message. `heartbeat`: heartbeat
/// interval of the server, which the client also uses to detect a broken connection.
pub fn nat(path: Path, idle: Duration, heartbeat: Option<Duration>) -> anyhow::Result<Row> {
    let name = match heartbeat {
        None => "NAT, no heartbeats".to_owned(),
        Some(every) if every < idle => "NAT, heartbeats in time".to_owned(),
        Some(_) => "NAT, heartbeats too rare".to_owned(),
    };
    let promised = heartbeat.is_some_and(|every| every < idle);
    let channel = format!("nat/{}/{}", heartbeat.map_or(0, |every| every.as_millis()), path.transport);
    let middlebox = Middlebox::start(path.server, Behaviour::Nat { idle })?;
    let mut client = path.client(&channel);
    client.connect(middlebox.address, HOME)?;
    publish(path.server, &channel, 0)?;
    client.run(AT_ONCE, |client| client.heard.len() == 1)?;
    let (silence, window) = (idle * 3 / 2, idle * 5);
    let start = Instant::now();
    let watch = |client: &Client| heartbeat.is_some_and(|every| client.last.elapsed() > every * 5 / 2);
    thread::scope(|scope| -> anyhow::Result<Row> {
        // Observe the server's view through its presence API.
        let server = scope.spawn(|| -> anyhow::Result<Option<f64>> {
            let mut without = 0;
            while start.elapsed() < window {
                without = if presence(path.server, &channel)? == 0 { without + 1 } else { 0 };
                if without == LOOKS_WITHOUT {
                    return Ok(Some((start.elapsed() - LOOK_EVERY * LOOKS_WITHOUT).as_secs_f64()));
                }
                thread::sleep(LOOK_EVERY);
            }
            Ok(None)
        });
        client.run(silence, |_| false)?;
        publish(path.server, &channel, 1)?;
        client.run(AT_ONCE, |client| client.heard.len() == 2)?;
        let at_once = client.heard.len() == 2;
        client.run(window.saturating_sub(start.elapsed()), |client| !at_once && watch(client))?;
        let noticed = !client.is_connected() || watch(&client);
        let client_s = noticed.then(|| start.elapsed().as_secs_f64());
        // The server ends a long poll with its response even if the response does not arrive. The end of the poll is
        // no sign that the server has noticed the fault.
        let server_s = server.join().expect("it does not panic")?.filter(|_| path.transport != Transport::LongPolling);
        // Whether the fault was noticed or not, a client that reconnects must not miss any message.
        if !at_once {
            client.connect(middlebox.address, HOME)?;
            client.run(AT_ONCE, |client| client.heard.len() == 2)?;
        }
        let (lost, again) = client.lost_and_again(2);
        let passed = at_once && lost + again == 0;
        let transport = path.transport.to_string();
        Ok(Row { check: name, transport, promised, passed, client_s, server_s, lost, again, ..Row::default() })
    })
}

/// Returns the longest of these pauses between two messages after which the second message still arrives.
pub fn longest_pause(path: Path, idle: Duration, pauses: &[Duration]) -> anyhow::Result<Option<Duration>> {
    let middlebox = &Middlebox::start(path.server, Behaviour::Nat { idle })?;
    let survives = |pause: Duration| -> anyhow::Result<bool> {
        let channel = format!("pause/{}", pause.as_micros());
        let mut client = path.client(&channel);
        client.connect(middlebox.address, HOME)?;
        publish(path.server, &channel, 0)?;
        client.run(AT_ONCE, |client| client.heard.len() == 1)?;
        client.run(pause, |_| false)?;
        publish(path.server, &channel, 1)?;
        client.run(AT_ONCE, |client| client.heard.len() == 2)?;
        Ok(client.heard.len() == 2)
    };
    thread::scope(|scope| {
        let tries: Vec<_> = pauses.iter().map(|pause| (*pause, scope.spawn(|| survives(*pause)))).collect();
        let mut longest = None;
        for (pause, survives) in tries {
            if survives.join().expect("it does not panic")? {
                longest = longest.max(Some(pause));
            }
        }
        Ok(longest)
    })
}

/// Checks a change of network: the NAT forgets the connection between messages, and the client reconnects from
/// another address.
pub fn change_of_network(path: Path, messages: u64) -> anyhow::Result<Row> {
    let channel = format!("change/{}", path.transport);
    let middlebox = Middlebox::start(path.server, Behaviour::Nat { idle: Duration::MAX })?;
    let mut client = path.client(&channel);
    client.connect(middlebox.address, HOME)?;
    let publish_from = |from: u64| (from..from + messages).try_for_each(|n| publish(path.server, &channel, n));
    publish_from(0)?;
    client.run(AT_ONCE, |client| client.heard.len() as u64 == messages)?;
    middlebox.forget_all();
    publish_from(messages)?;
    let back = Instant::now();
    client.connect(middlebox.address, ROAMED_ADDRESS)?;
    client.run(AT_ONCE, |client| client.heard.len() as u64 == 2 * messages)?;
    let client_s = Some(back.elapsed().as_secs_f64());
    publish_from(2 * messages)?;
    client.run(AT_ONCE, |client| client.heard.len() as u64 == 3 * messages)?;
    let (lost, again) = client.lost_and_again(3 * messages);
    let (check, transport) = ("change of network".to_owned(), path.transport.to_string());
    // A plain WebSocket carries no positions, so it cannot resume.
    let promised = path.transport != Transport::WebSocket;
    Ok(Row { check, transport, promised, passed: lost + again == 0, client_s, lost, again, ..Row::default() })
}

/// Checks whether a message arrives at once through a proxy that buffers streams.
pub fn buffer(path: Path) -> anyhow::Result<Row> {
    let channel = format!("buffer/{}", path.transport);
    let middlebox = Middlebox::start(path.server, Behaviour::Buffer { bytes: 16 * 1024 })?;
    let mut client = path.client(&channel);
    // The proxy may hold back even the head of a stream.
    let begins = client.connect(middlebox.address, HOME).is_ok();
    publish(path.server, &channel, 0)?;
    client.run(AT_ONCE, |client| client.heard.len() == 1)?;
    let (lost, again) = client.lost_and_again(1);
    let (check, transport) = ("proxy that buffers streams".to_owned(), path.transport.to_string());
    // A stream behind such a proxy cannot work; the only remedy is another transport.
    let promised = !matches!(path.transport, Transport::Sse | Transport::Stream);
    Ok(Row { check, transport, promised, passed: begins && lost + again == 0, lost, again, ..Row::default() })
}

/// Polls through a cache that ignores headers, with and without new messages. `busting`: the URL also carries a
/// unique value.
pub fn cache(path: Path, wait: &str, busting: bool, rounds: u64) -> anyhow::Result<Row> {
    let kind = if wait.is_empty() { "polling" } else { "long-polling" };
    let channel = format!("cache/{kind}/{busting}");
    let middlebox = Middlebox::start(path.server, Behaviour::Cache)?;
    let mut stream = TcpStream::connect(middlebox.address)?;
    let mut asked = 0;
    let mut poll = |since: &str, wait: &str| -> anyhow::Result<(String, Vec<u8>)> {
        asked += 1;
        let bust = if busting { format!("&_={asked}") } else { String::new() };
        let mut out = Vec::new();
        get(&format!("/v1/channels/{channel}?since={since}{wait}{bust}"), "Accept: application/json\r\n", &mut out);
        ask(&mut stream, &out)
    };
    let (mut position, _) = poll("now", "")?;
    let mut stale = 0;
    for n in 0..rounds {
        // In every second round, an earlier poll with the same position has already received an empty response.
        if n % 2 == 1 {
            poll(&position, wait)?;
        }
        publish(path.server, &channel, n)?;
        let (now, body) = poll(&position, wait)?;
        let is_fresh = !body.is_empty() && now != position;
        stale += u64::from(!is_fresh);
        position = if is_fresh { now } else { position };
    }
    let check = if busting { "cache that ignores headers, with `_`" } else { "cache that ignores headers" };
    let (check, transport) = (check.into(), kind.into());
    Ok(Row { check, transport, promised: busting, passed: stale == 0, stale, ..Row::default() })
}
