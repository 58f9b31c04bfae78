//! What is done to a connection, and what becomes of it.

use std::{
    net::{Ipv4Addr, SocketAddr, TcpStream},
    thread,
    time::{Duration, Instant},
};

use super::client::{Client, ask, presence, publish};
use crate::{
    load::{Role, http::get},
    middlebox::{Behaviour, Middlebox},
    targets::{Ask, Target, Transport},
};

const HOME: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 1);
/// Where a client comes from after a change of network.
const ABROAD: Ipv4Addr = Ipv4Addr::new(127, 77, 0, 1);
/// What arrives within this has arrived at once.
const AT_ONCE: Duration = Duration::from_secs(1);
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// So often in a row nobody was there.
const LOOKS_WITHOUT: u32 = 10;

/// One row of the table.
#[derive(Clone, Debug, Default)]
pub struct Row {
    pub check: String,
    pub transport: String,
    /// Millrace says that it holds; the other rows show what happens without what it does.
    pub promised: bool,
    pub passed: bool,
    /// Seconds from when it went wrong to when each end knew; none if it did not.
    pub client_s: Option<f64>,
    pub server_s: Option<f64>,
    pub stale: u64,
    pub lost: u64,
    pub again: u64,
}

/// Who is asked, and how.
#[derive(Clone, Copy)]
pub struct Path {
    pub target: &'static dyn Target,
    pub server: SocketAddr,
    pub transport: Transport,
}

impl Path {
    fn client(&self, channel: &str) -> Client {
        let poll_every = Duration::from_millis(100);
        Client::new(self.target.dialect(self.transport, &Ask { role: Role::Subscriber, channel, poll_every }))
    }
}

/// Silence that is longer than the NAT remembers, then a message. `heartbeat`: what the server keeps to, and the client relies upon.
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
        // The server's view, from outside.
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
        // A long poll ends with its answer, whether that arrives or not: nobody has noticed anything.
        let server_s = server.join().expect("it does not panic")?.filter(|_| path.transport != Transport::LongPolling);
        // Noticed or not: whoever comes back must miss nothing.
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

/// The longest of these pauses between two messages after which the second one still arrives.
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

/// The path vanishes among messages, and the client comes back from another address.
pub fn change_of_network(path: Path, messages: u64) -> anyhow::Result<Row> {
    let channel = format!("change/{}", path.transport);
    let middlebox = Middlebox::start(path.server, Behaviour::Nat { idle: Duration::MAX })?;
    let mut client = path.client(&channel);
    client.connect(middlebox.address, HOME)?;
    let say = |from: u64| (from..from + messages).try_for_each(|n| publish(path.server, &channel, n));
    say(0)?;
    client.run(AT_ONCE, |client| client.heard.len() as u64 == messages)?;
    middlebox.forget_all();
    say(messages)?;
    let back = Instant::now();
    client.connect(middlebox.address, ABROAD)?;
    client.run(AT_ONCE, |client| client.heard.len() as u64 == 2 * messages)?;
    let client_s = Some(back.elapsed().as_secs_f64());
    say(2 * messages)?;
    client.run(AT_ONCE, |client| client.heard.len() as u64 == 3 * messages)?;
    let (lost, again) = client.lost_and_again(3 * messages);
    let (check, transport) = ("change of network".to_owned(), path.transport.to_string());
    // A bare WebSocket carries no positions.
    let promised = path.transport != Transport::WebSocket;
    Ok(Row { check, transport, promised, passed: lost + again == 0, client_s, lost, again, ..Row::default() })
}

/// Whether a message arrives at once through a proxy that holds streams back.
pub fn buffer(path: Path) -> anyhow::Result<Row> {
    let channel = format!("buffer/{}", path.transport);
    let middlebox = Middlebox::start(path.server, Behaviour::Buffer { bytes: 16 * 1024 })?;
    let mut client = path.client(&channel);
    // A stream does not even begin.
    let begins = client.connect(middlebox.address, HOME).is_ok();
    publish(path.server, &channel, 0)?;
    client.run(AT_ONCE, |client| client.heard.len() == 1)?;
    let (lost, again) = client.lost_and_again(1);
    let (check, transport) = ("proxy that holds streams back".to_owned(), path.transport.to_string());
    // Nothing helps a stream that is held back, but another transport.
    let promised = !matches!(path.transport, Transport::Sse | Transport::Ndjson);
    Ok(Row { check, transport, promised, passed: begins && lost + again == 0, lost, again, ..Row::default() })
}

/// Polls through a cache: with nothing new, then with something. `busting`: the URL carries a value of its own, too.
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
        // Every second time somebody has asked before, and heard that there is nothing.
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
