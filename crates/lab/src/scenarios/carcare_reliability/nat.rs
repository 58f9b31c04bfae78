//! The checks of a NAT: a silence that is longer than its timeout, followed by a message.

use std::{
    net::{Ipv4Addr, SocketAddr, TcpStream},
    thread,
    time::{Duration, Instant},
};

use millrace_link::{Nat, OnIdle};

use super::{
    checks::AT_ONCE,
    client::{Client, presence, publish},
    network::{Ends, Networks},
    row::{Outcome, Row},
};
use crate::{
    recording::LinkRun,
    targets::{Server, Transport},
};

/// Time by which a server may notice late: it looks once per second which pings are unanswered, and a busy machine
/// delays processes.
pub const LATE_MAX: Duration = Duration::from_secs(2);
/// Pause between two looks at the server's subscriptions, and the number of looks without a subscription that must
/// follow each other.
const LOOK_EVERY: Duration = Duration::from_millis(50);
const LOOKS_WITHOUT: u32 = 3;
/// The shortest heartbeat interval and grace that a server checks with some precision.
const GRACE_MIN: Duration = Duration::from_secs(2);

/// Heartbeats of the server, which the client also uses to detect a broken connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heartbeat {
    pub every: Duration,
    pub grace: Duration,
}

impl Heartbeat {
    /// Time after the first lost packet within which both ends must notice.
    pub fn interval(&self) -> Duration {
        self.every + self.grace
    }
}

/// One kind of NAT with one setting of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Check {
    pub nat: Nat,
    pub heartbeat: Option<Heartbeat>,
}

/// Condition under which a check passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Criterion {
    MessageAtOnce,
    BothEndsNotice,
    ClientNotices,
}

/// All checks of a NAT with this idle timeout. A NAT in user space never resets.
pub fn checks(idle: Duration, with_resets: bool) -> Vec<Check> {
    let grace = (idle / 2).max(GRACE_MIN);
    let in_time = Heartbeat { every: idle / 2, grace };
    let too_rare = Heartbeat { every: idle * 3 / 2, grace };
    let of = |on_idle, heartbeat| Check { nat: Nat { idle, on_idle }, heartbeat };
    let swallow = [None, Some(in_time), Some(too_rare)].map(|heartbeat| of(OnIdle::Swallow, heartbeat));
    let reset = [None, Some(too_rare)].map(|heartbeat| of(OnIdle::Reset, heartbeat));
    swallow.into_iter().chain(reset.into_iter().filter(|_| with_resets)).collect()
}

/// Returns the seconds that [`Check::run`] takes at most.
pub fn estimate_s(idle: Duration) -> f64 {
    (silence(idle) + window(idle) + AT_ONCE * 3).as_secs_f64()
}

/// Length of the silence before the message.
fn silence(idle: Duration) -> Duration {
    idle * 5 / 4
}

/// Time after the message in which both ends are observed: it is the same for all checks.
fn window(idle: Duration) -> Duration {
    let longest =
        checks(idle, true).into_iter().filter_map(|check| check.heartbeat).map(|heartbeat| heartbeat.interval());
    longest.max().unwrap_or_default() + LATE_MAX
}

impl Check {
    fn is_in_time(&self) -> bool {
        self.heartbeat.is_some_and(|heartbeat| heartbeat.every < self.nat.idle)
    }

    fn name(&self) -> String {
        let nat = match self.nat.on_idle {
            OnIdle::Swallow => "NAT that swallows",
            OnIdle::Reset => "NAT that resets",
        };
        let heartbeats = match self.heartbeat {
            None => "no heartbeats",
            Some(_) if self.is_in_time() => "heartbeats in time",
            Some(_) => "heartbeats too rare",
        };
        format!("{nat}, {heartbeats}")
    }

    fn criterion(&self, transport: Transport, is_emulated: bool) -> Criterion {
        match self.heartbeat {
            Some(_) if !self.is_in_time() => match transport {
                // A server keeps no state of a client between two polls.
                Transport::LongPolling => Criterion::ClientNotices,
                // The NAT in user space acknowledges what it discards.
                Transport::Sse | Transport::Stream if !is_emulated => Criterion::ClientNotices,
                _ => Criterion::BothEndsNotice,
            },
            _ => Criterion::MessageAtOnce,
        }
    }

    /// Runs the check with all transports at the same time, over one link with one server.
    pub fn run(
        self,
        networks: &Networks,
        transports: &[Transport],
        start: impl FnOnce(Option<Heartbeat>) -> anyhow::Result<Server> + Send,
    ) -> anyhow::Result<(Vec<Row>, Option<LinkRun>)> {
        networks.through(
            Some(self.nat),
            || start(self.heartbeat),
            |ends| {
                thread::scope(|scope| {
                    let one = |transport| scope.spawn(move || self.one(ends, transport, networks.are_emulated()));
                    let running: Vec<_> = transports.iter().map(|transport| one(*transport)).collect();
                    running.into_iter().map(|one| one.join().expect("it does not panic")).collect()
                })
            },
        )
    }

