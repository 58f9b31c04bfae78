use std::{
    net::SocketAddr,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use millrace_link::{Config, Direction, PipeConfig, QueueLimit, Rate};
use millrace_protocol::{Code, Error, Transport};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::watch;

const DELAY_MS_MAX: u64 = 10_000;
const RATE_KBIT_S_MAX: u64 = 1_000_000;

/// Settings of a lane's link. The default changes nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Impairment {
    /// Nothing passes. Bytes of connections wait, datagrams are lost, and neither end is notified.
    pub cut: bool,
    /// Delay of each direction, at most 10 s.
    pub delay_ms: u64,
    /// Rate of each direction, at most 1 Gbit/s; 0: no limit.
    pub rate_kbit_s: u64,
}

impl Impairment {
    /// Errors: [`Code::BadRequest`] for a value above its maximum.
    pub fn check(&self) -> Result<(), Error> {
        for (name, value, max) in
            [("delay_ms", self.delay_ms, DELAY_MS_MAX), ("rate_kbit_s", self.rate_kbit_s, RATE_KBIT_S_MAX)]
        {
            if value > max {
                return Err(Error::new(Code::BadRequest, format!("`{name}` is {value}: the maximum is {max}")));
            }
        }
        Ok(())
    }

    /// Returns the settings of the lane's link. Its queue has no limit: connections are bounded by their windows, and
    /// datagrams are dropped in front of the queue.
    pub(crate) fn link(&self) -> Config {
        let rate = Rate::from_bits_per_s(self.rate_kbit_s * 1000).ok();
        let queue = rate.map(|_| QueueLimit::Bytes(u64::MAX));
        let delay = Duration::from_millis(self.delay_ms);
        let pipe = PipeConfig { delay, rate, queue, ..PipeConfig::default() };
        Config { up: pipe.clone(), down: pipe, ..Config::default() }
    }
}

/// State of a lane that the pump follows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Order {
    pub impairment: Impairment,
    /// Number of times that the connections were reset.
    pub resets: u64,
}

/// A lane of the race, as all threads see it.
#[derive(Debug)]
pub struct Lane {
    pub transport: Transport,
    /// Port of the lane's listener, at the address of the server.
    pub port: u16,
    /// Datagram ports of the server, and the ports of the lane that stand in front of them.
    pub datagram_ports: Vec<(u16, u16)>,
    pub(crate) orders: watch::Sender<Order>,
    pub(crate) counters: Counters,
}

/// Bytes are those of TCP streams and of datagrams, without IP, TCP and UDP headers.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    bytes: [AtomicU64; 2],
    pub connections: AtomicU64,
    pub opened: AtomicU64,
}

impl Counters {
    pub fn count(&self, direction: Direction, bytes: usize) {
        self.bytes[direction as usize].fetch_add(bytes as u64, Relaxed);
    }
}

impl Lane {
    pub(crate) fn new(transport: Transport, listener: SocketAddr, datagram_ports: Vec<(u16, u16)>) -> Self {
        let (orders, counters) = (watch::Sender::new(Order::default()), Counters::default());
        Self { transport, port: listener.port(), datagram_ports, orders, counters }
    }

    /// Changes the impairment of the lane. `reset`: also closes its connections, with a reset to both ends.
    pub fn impair(&self, impairment: Impairment, reset: bool) {
        self.orders.send_modify(|order| {
            order.impairment = impairment;
            order.resets += u64::from(reset);
        });
    }

    pub(crate) fn to_json(&self) -> Value {
        let Impairment { cut, delay_ms, rate_kbit_s } = self.orders.borrow().impairment;
        let Counters { bytes: [up, down], connections, opened } = &self.counters;
        let ports: Vec<Value> =
            self.datagram_ports.iter().map(|(server, lane)| json!({ "server": server, "lane": lane })).collect();
        json!({
            "transport": self.transport.name(), "port": self.port, "datagram_ports": ports,
            "cut": cut, "delay_ms": delay_ms, "rate_kbit_s": rate_kbit_s,
            "connections": connections.load(Relaxed), "opened": opened.load(Relaxed),
            "bytes_up": up.load(Relaxed), "bytes_down": down.load(Relaxed),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impairments_have_limits_and_unknown_fields_are_errors() {
        let parse = |text| serde_json::from_str::<Impairment>(text);
        let delayed = parse(r#"{"delay_ms":150}"#).unwrap();
        assert_eq!(delayed, Impairment { delay_ms: 150, ..Impairment::default() });
        assert!(delayed.check().is_ok() && delayed.link().check().is_ok());
        let throttled = Impairment { rate_kbit_s: 16, ..Impairment::default() };
        assert!(throttled.link().check().is_ok());
        for bad in [r#"{"delay_ms":10001}"#, r#"{"rate_kbit_s":1000001}"#] {
            assert_eq!(parse(bad).unwrap().check().unwrap_err().code, Code::BadRequest, "{bad}");
        }
        for bad in [r#"{"delay":1}"#, r#"{"delay_ms":-1}"#, r#"{"cut":1}"#] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
