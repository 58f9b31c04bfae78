//! Power of a phone that forwards messages between data channels, fitted to Karadogan's tables 3.9 and 3.12.
//!
//! The tables have the mean power of a whole phone. Their idle phones differ (1195 and 1058 mW), so the model explains
//! the increments over idle (ERRATA E-K13):
//!
//! `increment = active + per_channel x open channels + per_message x messages per second`
//!
//! With one table alone, channels and messages grow together, and no fit can separate them. Both tables together can:
//! a peer of the first one adds a channel and 4 messages per second, one of the second one adds a channel and 44.

use std::time::Duration;

/// Power of one idle phone in each of the two series, with the profiler and a dimmed screen, in mW (values KV31, KV32).
const IDLE_MULTIPLEXING_MW: f64 = 1195.0;
const IDLE_DEMULTIPLEXING_MW: f64 = 1058.0;
/// Messages per second of each peer in the thesis.
const PEER_RATE: f64 = 4.0;
/// Channels to receivers in the series of demultiplexing, and messages in each received message.
pub const RECEIVERS: f64 = 10.0;

/// Direction in which the phone forwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forwarding {
    /// From many peers to one, joined to one message per window.
    Multiplexing,
    /// From each peer to ten receivers, one message for each.
    Demultiplexing,
}

/// Work of a phone that forwards: peers, rates and channels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Duty {
    pub forwarding: Forwarding,
    pub peers: f64,
    /// Messages per second of each peer.
    pub rate: f64,
    /// Time for which messages are joined; only for multiplexing.
    pub window: Duration,
    /// Interval of heartbeats on each channel. Each is a message in both directions. `None`: no heartbeats.
    pub heartbeat: Option<Duration>,
}

impl Duty {
    /// Returns the duty of a step of the thesis.
    pub fn thesis(forwarding: Forwarding, peers: f64) -> Self {
        Self { forwarding, peers, rate: PEER_RATE, window: Duration::from_millis(250), heartbeat: None }
    }

    pub fn channels(&self) -> f64 {
        match self.forwarding {
            Forwarding::Multiplexing => self.peers + 1.0,
            Forwarding::Demultiplexing => self.peers + RECEIVERS,
        }
    }

    /// Returns the messages that the phone receives and sends per second.
    pub fn messages_per_s(&self) -> f64 {
        let received = self.peers * self.rate;
        let sent = match self.forwarding {
            // No more messages leave than arrive.
            Forwarding::Multiplexing => (1.0 / self.window.as_secs_f64()).min(received),
            Forwarding::Demultiplexing => received * RECEIVERS,
        };
        let heartbeats = self.heartbeat.map_or(0.0, |interval| 2.0 * self.channels() / interval.as_secs_f64());
        received + sent + heartbeats
    }
}

/// One row of table 3.9 or 3.12: power of the whole phone.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PublishedPower {
    pub forwarding: Forwarding,
    pub peers: f64,
    pub mean_mw: f64,
    pub sd_mw: f64,
}

/// Returns the rows of tables 3.9 and 3.12.
pub fn published() -> Vec<PublishedPower> {
    let multiplexing = include_str!("../../data/karadogan_t3_9_mux_power.csv");
    let demultiplexing = include_str!("../../data/karadogan_t3_12_demux_power.csv");
    let rows = |text: &'static str, forwarding| {
        csv::Reader::from_reader(text.as_bytes()).into_records().map(move |record| {
            let record = record.expect("the file is part of the program");
            let [peers, mean_mw, sd_mw] = [0, 1, 2].map(|column| record[column].parse().expect("a number"));
            PublishedPower { forwarding, peers, mean_mw, sd_mw }
        })
    };
    rows(multiplexing, Forwarding::Multiplexing).chain(rows(demultiplexing, Forwarding::Demultiplexing)).collect()
}

/// The fitted model. Units: mW, and mJ per message.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PhoneGateway {
    /// Increment of a phone that forwards at all, in the series of multiplexing and of demultiplexing.
    pub active_multiplexing_mw: f64,
    pub active_demultiplexing_mw: f64,
    pub per_channel_mw: f64,
    pub per_message_mj: f64,
}

impl PhoneGateway {
    /// Fits the model to rows by least squares, each weighted by its deviation. Returns `None` if the rows do not
    /// determine it, for example with one series only.
    pub fn fit(rows: &[PublishedPower]) -> Option<Self> {
        let mut equations = [[0.0; 5]; 4];
        for row in rows {
            let terms = terms(&Duty::thesis(row.forwarding, row.peers));
            let increment = row.mean_mw - row.forwarding.idle_mw();
            let weight = row.sd_mw.powi(-2);
            for (equation, own) in equations.iter_mut().zip(terms) {
                for (sum, other) in equation.iter_mut().zip(terms.iter().chain([&increment])) {
                    *sum += weight * own * other;
                }
            }
        }
        let [active_multiplexing_mw, active_demultiplexing_mw, per_channel_mw, per_message_mj] = solve(equations)?;
        Some(Self { active_multiplexing_mw, active_demultiplexing_mw, per_channel_mw, per_message_mj })
    }

