use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{Time, queue_limit::MTU_BYTES};

/// Parameters of CoDel. Source: RFC 8289, section 4.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CodelConfig {
    /// Acceptable time in the queue.
    #[serde(with = "humantime_serde")]
    pub target: Duration,
    /// Time that the queue may stay above the target before packets are dropped; about one round trip.
    #[serde(with = "humantime_serde")]
    pub interval: Duration,
}

impl Default for CodelConfig {
    fn default() -> Self {
        Self { target: Duration::from_millis(5), interval: Duration::from_millis(100) }
    }
}

/// Controlled Delay: drops packets at the head of a queue that stays too long.
///
/// Source: RFC 8289, section 5.
#[derive(Clone, Debug, Default)]
pub(crate) struct Codel {
    /// Time from which packets may be dropped, because the queue has been above the target for an interval.
    above_since: Option<Time>,
    drop_next: Time,
    count: u32,
    last_count: u32,
    is_dropping: bool,
}

impl Codel {
    /// Takes packets from the head of the queue until one may be sent. `pop` returns the arrival of the packet at the
    /// head and the bytes that stay in the queue; `drop` drops that packet.
    pub fn dequeue<P>(
        &mut self,
        config: CodelConfig,
        now: Time,
        mut pop: impl FnMut() -> Option<(Time, u64, P)>,
        mut drop: impl FnMut(P),
    ) -> Option<P> {
        let mut next = |codel: &mut Self| {
            let popped = pop();
            let may_drop = codel.judge(config, now, popped.as_ref().map(|(arrival, bytes, _)| (*arrival, *bytes)));
            (popped.map(|(.., packet)| packet), may_drop)
        };
        let (mut packet, mut may_drop) = next(self);
        if self.is_dropping {
            self.is_dropping = may_drop;
            while self.is_dropping && now >= self.drop_next {
                packet.into_iter().for_each(&mut drop);
                self.count += 1;
                (packet, may_drop) = next(self);
                match may_drop {
                    true => self.drop_next = control_law(self.drop_next, config, self.count),
                    false => self.is_dropping = false,
                }
            }
        } else if may_drop {
            packet.into_iter().for_each(&mut drop);
            (packet, _) = next(self);
            self.is_dropping = true;
            let delta = self.count - self.last_count;
            let was_recent = now.since(self.drop_next) < 16 * config.interval;
            self.count = if delta > 1 && was_recent { delta } else { 1 };
            self.drop_next = control_law(now, config, self.count);
            self.last_count = self.count;
        }
        packet
    }

    /// Returns true if the packet may be dropped. `head`: its arrival, and the bytes behind it.
    fn judge(&mut self, config: CodelConfig, now: Time, head: Option<(Time, u64)>) -> bool {
        match head {
            Some((arrival, bytes)) if now.since(arrival) >= config.target && bytes > MTU_BYTES => {
                match self.above_since {
                    None => {
                        self.above_since = Some(now + config.interval);
                        false
                    }
                    Some(from) => now >= from,
                }
            }
            _ => {
                self.above_since = None;
                false
            }
        }
    }
}

fn control_law(time: Time, config: CodelConfig, count: u32) -> Time {
    time + config.interval.div_f64(f64::from(count).sqrt())
}
