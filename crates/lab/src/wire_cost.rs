//! Wire cost report: the cost of each transport in bytes and energy. A recording stores the report, and a page shows
//! it.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Wire cost of one run. [`fmt::Display`] prints the table for a terminal.
///
/// - `lines`: bytes of IP packets by transport, side and unit. Show a stacked bar of [`Bytes::parts`] for
///   [`DirectionalBytes::sum`], or for up and down separately, with the measured value beside the model.
/// - `published`: the figure printed in a thesis, the corrected figure, and ours. Show one table per `table`, in this
///   order.
/// - `energy`: joules per day by radio, transport and heartbeat. Show a line chart over `heartbeat_s`, or stacked
///   bars of `states`.
/// - `batteries`: battery life.
/// - `notes`: text that is needed to understand the figures. Show all notes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WireCostReport {
    pub path: Path,
    /// Payload bytes of one message.
    pub payload_bytes: u64,
    pub lines: Vec<Line>,
    pub published: Vec<Published>,
    pub energy: Vec<EnergyLine>,
    pub batteries: Vec<Battery>,
    pub notes: Vec<String>,
}

/// Link between the two ends.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Path {
    /// `veth` or `loopback`.
    pub link: String,
    pub mtu: u32,
    /// IP and TCP header bytes of a segment, including options.
    pub header_bytes: u64,
    /// Ethernet header bytes per packet. No figure here includes them; the theses do.
    pub ethernet_bytes: u64,
    /// Bytes that a capture of the same packets saw, and bytes by the kernel's counters. `None` without a capture.
    pub captured_bytes: Option<u64>,
    pub counted_bytes: Option<u64>,
}

/// Bytes of one unit, as a mean over `count` units.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Line {
    pub transport: String,
    pub side: Side,
    pub unit: Unit,
    pub count: u64,
    pub measured: DirectionalBytes,
    pub model: DirectionalBytes,
    /// Difference of the measured sum from the model sum, in percent.
    pub difference_percent: f64,
    /// Retransmitted bytes, also included in `measured`. If not 0, the path lost packets.
    pub retransmitted_bytes: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Side {
    /// Between server and reader.
    Deliver,
    /// Between publisher and server.
    Publish,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Unit {
    /// Opening: from the first SYN until the transport is ready.
    Connection,
    /// One isolated message with all bytes that carry it. For polling, this includes the request.
    Message,
    /// Traffic without a message: a heartbeat, or a poll with an empty answer.
    Silence,
    /// Close: from the start of closing to the last ACK.
    Close,
}

/// Bytes in both directions. `up` is to the server, `down` is from the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DirectionalBytes {
    pub up: Bytes,
    pub down: Bytes,
}

/// Bytes of IP packets by purpose. The parts add up to all bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Bytes {
    /// Payload of the application.
    pub payload: f64,
    /// Bytes that the transport adds: HTTP headers, frames, event lines, envelopes.
    pub framing: f64,
    /// TLS records and handshakes. 0 without TLS.
    pub tls: f64,
    /// IP and TCP headers of segments with data.
    pub headers: f64,
    /// Segments without data: ACK, SYN, FIN.
    pub acks: f64,
}

impl Bytes {
    pub fn total(&self) -> f64 {
        self.parts().iter().map(|(_, bytes)| bytes).sum()
    }

    /// Returns the parts in stacking order.
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

impl DirectionalBytes {
    pub fn sum(&self) -> Bytes {
        self.up + self.down
    }

    pub fn total(&self) -> f64 {
        self.sum().total()
    }

    /// Returns the mean per unit for a sum over `count` units.
    pub fn per(&self, count: u64) -> DirectionalBytes {
        let share = |bytes: &Bytes| bytes.map(|bytes| bytes / count.max(1) as f64);
        DirectionalBytes { up: share(&self.up), down: share(&self.down) }
    }
}

impl std::ops::Add for DirectionalBytes {
    type Output = DirectionalBytes;

