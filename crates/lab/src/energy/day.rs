//! Models one day of a client as a sequence of packets.

use super::radio::{Direction, Packet};

pub const DAY_S: f64 = 86_400.0;

/// IP bytes of one event in each direction.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    pub up_bytes: f64,
    pub down_bytes: f64,
}

/// Method by which messages reach a client.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum DeliveryMethod {
    /// Messages are pushed. The server sends a heartbeat after each `heartbeat_s` of silence.
    Push { heartbeat_s: f64 },
    /// Messages are pushed, but only traffic from the client counts as a sign of life. Heartbeats therefore also
    /// occur between messages.
    PushAndAsk { heartbeat_s: f64 },
    /// Long polling: a request is held for `hold_s` at most. The answer is the next message, or empty.
    Hold { hold_s: f64 },
    /// Polling: one request every `every_s`.
    Poll { every_s: f64 },
}

/// Start of a day with a drive: `messages` messages, one every `every_s`, then no more messages.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Drive {
    pub messages: u32,
    pub every_s: f64,
}

/// Returns the events of a day in time order, each with its cost: the connection, messages and silent periods.
///
/// In reality, polls that are rarer than messages return several messages at once. This model returns one message per
/// poll, so the interval of [`DeliveryMethod::Poll`] must not exceed [`Drive::every_s`] unless there are no messages.
pub fn day(method: DeliveryMethod, drive: Drive, connection: Cost, message: Cost, silence: Cost) -> Vec<(f64, Cost)> {
    let mut events = vec![(0.0, connection)];
    let messages = (1..=drive.messages).map(|n| f64::from(n) * drive.every_s);
    match method {
        DeliveryMethod::Poll { every_s } => {
            let mut seen = 0;
            for n in 1.. {
                let at_s = f64::from(n) * every_s;
                if at_s >= DAY_S {
                    break;
                }
                let there = ((at_s / drive.every_s) as u32).min(drive.messages);
                events.push((at_s, if there > seen { message } else { silence }));
                seen = seen.max(there);
            }
        }
        DeliveryMethod::PushAndAsk { heartbeat_s } => {
            events.extend(messages.map(|at_s| (at_s, message)));
            let beats = (1..).map(|n| f64::from(n) * heartbeat_s).take_while(|at_s| *at_s < DAY_S);
            events.extend(beats.map(|at_s| (at_s, silence)));
            events.sort_by(|a, b| a.0.total_cmp(&b.0));
        }
        DeliveryMethod::Push { heartbeat_s: quiet_s } | DeliveryMethod::Hold { hold_s: quiet_s } => {
            let mut last_s = 0.0;
            for next_s in messages.map(|at_s| (at_s, true)).chain([(DAY_S, false)]) {
                let (next_s, is_message) = next_s;
                while last_s + quiet_s < next_s {
                    last_s += quiet_s;
                    events.push((last_s, silence));
                }
                if is_message {
                    events.push((next_s, message));
                    last_s = next_s;
                }
            }
        }
    }
    events
}

/// Converts events to packets of a radio: one packet in each direction per event.
pub fn packets(events: &[(f64, Cost)]) -> impl Iterator<Item = Packet> {
    events.iter().flat_map(|(at_s, cost)| {
        [(Direction::Down, cost.down_bytes), (Direction::Up, cost.up_bytes)].map(|(direction, bytes)| Packet {
            at_s: *at_s,
            direction,
            bytes: bytes.round() as u64,
        })
    })
}

pub fn total_bytes(events: &[(f64, Cost)]) -> f64 {
    events.iter().map(|(_, cost)| cost.up_bytes + cost.down_bytes).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONNECTION: Cost = Cost { up_bytes: 100.0, down_bytes: 0.0 };
    const MESSAGE: Cost = Cost { up_bytes: 0.0, down_bytes: 10.0 };
    const SILENCE: Cost = Cost { up_bytes: 1.0, down_bytes: 0.0 };
    const DRIVE: Drive = Drive { messages: 700, every_s: 5.0 };

    fn count(method: DeliveryMethod, drive: Drive) -> (usize, usize) {
        let events = day(method, drive, CONNECTION, MESSAGE, SILENCE);
        assert!(events.is_sorted_by(|a, b| a.0 <= b.0) && events.iter().all(|(at_s, _)| *at_s < DAY_S));
        let of = |cost| events.iter().filter(|(_, one)| *one == cost).count();
        (of(MESSAGE), of(SILENCE))
    }

    /// Somogyi's counts, as corrected: 21,600 polls and 2,763 empty answers. The day of the thesis has a poll at its
    /// end; this model stops before it.
    #[test]
    fn daily_event_counts_match_hand_calculation() {
        assert_eq!(count(DeliveryMethod::Poll { every_s: 4.0 }, DRIVE), (700, 20_899));
        assert_eq!(count(DeliveryMethod::Hold { hold_s: 30.0 }, DRIVE), (700, 2_763));
        assert_eq!(count(DeliveryMethod::PushAndAsk { heartbeat_s: 300.0 }, DRIVE), (700, 287));
        assert_eq!(count(DeliveryMethod::Push { heartbeat_s: 300.0 }, DRIVE), (700, 276));
        assert_eq!(count(DeliveryMethod::Push { heartbeat_s: 300.0 }, Drive { messages: 0, every_s: 5.0 }), (0, 287));
    }

    #[test]
    fn packets_sum_to_the_bytes_of_their_events() {
        let events = day(DeliveryMethod::Push { heartbeat_s: 3600.0 }, DRIVE, CONNECTION, MESSAGE, SILENCE);
        let sum: u64 = packets(&events).map(|packet| packet.bytes).sum();
        assert_eq!((sum as f64, total_bytes(&events)), (7123.0, 7123.0));
    }
}
