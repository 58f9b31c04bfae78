use super::{I2cSlave, Levels, Puller};
use crate::Time;

/// State of a slave's bus interface.
///
/// ```text
///            START                  8 bits, own address          falling edge
///   Idle ------------> Receive ------------------------> Acknowledge ---------> Receive (write)
///                         | 8 bits, refused                   |
///                         v                                   +--------------> Send (read) -> Listen -> Send
///                        Idle                                                                   | NACK
///                                                                                               v
///   Every state: START -> Receive, STOP -> Idle                                                Idle
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Idle,
    /// Shifts in the address or a byte.
    Receive {
        is_address: bool,
        bits: u8,
        byte: u8,
    },
    /// Pulls SDA low for the acknowledgement; then sends or receives.
    Acknowledge {
        then_send: bool,
    },
    /// Shifts out a byte; `left` bits follow the present one.
    Send {
        byte: u8,
        left: u8,
    },
    /// Reads the master's acknowledgement of a byte.
    Listen {
        acknowledged: bool,
    },
}

/// Bus interface of one slave: turns edges into bytes.
#[derive(Clone, Debug)]
pub struct SlavePort {
    puller: Puller,
    state: State,
    addressed: bool,
}

impl SlavePort {
    pub fn new(puller: Puller) -> Self {
        Self { puller, state: State::Idle, addressed: false }
    }

    pub fn puller(&self) -> Puller {
        self.puller
    }

    pub fn reset(&mut self) {
        (self.state, self.addressed) = (State::Idle, false);
    }

    /// Handles a change of the wires. Returns the new state of the slave's SDA output, if that changes: `true` is low.
    ///
    /// `refuse` suppresses the next acknowledgement.
    pub fn observe(
        &mut self,
        time: Time,
        before: Levels,
        after: Levels,
        slave: &mut dyn I2cSlave,
        refuse: bool,
    ) -> Option<bool> {
        match (before.scl, after.scl, before.sda, after.sda) {
            (true, true, true, false) => {
                self.state = State::Receive { is_address: true, bits: 0, byte: 0 };
                Some(false)
            }
            (true, true, false, true) => {
                self.state = State::Idle;
                if std::mem::take(&mut self.addressed) {
                    slave.stop(time);
                }
                Some(false)
            }
            (false, true, ..) => {
                self.rise(after.sda);
                None
            }
            (true, false, ..) => self.fall(time, slave, refuse),
            _ => None,
        }
    }

    fn rise(&mut self, sda: bool) {
        match &mut self.state {
            State::Receive { bits, byte, .. } => {
                *byte = *byte << 1 | u8::from(sda);
                *bits += 1;
            }
            State::Listen { acknowledged } => *acknowledged = !sda,
            _ => {}
        }
    }

    fn fall(&mut self, time: Time, slave: &mut dyn I2cSlave, refuse: bool) -> Option<bool> {
        match self.state {
            State::Receive { is_address, bits: 8, byte } => {
                let read = is_address && byte & 1 != 0;
                let accepted =
                    !refuse && if is_address { slave.start(time, byte >> 1, read) } else { slave.write(time, byte) };
                self.addressed |= accepted;
                self.state = if accepted { State::Acknowledge { then_send: read } } else { State::Idle };
                accepted.then_some(true)
            }
            State::Acknowledge { then_send: true } | State::Listen { acknowledged: true } => {
                let byte = slave.read(time);
                self.state = State::Send { byte, left: 7 };
                Some(byte & 0x80 == 0)
            }
            State::Acknowledge { then_send: false } => {
                self.state = State::Receive { is_address: false, bits: 0, byte: 0 };
                Some(false)
            }
            State::Send { left: 0, .. } => {
                self.state = State::Listen { acknowledged: false };
                Some(false)
            }
            State::Send { byte, left } => {
                self.state = State::Send { byte, left: left - 1 };
                Some(byte >> (left - 1) & 1 == 0)
            }
            State::Listen { acknowledged: false } => {
                self.state = State::Idle;
                None
            }
            State::Idle | State::Receive { .. } => None,
        }
    }
}