    /// Returns the model of the thesis' phone.
    pub fn thesis() -> Self {
        Self::fit(&published()).expect("two series determine the model")
    }

    /// Returns the power above that of an idle phone, in mW.
    pub fn increment_mw(&self, duty: &Duty) -> f64 {
        let coefficients =
            [self.active_multiplexing_mw, self.active_demultiplexing_mw, self.per_channel_mw, self.per_message_mj];
        terms(duty).iter().zip(coefficients).map(|(term, coefficient)| term * coefficient).sum()
    }

    /// Returns the power of the whole phone of the thesis, in mW.
    pub fn power_mw(&self, duty: &Duty) -> f64 {
        duty.forwarding.idle_mw() + self.increment_mw(duty)
    }
}

impl Forwarding {
    pub fn idle_mw(self) -> f64 {
        match self {
            Forwarding::Multiplexing => IDLE_MULTIPLEXING_MW,
            Forwarding::Demultiplexing => IDLE_DEMULTIPLEXING_MW,
        }
    }
}

/// Returns the factors of the four coefficients of a [`PhoneGateway`].
fn terms(duty: &Duty) -> [f64; 4] {
    let is = |forwarding| f64::from(u8::from(duty.forwarding == forwarding));
    [is(Forwarding::Multiplexing), is(Forwarding::Demultiplexing), duty.channels(), duty.messages_per_s()]
}

/// Solves linear equations, whose last column is the right side. Returns `None` if they have no single solution.
fn solve<const N: usize, const M: usize>(mut rows: [[f64; M]; N]) -> Option<[f64; N]> {
    for column in 0..N {
        let pivot = (column..N).max_by(|a, b| rows[*a][column].abs().total_cmp(&rows[*b][column].abs()))?;
        rows.swap(column, pivot);
        let scale = rows[column][column];
        if scale.abs() < 1e-9 {
            return None;
        }
        rows[column].iter_mut().for_each(|value| *value /= scale);
        let solved = rows[column];
        for (_, row) in rows.iter_mut().enumerate().filter(|(index, _)| *index != column) {
            let factor = row[column];
            row.iter_mut().zip(solved).for_each(|(value, other)| *value -= factor * other);
        }
    }
    Some(rows.map(|row| row[N]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::energy::hours;

    #[test]
    fn fit_reproduces_both_tables_within_their_deviation() {
        let phone = PhoneGateway::thesis();
        let rows = published();
        assert_eq!(rows.len(), 18);
        for row in &rows {
            let power = phone.power_mw(&Duty::thesis(row.forwarding, row.peers));
            assert!((power - row.mean_mw).abs() < row.sd_mw, "{row:?}: {power}");
        }
        assert!(phone.per_channel_mw > 0.0 && phone.per_message_mj > 0.0, "{phone:?}");
    }

    #[test]
    fn one_series_does_not_separate_channels_from_messages() {
        let rows: Vec<_> = published().into_iter().filter(|row| row.forwarding == Forwarding::Multiplexing).collect();
        assert_eq!(PhoneGateway::fit(&rows), None);
    }

    #[test]
    fn measured_power_gives_the_battery_lives_of_the_thesis() {
        for (forwarding, peers, published_hours) in [
            (Forwarding::Multiplexing, 10.0, 6.1),
            (Forwarding::Multiplexing, 49.0, 4.7),
            (Forwarding::Demultiplexing, 10.0, 5.1),
            (Forwarding::Demultiplexing, 40.0, 3.4),
        ] {
            let row = published().into_iter().find(|row| row.forwarding == forwarding && row.peers == peers);
            let hours = hours(8.0, row.expect("a row").mean_mw / 1000.0);
            assert!((hours / published_hours - 1.0).abs() < 0.02, "{forwarding:?}, {peers}: {hours}");
        }
    }

    #[test]
    fn longer_window_and_rarer_heartbeats_save_power() {
        let phone = PhoneGateway::thesis();
        let duty = Duty { heartbeat: Some(Duration::from_secs(25)), ..Duty::thesis(Forwarding::Multiplexing, 10.0) };
        let power = |duty: Duty| phone.power_mw(&duty);
        assert!(power(Duty { window: Duration::from_secs(1), ..duty }) < power(duty));
        assert!(power(Duty { heartbeat: Some(Duration::from_secs(5)), ..duty }) > power(duty));
        assert!(power(Duty { heartbeat: None, ..duty }) < power(duty));
        assert!(power(Duty { rate: 8.0, ..duty }) > power(duty));
    }

    #[test]
    fn window_sends_no_more_than_arrives() {
        let slow = Duty { rate: 0.1, ..Duty::thesis(Forwarding::Multiplexing, 10.0) };
        assert!((slow.messages_per_s() - 2.0).abs() < 1e-9);
    }
}
