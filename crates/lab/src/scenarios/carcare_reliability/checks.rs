//! The checks of a change of network, of a cache and of a proxy. They run in user space on loopback.

use std::{
    net::{Ipv4Addr, SocketAddr, TcpStream},
    time::{Duration, Instant},
};

use super::{
    client::{Client, ask, publish},
    row::{Outcome, Row},
};
use crate::{
    load::http::get,
    middlebox::{Behaviour, Middlebox},
    targets::Transport,
};

const HOME: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 1);
/// Source address of a client after a change of network.
const ROAMED_ADDRESS: Ipv4Addr = Ipv4Addr::new(127, 77, 0, 1);
/// Maximum time in which a message must arrive to count as immediate.
pub const AT_ONCE: Duration = Duration::from_secs(1);

/// Checks a change of network: the NAT forgets the connection between messages, and the client reconnects from
/// another address.
pub fn change_of_network(server: SocketAddr, transport: Transport, messages: u64) -> anyhow::Result<Row> {
    let channel = format!("change/{}", transport);
    let middlebox = Middlebox::start(server, Behaviour::Nat { idle: Duration::MAX })?;
    let mut client = Client::of(transport, &channel)?;
    client.connect(middlebox.address, HOME)?;
    let publish_from = |from: u64| (from..from + messages).try_for_each(|n| publish(server, &channel, n));
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
    let outcome = Outcome { passed: lost + again == 0, client_s, lost, again, ..Outcome::default() };
    Ok(row("change of network", transport, true, outcome))
}

/// Checks whether a message arrives at once through a proxy that buffers streams.
pub fn buffer(server: SocketAddr, transport: Transport) -> anyhow::Result<Row> {
    let channel = format!("buffer/{}", transport);
    let middlebox = Middlebox::start(server, Behaviour::Buffer { bytes: 16 * 1024 })?;
    let mut client = Client::of(transport, &channel)?;
    // The proxy may hold back even the head of a stream.
    let begins = client.connect(middlebox.address, HOME).is_ok();
    publish(server, &channel, 0)?;
    client.run(AT_ONCE, |client| client.heard.len() == 1)?;
    let (lost, again) = client.lost_and_again(1);
    // A stream behind such a proxy cannot work; the only remedy is another transport.
    let promised = !matches!(transport, Transport::Sse | Transport::Stream);
    let outcome = Outcome { passed: begins && lost + again == 0, lost, again, ..Outcome::default() };
    Ok(row("proxy that buffers streams", transport, promised, outcome))
}

/// Polls through a cache that ignores headers, with and without new messages. `busting`: the URL also carries a
/// unique value.
pub fn cache(server: SocketAddr, wait: &str, busting: bool, rounds: u64) -> anyhow::Result<Row> {
    let transport = if wait.is_empty() { Transport::Polling } else { Transport::LongPolling };
    let channel = format!("cache/{transport}/{busting}");
    let middlebox = Middlebox::start(server, Behaviour::Cache)?;
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
        publish(server, &channel, n)?;
        let (now, body) = poll(&position, wait)?;
        let is_fresh = !body.is_empty() && now != position;
        stale += u64::from(!is_fresh);
        position = if is_fresh { now } else { position };
    }
    let check = if busting { "cache that ignores headers, with `_`" } else { "cache that ignores headers" };
    Ok(row(check, transport, busting, Outcome { passed: stale == 0, stale, ..Outcome::default() }))
}

/// Returns a row with one outcome, of a check that passes if all messages arrive.
fn row(check: &str, transport: Transport, promised: bool, outcome: Outcome) -> Row {
    Row { check: check.into(), criterion: "nothing lost", transport, promised, limit_s: None, outcomes: vec![outcome] }
}
