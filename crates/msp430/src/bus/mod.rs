//! The I2C bus at the level of its two wires: slaves, a monitor that decodes transfers, and injected faults.
//!
//! Source: UM10204 (I2C-bus specification), section 3.1.

mod monitor;
mod slave;

use std::any::Any;

use crate::Time;
pub use monitor::{I2cEvent, I2cEventKind, Monitor};
use slave::SlavePort;

/// A device on the bus, byte by byte.
pub trait I2cSlave: Any + Send {
    /// Returns whether the device acknowledges an address after a START.
    fn start(&mut self, time: Time, address: u8, read: bool) -> bool;
    /// Receives a byte and returns whether the device acknowledges the byte.
    fn write(&mut self, time: Time, byte: u8) -> bool;
    /// Returns the next byte that the device sends.
    fn read(&mut self, time: Time) -> u8;
    /// Handles a STOP after a transfer with this device.
    fn stop(&mut self, time: Time);
}

/// A part that pulls wires low. The pull-up resistors on the board of the kit make all others high.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Puller {
    /// USCI_B0.
    Master,
    /// The port pins as general-purpose outputs.
    Gpio,
    /// A slave, by its number.
    Slave(u8),
    /// An injected fault.
    Fault,
}

impl Puller {
    fn bit(self) -> u32 {
        match self {
            Self::Master => 1,
            Self::Gpio => 2,
            Self::Fault => 4,
            Self::Slave(number) => 8 << (number & 15),
        }
    }
}

/// Levels of the two wires; `true` is high.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Levels {
    pub scl: bool,
    pub sda: bool,
}

/// An error to inject into the acknowledgement of a byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Nack {
    /// Number of the byte after a START; the address is 0.
    byte: u32,
    /// Number of transfers that are hit.
    transfers: u32,
}

/// The two wires, the devices on them, and the faults.
#[derive(Default)]
pub struct I2cBus {
    scl_low: u32,
    sda_low: u32,
    slaves: Vec<(Box<dyn I2cSlave>, SlavePort)>,
    monitor: Monitor,
    nack: Option<Nack>,
    /// Clock pulses until an injected low level of SDA ends.
    sda_held_pulses: Option<u32>,
    disconnected: bool,
}

impl I2cBus {
    /// Attaches a slave. Shape: at most 16 slaves; further ones share a wire driver.
    pub fn attach(&mut self, slave: impl I2cSlave) {
        let number = self.slaves.len() as u8;
        self.slaves.push((Box::new(slave), SlavePort::new(Puller::Slave(number))));
    }

    /// Returns the first slave of a type.
    pub fn slave<T: I2cSlave>(&self) -> Option<&T> {
        self.slaves.iter().find_map(|(slave, _)| (slave.as_ref() as &dyn Any).downcast_ref())
    }

    pub fn slave_mut<T: I2cSlave>(&mut self) -> Option<&mut T> {
        self.slaves.iter_mut().find_map(|(slave, _)| (slave.as_mut() as &mut dyn Any).downcast_mut())
    }

    pub fn levels(&self) -> Levels {
        Levels { scl: self.scl_low == 0, sda: self.sda_low == 0 }
    }

    /// Returns the decoded transfers.
    pub fn monitor(&self) -> &Monitor {
        &self.monitor
    }

    pub fn monitor_mut(&mut self) -> &mut Monitor {
        &mut self.monitor
    }

    /// Sets which wires a part pulls low. SCL changes after SDA when SCL rises, and before SDA when SCL falls, so that
    /// a change of both is no START or STOP.
    pub fn pull(&mut self, time: Time, puller: Puller, scl: bool, sda: bool) {
        let bit = puller.bit();
        let set = |mask: u32, low: bool| if low { mask | bit } else { mask & !bit };
        let (scl_low, sda_low) = (set(self.scl_low, scl), set(self.sda_low, sda));
        if scl {
            self.change(time, scl_low, self.sda_low);
            let sda_low = set(self.sda_low, sda);
            self.change(time, self.scl_low, sda_low);
        } else {
            self.change(time, self.scl_low, sda_low);
            self.change(time, scl_low, self.sda_low);
        }
    }

    /// Makes the slaves not acknowledge a byte: `byte` 0 is the address, 1 the first byte after it. The error hits each
    /// of the next `transfers` STARTs.
    pub fn inject_nack(&mut self, byte: u32, transfers: u32) {
        self.nack = Some(Nack { byte, transfers });
    }

    /// Holds SDA low until `pulses` clock pulses passed on SCL, as a slave does whose transfer was cut. Nine pulses end
    /// every such state.
    pub fn hold_sda(&mut self, time: Time, pulses: u32) {
        self.sda_held_pulses = Some(pulses);
        self.pull(time, Puller::Fault, self.scl_low & Puller::Fault.bit() != 0, true);
        // The falling edge of the fault is no START of a master, and the pulses that follow are no bytes.
        self.monitor.abort();
    }

    /// Holds SCL low, or releases SCL.
    pub fn hold_scl(&mut self, time: Time, low: bool) {
        self.pull(time, Puller::Fault, low, self.sda_held_pulses.is_some());
    }

    /// Removes the slaves from the wires, or connects them. The pull-up resistors stay.
    pub fn set_disconnected(&mut self, time: Time, disconnected: bool) {
        self.disconnected = disconnected;
        self.reset_slaves(time);
    }

    /// Resets the bus interfaces of all slaves, as a loss of power does.
    pub fn reset_slaves(&mut self, time: Time) {
        for index in 0..self.slaves.len() {
            let (_, port) = &mut self.slaves[index];
            port.reset();
            let puller = port.puller();
            self.pull(time, puller, false, false);
        }
    }

    fn change(&mut self, time: Time, scl_low: u32, sda_low: u32) {
        let before = self.levels();
        (self.scl_low, self.sda_low) = (scl_low, sda_low);
        let after = self.levels();
        if before == after {
            return;
        }
        self.monitor.observe(time, before, after);
        if before.scl && !after.scl {
            self.count_pulse(time);
        }
        if !self.disconnected {
            self.inform_slaves(time, before, after);
        }
    }

    fn inform_slaves(&mut self, time: Time, before: Levels, after: Levels) {
        // A START begins byte 0 of a transfer that the injected fault can hit.
        let bytes = self.monitor.bytes();
        let refuse = self.nack.is_some_and(|nack| nack.transfers > 0 && nack.byte == bytes);
        let mut pulls = Vec::new();
        for (slave, port) in &mut self.slaves {
            if let Some(low) = port.observe(time, before, after, slave.as_mut(), refuse) {
                pulls.push((port.puller(), low));
            }
        }
        if refuse
            && self.monitor.at_acknowledge()
            && before.scl
            && !after.scl
            && let Some(nack) = &mut self.nack
        {
            nack.transfers -= 1;
        }
        for (puller, low) in pulls {
            let bit = puller.bit();
            let sda_low = if low { self.sda_low | bit } else { self.sda_low & !bit };
            self.change(time, self.scl_low, sda_low);
        }
    }

    fn count_pulse(&mut self, time: Time) {
        match &mut self.sda_held_pulses {
            Some(pulses) if *pulses > 1 => *pulses -= 1,
            Some(_) => {
                self.sda_held_pulses = None;
                let scl = self.scl_low & Puller::Fault.bit() != 0;
                self.pull(time, Puller::Fault, scl, false);
            }
            None => {}
        }
    }
}
