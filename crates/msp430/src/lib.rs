//! A simulated MSP430G2553 on the LED module: CPU, peripherals, I2C bus, LED driver TCA6507 and light sensor.
//!
//! The firmware of the LED module runs here unchanged, from its ELF file. Tests check every byte on the bus, the light
//! of the lamps over time, and the behavior under faults. The simulation advances from event to event and skips the
//! sleep of the CPU, so a chip at 1 MHz needs a small part of a processor core.
//!
//! This crate performs no I/O, reads no clock and starts no thread: time is virtual ([`Time`]), and the same calls give
//! the same result. It does not simulate voltages, currents or noise, JTAG, or devices other than the MSP430G2553.
//!
//! Read first: [`Board`], [`Elf`], [`Mcu`], [`Tca6507`].
//!
//! Sources: MSP430x2xx Family User's Guide (SLAU144K), MSP430G2x53 data sheet (SLAS735J), TCA6507 data sheet
//! (SCPS164D), and the register addresses of msp430mcu.

mod adc;
mod board;
mod bus;
mod clock;
pub mod cpu;
mod elf;
mod fault;
mod flash;
pub mod fuzz;
mod i2c_master;
mod light;
mod mcu;
mod memory;
mod port;
mod serial;
mod sfr;
mod tca6507;
mod time;
mod timer;
mod uart;
mod watchdog;
mod wiring;

pub use adc::VCC;
pub use board::{Board, Injection, LoadError};
pub use bus::{I2cBus, I2cEvent, I2cEventKind, I2cSlave, Levels, Monitor, Puller};
pub use clock::{CALIBRATIONS, Calibration, Clock, InfoMemory, Periods, VLO_HZ};
pub use cpu::Cpu;
pub use elf::{Elf, ElfError, Segment};
pub use fault::{Fault, FaultKind, Violation, ViolationKind, Violations};
pub use light::{Lamps, LightSensor, Rgb, SensorState};
pub use mcu::{Mcu, Peripherals, Reset, ResetCause};
pub use memory::{Memory, Region};
pub use port::{Port, PortRegister};
pub use serial::{FRAME_BITS, Frame, SerialLine, SerialReceiver};
pub use tca6507::{Bank, LEVEL_MAX, PORTS, PortState, REGISTERS, Tca6507};
pub use time::Time;
pub use wiring::Wiring;
