use std::collections::VecDeque;

use super::Levels;
use crate::Time;

/// An event on the bus and the time at which it was complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct I2cEvent {
    /// Time of the edge that completes the event. For a byte: the rising edge of SCL with the acknowledgement. At
    /// 1 MHz, [`Time::as_us`] is the number of clock cycles.
    pub time: Time,
    pub kind: I2cEventKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum I2cEventKind {
    Start,
    RepeatedStart,
    /// The first byte after a START: the seven address bits, the direction, and the acknowledgement.
    Address {
        address: u8,
        read: bool,
        ack: bool,
    },
    /// A later byte of either direction.
    Byte {
        byte: u8,
        ack: bool,
    },
    Stop,
}

/// Decodes the transfers on the wires, independently of master and slaves.
#[derive(Clone, Debug, Default)]
pub struct Monitor {
    events: VecDeque<I2cEvent>,
    dropped: u64,
    active: bool,
    bits: u8,
    shift: u16,
    bytes: u32,
    last_rise: Option<Time>,
    period_min: Option<Time>,
    period_max: Option<Time>,
    idle_clocks: u64,
}

impl Monitor {
    /// Maximum number of stored events; the oldest are dropped.
    const EVENTS_MAX: usize = 1 << 16;

    /// Returns the stored events, oldest first.
    pub fn events(&self) -> impl Iterator<Item = &I2cEvent> {
        self.events.iter()
    }

    /// Returns and removes the stored events, oldest first.
    pub fn take_events(&mut self) -> Vec<I2cEvent> {
        self.events.drain(..).collect()
    }

    /// Returns the number of events that were dropped because the log was full.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Returns the shortest and the longest time between two rising edges of SCL within a byte.
    pub fn bit_time(&self) -> Option<(Time, Time)> {
        self.period_min.zip(self.period_max)
    }

    /// Returns the clock pulses outside of transfers: a master sends them to free a stuck slave.
    pub fn idle_clocks(&self) -> u64 {
        self.idle_clocks
    }

    /// Returns whether a transfer is in progress: a START without a STOP.
    pub fn is_active(&self) -> bool {
        self.active
    }

    /// Returns the complete bytes since the last START.
    pub(super) fn bytes(&self) -> u32 {
        self.bytes
    }

    /// Returns whether eight bits of the present byte have passed.
    pub(super) fn at_acknowledge(&self) -> bool {
        self.active && self.bits == 8
    }

    /// Ends the present transfer without a STOP. Withdraws a START without any bit.
    pub(super) fn abort(&mut self) {
        let is_start = |event: &I2cEvent| matches!(event.kind, I2cEventKind::Start);
        if self.active && self.bits == 0 && self.bytes == 0 && self.events.back().is_some_and(is_start) {
            self.events.pop_back();
        }
        (self.active, self.last_rise) = (false, None);
    }

    pub(super) fn observe(&mut self, time: Time, before: Levels, after: Levels) {
        match (before.scl, after.scl, before.sda, after.sda) {
            (true, true, true, false) => {
                let kind = if self.active { I2cEventKind::RepeatedStart } else { I2cEventKind::Start };
                self.record(time, kind);
                (self.active, self.bits, self.bytes, self.last_rise) = (true, 0, 0, None);
            }
            (true, true, false, true) => {
                if self.active {
                    self.record(time, I2cEventKind::Stop);
                }
                (self.active, self.last_rise) = (false, None);
            }
            (false, true, ..) if self.active => self.rise(time, after.sda),
            (true, false, ..) if !self.active => self.idle_clocks += 1,
            _ => {}
        }
    }

    fn rise(&mut self, time: Time, sda: bool) {
        if let Some(last) = self.last_rise
            && self.bits > 0
        {
            let period = time - last;
            self.period_min = Some(self.period_min.map_or(period, |min| min.min(period)));
            self.period_max = Some(self.period_max.map_or(period, |max| max.max(period)));
        }
        self.last_rise = Some(time);
        self.shift = self.shift << 1 | u16::from(sda);
        self.bits += 1;
        if self.bits == 9 {
            let (byte, ack) = ((self.shift >> 1) as u8, !sda);
            let kind = match self.bytes {
                0 => I2cEventKind::Address { address: byte >> 1, read: byte & 1 != 0, ack },
                _ => I2cEventKind::Byte { byte, ack },
            };
            self.record(time, kind);
            (self.bits, self.bytes) = (0, self.bytes + 1);
        }
    }

    fn record(&mut self, time: Time, kind: I2cEventKind) {
        if self.events.len() == Self::EVENTS_MAX {
            self.events.pop_front();
            self.dropped += 1;
        }
        self.events.push_back(I2cEvent { time, kind });
    }
}