    fn add(self, other: DirectionalBytes) -> DirectionalBytes {
        DirectionalBytes { up: self.up + other.up, down: self.down + other.down }
    }
}

/// Figure of a thesis beside ours.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Published {
    /// `somogyi`, `thorsen`, `muller`.
    pub thesis: String,
    /// Title of the table, with the number of the table in the thesis.
    pub table: String,
    pub item: String,
    pub unit: String,
    /// Value printed in the thesis. `None` if the thesis does not print it.
    pub printed: Option<f64>,
    /// Value that follows from the other printed figures, if the printed value has an error.
    pub corrected: Option<f64>,
    /// Measured or computed value for Millrace. `None` if the figure is only about the other system.
    pub ours: Option<f64>,
    /// Error in the printed value, or how our value was obtained.
    pub remark: String,
}

/// Day of one client on one radio.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EnergyLine {
    pub radio: String,
    pub transport: String,
    /// Activity of the client on that day.
    pub day: String,
    /// Silent time before a heartbeat, or time between two polls. This is also the longest time until a dead
    /// connection is noticed.
    pub heartbeat_s: f64,
    pub bytes_per_day: f64,
    pub joules_per_day: f64,
    /// Joules by radio activity: the name of a state, `promotion`, or `transfer`.
    pub states: Vec<(String, f64)>,
    /// Number of promotions of the radio.
    pub promotions: u64,
    /// Share of the battery capacity given in the notes, used by the radio alone.
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

impl WireCostReport {
    pub fn line(&self, transport: &str, side: Side, unit: Unit) -> Option<&Line> {
        self.lines.iter().find(|line| line.transport == transport && line.side == side && line.unit == unit)
    }
}

/// Prints the name of the line: `sse deliver message`.
impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.transport, name(&self.side), name(&self.unit))
    }
}

impl fmt::Display for WireCostReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Path { link, mtu, header_bytes, captured_bytes, counted_bytes, .. } = &self.path;
        writeln!(
            f,
            "Bytes of IP packets; payload {} B; {link}, MTU {mtu}, {header_bytes} B of headers a segment",
            self.payload_bytes
        )?;
        if let (Some(captured), Some(counted)) = (captured_bytes, counted_bytes) {
            let off = difference_percent(*captured as f64, *counted as f64);
            writeln!(f, "The capture contains {captured} B, the kernel counted {counted} B: {off:+.3} %")?;
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
        for row in self.energy.iter().filter(|row| !matches!(row.transport.as_str(), "session" | "stream")) {
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

/// Returns the JSON name of a value.
fn name(value: &impl Serialize) -> String {
    serde_json::to_value(value).ok().and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
}

/// Returns the difference of `value` from `base` in percent. Returns 100 if `base` is zero and `value` is not.
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
    fn report_survives_json_and_prints_as_table() {
        let down = Bytes { payload: 134.0, framing: 4.0, tls: 0.0, headers: 52.0, acks: 0.0 };
        let measured = DirectionalBytes { up: Bytes { acks: 52.0, ..Bytes::default() }, down };
        let wire_cost = WireCostReport {
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
            ..WireCostReport::default()
        };
        assert_eq!(measured.total(), 242.0);
        let text = serde_json::to_string(&wire_cost).unwrap();
        assert!(text.contains(r#""side":"deliver","unit":"message""#), "{text}");
        assert_eq!(serde_json::from_str::<WireCostReport>(&text).unwrap(), wire_cost);
        let table = wire_cost.to_string();
        assert!(table.contains("websocket    deliver  message") && table.contains("242.0"), "{table}");
    }

    #[test]
    fn a_difference_is_always_a_number() {
        let percent =
            [(0.0, 0.0), (101.0, 100.0), (1.0, 0.0)].map(|(value, base)| difference_percent(value, base).round());
        assert_eq!(percent, [0.0, 1.0, 100.0]);
    }
}