    fn one(self, ends: Ends, transport: Transport, is_emulated: bool) -> anyhow::Result<Row> {
        let channel = format!("nat/{transport}");
        let mut client = Client::of(transport, &channel)?;
        client.connect(ends.through_nat, Ipv4Addr::UNSPECIFIED)?;
        publish(ends.server, &channel, 0)?;
        client.run(AT_ONCE, |client| client.heard.len() == 1)?;
        client.run(silence(self.nat.idle), |_| false)?;
        let window = window(self.nat.idle);
        let silence_max = self.heartbeat.map(|heartbeat| heartbeat.interval());
        let is_silent = |client: &Client| silence_max.is_some_and(|max| client.last.elapsed() > max);
        // The NAT discards this message, unless heartbeats came in time. It is the first discarded packet.
        publish(ends.server, &channel, 1)?;
        let fault = Instant::now();
        let (at_once, client_s, server_s) = thread::scope(|scope| -> anyhow::Result<_> {
            let server = scope.spawn(|| server_notices(ends.server, &channel, transport, fault, window));
            client.run(AT_ONCE, |client| client.heard.len() == 2)?;
            let at_once = client.heard.len() == 2;
            client.run(window.saturating_sub(fault.elapsed()), |client| is_silent(client))?;
            let has_noticed = !client.is_connected() || is_silent(&client);
            let client_s = has_noticed.then(|| fault.elapsed().as_secs_f64());
            Ok((at_once, client_s, server.join().expect("it does not panic")?))
        })?;
        // Whether the fault was noticed or not, a client that reconnects must not miss any message.
        if !at_once {
            client.connect(ends.through_nat, Ipv4Addr::UNSPECIFIED)?;
            client.run(AT_ONCE, |client| client.heard.len() == 2)?;
        }
        let (lost, again) = client.lost_and_again(2);
        let limit_s = self.heartbeat.map(|heartbeat| heartbeat.interval().as_secs_f64());
        let in_time = |noticed: Option<f64>| {
            noticed.is_some_and(|s| limit_s.is_some_and(|limit_s| s <= limit_s + LATE_MAX.as_secs_f64()))
        };
        let criterion = self.criterion(transport, is_emulated);
        let is_complete = lost + again == 0;
        let passed = match criterion {
            Criterion::MessageAtOnce => at_once && lost + again == 0,
            Criterion::BothEndsNotice => in_time(client_s) && in_time(server_s) && is_complete,
            Criterion::ClientNotices => in_time(client_s) && is_complete,
        };
        Ok(Row {
            check: self.name(),
            criterion: criterion.name(),
            transport,
            promised: criterion != Criterion::MessageAtOnce || self.is_in_time(),
            limit_s: limit_s.filter(|_| criterion != Criterion::MessageAtOnce),
            outcomes: vec![Outcome { passed, client_s, server_s, stale: 0, lost, again }],
        })
    }
}

impl Criterion {
    fn name(self) -> &'static str {
        match self {
            Criterion::MessageAtOnce => "message at once",
            Criterion::BothEndsNotice => "both ends notice",
            Criterion::ClientNotices => "client notices",
        }
    }
}

/// Observes the subscriptions of a channel through the server's presence API. Returns the seconds after which the
/// server had ended its only one.
fn server_notices(
    server: SocketAddr,
    channel: &str,
    transport: Transport,
    fault: Instant,
    window: Duration,
) -> anyhow::Result<Option<f64>> {
    // A long poll ends with its response, even if the response does not arrive.
    if transport == Transport::LongPolling {
        return Ok(None);
    }
    let mut stream = TcpStream::connect(server)?;
    let mut since = None;
    let mut without = 0;
    while fault.elapsed() < window {
        let looked = fault.elapsed().as_secs_f64();
        if presence(&mut stream, channel)? == 0 {
            without += 1;
            since.get_or_insert(looked);
        } else {
            (since, without) = (None, 0);
        }
        if without == LOOKS_WITHOUT {
            return Ok(since);
        }
        thread::sleep(LOOK_EVERY);
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checks_cover_both_nats_and_promise_what_heartbeats_give() {
        let all = checks(Duration::from_secs(4), true);
        let of = |check: &Check, transport| (check.name(), check.criterion(transport, true).name());
        let sse: Vec<_> = all.iter().map(|check| of(check, Transport::Sse)).collect();
        assert_eq!(
            sse,
            [
                ("NAT that swallows, no heartbeats".to_owned(), "message at once"),
                ("NAT that swallows, heartbeats in time".to_owned(), "message at once"),
                ("NAT that swallows, heartbeats too rare".to_owned(), "both ends notice"),
                ("NAT that resets, no heartbeats".to_owned(), "message at once"),
                ("NAT that resets, heartbeats too rare".to_owned(), "both ends notice"),
            ]
        );
        let too_rare = all[2];
        assert_eq!(too_rare.heartbeat.unwrap().interval(), Duration::from_secs(8));
        assert_eq!(of(&too_rare, Transport::LongPolling).1, "client notices");
        assert_eq!(too_rare.criterion(Transport::Sse, false).name(), "client notices", "a middlebox acknowledges");
        assert_eq!(checks(Duration::from_secs(4), false).len(), 3);
    }

    #[test]
    fn silence_ends_before_heartbeats_that_are_too_rare() {
        for idle in [4, 7, 16, 60].map(Duration::from_secs) {
            let too_rare = checks(idle, false)[2].heartbeat.unwrap();
            assert!(idle < silence(idle) && silence(idle) < too_rare.every, "{idle:?}");
            assert!(window(idle) >= too_rare.interval() + LATE_MAX);
        }
    }
}
