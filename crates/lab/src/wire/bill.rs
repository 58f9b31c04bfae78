//! The bill: what each transport costs in bytes and in energy, as a run leaves it behind and a report draws it.

use std::fmt;

use serde::{Deserialize, Serialize};

/// All of it. [`fmt::Display`] is the table for a terminal.
///
/// - `lines`: bytes of IP packets, per transport, side and unit: a stacked bar each, from [`Bytes::parts`] of [`Both::sum`] (or up and down
///   apart), measured beside model.
/// - `published`: what a thesis printed, what follows from its own figures, and ours: a table per `table`, in this order.
/// - `energy`: joules per day by radio, transport and heartbeat: a line chart over `heartbeat_s`, or stacked bars of `states`.
/// - `batteries`: how long a battery lasts.
/// - `notes`: what has to be known to read the figures; show them all.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Bill {
    pub path: Path,
    /// Of one message.
    pub payload_bytes: u64,
    pub lines: Vec<Line>,
    pub published: Vec<Published>,
    pub energy: Vec<EnergyLine>,
    pub batteries: Vec<Battery>,
    pub notes: Vec<String>,
}

/// What lay between the two ends.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Path {
    /// `veth` or `loopback`.
    pub link: String,
    pub mtu: u32,
    /// IP and TCP headers of a segment, options included.
    pub header_bytes: u64,
    /// What Ethernet would add to each packet (header only). In no figure here; the theses count it.
    pub ethernet_bytes: u64,
    /// Bytes that a capture of the same packets saw, and what the kernel's counters say; if there was a capture.
    pub captured_bytes: Option<u64>,
    pub counted_bytes: Option<u64>,
}

/// Bytes of one unit: a mean over `count` of them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Line {
    pub transport: String,
    pub side: Side,
    pub unit: Unit,
    pub count: u64,
    pub measured: Both,
    pub model: Both,
    /// Of the measured sum against that of the model.
    pub difference_percent: f64,
    /// Bytes sent again, in `measured`, too. Not 0: the path lost packets.
    pub retransmitted_bytes: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Side {
    /// Between the server and who reads.
    Deliver,
    /// Between who publishes and the server.
    Publish,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Unit {
    /// From the first SYN until the transport is ready.
    Connection,
    /// One message that stands alone, with all that carries it: for polls, the request too.
    Message,
    /// Nothing to tell: a heartbeat, or for polls a request whose answer is empty.
    Silence,
    /// From the wish to close to the last ACK.
    Close,
}

/// Up: to the server. Down: from it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Both {
    pub up: Bytes,
    pub down: Bytes,
}

/// Bytes of IP packets by what they are for; together all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Bytes {
    /// What the application wanted to say.
    pub payload: f64,
    /// What the transport puts around it: HTTP heads, frames, event lines, envelopes.
    pub framing: f64,
    /// Records and handshakes of TLS; 0 without it.
    pub tls: f64,
    /// IP and TCP headers of segments that carry something.
    pub headers: f64,
    /// Segments that carry nothing: ACK, SYN, FIN.
    pub acks: f64,
}

impl Bytes {
    pub fn total(&self) -> f64 {
        self.parts().iter().map(|(_, bytes)| bytes).sum()
    }

    /// In the order in which they are stacked.
    pub fn parts(&self) -> [(&'static str, f64); 5] {
        let Bytes { payload, framing, tls, headers, acks } = *self;
        [("payload", payload), ("framing", framing), ("TLS", tls), ("TCP/IP", headers), ("ACK", acks)]
    }

    pub fn map(&self, change: impl Fn(f64) -> f64) -> Bytes {
        let Bytes { payload, framing, tls, headers, acks } = *self;
        let [payload, framing, tls, headers, acks] = [payload, framing, tls, headers, acks].map(change);
        Bytes { payload, framing, tls, headers, acks }
    }
}

impl std::ops::Add for Bytes {
    type Output = Bytes;

    fn add(self, other: Bytes) -> Bytes {
        Bytes {
            payload: self.payload + other.payload,
            framing: self.framing + other.framing,
            tls: self.tls + other.tls,
            headers: self.headers + other.headers,
            acks: self.acks + other.acks,
        }
    }
}

impl Both {
    pub fn sum(&self) -> Bytes {
        self.up + self.down
    }

    pub fn total(&self) -> f64 {
        self.sum().total()
    }

    /// One of so many.
    pub fn per(&self, count: u64) -> Both {
        let share = |bytes: &Bytes| bytes.map(|bytes| bytes / count.max(1) as f64);
        Both { up: share(&self.up), down: share(&self.down) }
    }
}

impl std::ops::Add for Both {
    type Output = Both;

    fn add(self, other: Both) -> Both {
        Both { up: self.up + other.up, down: self.down + other.down }
    }
}

/// A figure of a thesis beside ours.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Published {
    /// `somogyi`, `thorsen`, `muller`.
    pub thesis: String,
    /// What the figure belongs to, with the number of its table there.
    pub table: String,
    pub item: String,
    pub unit: String,
    /// As it stands there; `None`: it is not there.
    pub printed: Option<f64>,
    /// As it follows from the other printed figures, if it had a slip.
    pub corrected: Option<f64>,
    /// Millrace, measured or counted; `None`: the figure is about the other system only.
    pub ours: Option<f64>,
    /// What was wrong, or how ours was come by.
    pub remark: String,
}

/// A day of one client on one radio.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EnergyLine {
    pub radio: String,
    pub transport: String,
    /// What the client does that day.
    pub day: String,
    /// Silence after which a heartbeat is sent, or the time between two polls: also how long it may take until a dead connection is noticed.
    pub heartbeat_s: f64,
    pub bytes_per_day: f64,
    pub joules_per_day: f64,
    /// Joules by what the radio did: a state's name, `promotion`, `transfer`.
    pub states: Vec<(String, f64)>,
    /// How often the radio was woken.
    pub promotions: u64,
    /// Of the battery that the notes name, by the radio alone.
    pub battery_percent_per_day: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Battery {
    pub what: String,
    pub capacity_wh: f64,
    pub power_w: f64,
    pub hours: f64,
    pub published_hours: Option<f64>,
    pub remark: String,
}

impl Bill {
    pub fn line(&self, transport: &str, side: Side, unit: Unit) -> Option<&Line> {
        self.lines.iter().find(|line| line.transport == transport && line.side == side && line.unit == unit)
    }
}

/// Which one it is: `sse deliver message`.
impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.transport, name(&self.side), name(&self.unit))
    }
}

impl fmt::Display for Bill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Path { link, mtu, header_bytes, captured_bytes, counted_bytes, .. } = &self.path;
        writeln!(
            f,
            "Bytes of IP packets; payload {} B; {link}, MTU {mtu}, {header_bytes} B of headers a segment",
            self.payload_bytes
        )?;
        if let (Some(captured), Some(counted)) = (captured_bytes, counted_bytes) {
            let off = difference_percent(*captured as f64, *counted as f64);
            writeln!(f, "A capture saw {captured} B, the kernel counted {counted} B: {off:+.3} %")?;
        }
        writeln!(
            f,
            "\n{:<13}{:<9}{:<11}{:>8}{:>8}{:>5}{:>8}{:>6} |{:>9}{:>9}{:>9}",
            "transport", "side", "unit", "payload", "framing", "TLS", "TCP/IP", "ACK", "measured", "model", "diff"
        )?;
        for line in &self.lines {
            let sum = line.measured.sum();
            writeln!(
                f,
                "{:<13}{:<9}{:<11}{:>8.1}{:>8.1}{:>5.0}{:>8.1}{:>6.1} |{:>9.1}{:>9.1}{:>7.2} %",
                line.transport,
                name(&line.side),
                name(&line.unit),
                sum.payload,
                sum.framing,
                sum.tls,
                sum.headers,
                sum.acks,
                sum.total(),
                line.model.total(),
                line.difference_percent
            )?;
        }
        let mut table = "";
        for row in &self.published {
            if row.table != table {
                table = &row.table;
                writeln!(f, "\n{table}\n{:<44}{:>11}{:>11}{:>11}", "", "printed", "corrected", "ours")?;
            }
            let figure = |value: Option<f64>| value.map_or("-".into(), |value| format!("{value:.2}"));
            let item = format!("{} ({})", row.item, row.unit);
            let [printed, corrected, ours] = [row.printed, row.corrected, row.ours].map(figure);
            writeln!(f, "{item:<44}{printed:>11}{corrected:>11}{ours:>11}  {}", row.remark)?;
        }
        let mut head = (&String::new(), &String::new(), &String::new());
        let none = head;
        for row in self.energy.iter().filter(|row| !matches!(row.transport.as_str(), "session" | "ndjson")) {
            let now = (&row.radio, &row.day, &row.transport);
            if head == none {
                write!(
                    f,
                    "\nJoules a day by the time between heartbeats, requests or polls, and percent of the battery"
                )?;
            }
            if now != head {
                write!(f, "\n{:<6}{:<25}{:<13}", row.radio, row.day, row.transport)?;
                head = now;
            }
            let percent = row.battery_percent_per_day;
            write!(f, " |{:>5.0} s{:>7.0} J{percent:>4.0} %", row.heartbeat_s, row.joules_per_day)?;
        }
        writeln!(f)?;
        for row in &self.batteries {
            let published = row.published_hours.map_or(String::new(), |hours| format!(" (published: {hours} h)"));
            writeln!(
                f,
                "{}: {} Wh at {:.3} W last {:.1} h{published}",
                row.what, row.capacity_wh, row.power_w, row.hours
            )?;
        }
        self.notes.iter().try_for_each(|note| writeln!(f, "- {note}"))
    }
}

/// As it is spelled in JSON.
fn name(value: &impl Serialize) -> String {
    serde_json::to_value(value).ok().and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
}

/// Of `value` against `base`; 100 if there should be nothing and is something.
pub fn difference_percent(value: f64, base: f64) -> f64 {
    match (base == 0.0, value == 0.0) {
        (true, true) => 0.0,
        (true, false) => 100.0,
        _ => (value / base - 1.0) * 100.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bill_comes_back_as_it_was_and_is_a_table() {
        let down = Bytes { payload: 134.0, framing: 4.0, tls: 0.0, headers: 52.0, acks: 0.0 };
        let measured = Both { up: Bytes { acks: 52.0, ..Bytes::default() }, down };
        let bill = Bill {
            payload_bytes: 134,
            lines: vec![Line {
                transport: "websocket".into(),
                side: Side::Deliver,
                unit: Unit::Message,
                count: 20,
                measured,
                model: measured,
                difference_percent: 0.0,
                retransmitted_bytes: 0.0,
            }],
            ..Bill::default()
        };
        assert_eq!(measured.total(), 242.0);
        let text = serde_json::to_string(&bill).unwrap();
        assert!(text.contains(r#""side":"deliver","unit":"message""#), "{text}");
        assert_eq!(serde_json::from_str::<Bill>(&text).unwrap(), bill);
        let table = bill.to_string();
        assert!(table.contains("websocket    deliver  message") && table.contains("242.0"), "{table}");
    }

    #[test]
    fn a_difference_is_always_a_number() {
        let percent =
            [(0.0, 0.0), (101.0, 100.0), (1.0, 0.0)].map(|(value, base)| difference_percent(value, base).round());
        assert_eq!(percent, [0.0, 1.0, 100.0]);
    }
}
