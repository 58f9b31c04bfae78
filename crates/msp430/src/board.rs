use std::collections::VecDeque;

use thiserror::Error;

use crate::{
    Fault, Time,
    bus::{I2cBus, I2cEvent},
    clock::InfoMemory,
    elf::Elf,
    light::{Lamps, LightSensor},
    mcu::Mcu,
    serial::{FRAME_BITS, SerialLine, SerialReceiver},
    tca6507::Tca6507,
    wiring::Wiring,
};

/// A program that does not fit into the memory of the chip.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{bytes} bytes at {address:#06x} are outside of RAM and flash memory; link the program for the MSP430G2553")]
pub struct LoadError {
    pub address: u16,
    pub bytes: usize,
}

/// A fault of the hardware around the microcontroller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Injection {
    /// A byte of each of the next transfers is not acknowledged. `byte` 0 is the address.
    Nack { byte: u32, transfers: u32 },
    /// A slave holds SDA low until it saw this number of clock pulses; 9 end every such state.
    HoldSda { pulses: u32 },
    /// SCL is held low, or released.
    HoldScl { low: bool },
    /// The module is unplugged, or plugged in. The driver loses its power.
    Disconnect { disconnected: bool },
    /// The supply fails for a moment: microcontroller and driver restart.
    BrownOut { ram_lost: bool },
}

/// The LED module with its microcontroller: MSP430G2553, bus, driver with two LEDs, light sensor, and a serial
/// connection to a host with 9600 baud.
///
/// The same calls in the same order give the same result.
pub struct Board {
    mcu: Mcu,
    wiring: Wiring,
    host: SerialReceiver,
    received: VecDeque<u8>,
    framing_errors: u64,
}

impl Board {
    /// Length of a bit at 9600 baud in picoseconds.
    pub const HOST_BIT_PS: u64 = 104_166_667;
    /// Maximum number of received bytes that wait for [`Board::uart_read`]; the oldest are dropped.
    const RECEIVED_MAX: usize = 1 << 20;
    /// Longest time between two looks at the serial output.
    const SLICE: Time = Time::from_ms(100);
    /// Serial input older than this is forgotten; a frame is shorter.
    const LINE_MEMORY: Time = Time::from_ms(20);

    /// Creates a board without a program and without power. [`Board::load`] and [`Board::power_on`] start it.
    pub fn new(info: InfoMemory) -> Self {
        let mut bus = I2cBus::default();
        bus.attach(Tca6507::default());
        let wiring = Wiring {
            bus,
            uart_in: SerialLine::default(),
            uart_out: SerialLine::default(),
            sensor: LightSensor::default(),
        };
        let host = SerialReceiver::default();
        Self { mcu: Mcu::new(info), wiring, host, received: VecDeque::new(), framing_errors: 0 }
    }

    /// Creates a board with calibrated clocks, programs it and switches it on.
    ///
    /// Errors: the program does not fit.
    pub fn with_program(elf: &Elf) -> Result<Self, LoadError> {
        let mut board = Self::new(InfoMemory::Calibrated);
        board.load(elf)?;
        board.power_on();
        Ok(board)
    }

    /// Writes a program into flash memory, as a programmer does.
    ///
    /// Errors: a segment is outside of the memory; earlier segments are written then.
    pub fn load(&mut self, elf: &Elf) -> Result<(), LoadError> {
        for segment in elf.segments() {
            if !self.mcu.memory_mut().program(segment.address, &segment.bytes) {
                return Err(LoadError { address: segment.address, bytes: segment.bytes.len() });
            }
        }
        Ok(())
    }

    /// Switches the supply on. RAM has no defined content.
    pub fn power_on(&mut self) {
        self.mcu.power_on(&mut self.wiring, true);
    }

    pub fn now(&self) -> Time {
        self.mcu.now()
    }

    pub fn mcu(&self) -> &Mcu {
        &self.mcu
    }

    pub fn mcu_mut(&mut self) -> &mut Mcu {
        &mut self.mcu
    }

    /// Returns bus, serial lines and sensor.
    pub fn wiring(&self) -> &Wiring {
        &self.wiring
    }

    pub fn driver(&self) -> Option<&Tca6507> {
        self.wiring.bus.slave()
    }

    /// Changes the light sensor or its surroundings.
    pub fn sensor_mut(&mut self) -> &mut LightSensor {
        &mut self.wiring.sensor
    }

    /// Runs until a time, or a few cycles longer: the last instruction completes.
    ///
    /// Cost: time without work of the CPU is skipped.
    /// Errors: the CPU cannot continue. Every later call returns the same error, until power-on.
    pub fn run_until(&mut self, until: Time) -> Result<(), Fault> {
        while self.now() < until {
            let slice = (self.now() + Self::SLICE).min(until);
            let result = self.mcu.run_until(slice, &mut self.wiring);
            self.receive();
            result?;
        }
        Ok(())
    }

    /// Runs for a span of time. See [`Board::run_until`].
    pub fn run_for(&mut self, span: Time) -> Result<(), Fault> {
        self.run_until(self.now() + span)
    }

    /// Sends bytes to the microcontroller, after those that are still on the line. Returns the end of the last frame.
    pub fn uart_write(&mut self, bytes: &[u8]) -> Time {
        let now = self.now();
        for byte in bytes {
            self.wiring.uart_in.send(now, *byte, &[Self::HOST_BIT_PS; FRAME_BITS]);
        }
        self.mcu.handle_wiring(&mut self.wiring);
        self.wiring.uart_in.free()
    }

    /// Sends raw bits to the microcontroller: a torn frame, a break, or another baud rate. Returns their end.
    ///
    /// Shape: bit 0 of `levels` comes first; `bits` has the length of each bit in picoseconds, at most 16.
    pub fn uart_write_levels(&mut self, levels: u16, bits: &[u64]) -> Time {
        let now = self.now();
        let end = self.wiring.uart_in.send_levels(now, levels, bits);
        self.mcu.handle_wiring(&mut self.wiring);
        end
    }

    /// Returns and removes the bytes that the host received without a framing error.
    pub fn uart_read(&mut self) -> Vec<u8> {
        self.received.drain(..).collect()
    }

    /// Returns the frames with a framing error at the host.
    pub fn framing_errors(&self) -> u64 {
        self.framing_errors
    }

    /// Returns the present light of both LEDs.
    pub fn lamps(&self) -> Lamps {
        self.wiring.lamps(self.now())
    }

    /// Returns and removes the events on the bus, oldest first.
    pub fn i2c_events(&mut self) -> Vec<I2cEvent> {
        self.wiring.bus.monitor_mut().take_events()
    }

    /// Injects a fault now.
    pub fn inject(&mut self, injection: Injection) {
        let now = self.now();
        let bus = &mut self.wiring.bus;
        match injection {
            Injection::Nack { byte, transfers } => bus.inject_nack(byte, transfers),
            Injection::HoldSda { pulses } => bus.hold_sda(now, pulses),
            Injection::HoldScl { low } => bus.hold_scl(now, low),
            Injection::Disconnect { disconnected } => {
                bus.set_disconnected(now, disconnected);
                self.reset_driver();
            }
            Injection::BrownOut { ram_lost } => {
                bus.reset_slaves(now);
                self.reset_driver();
                self.mcu.power_on(&mut self.wiring, ram_lost);
            }
        }
        self.mcu.handle_wiring(&mut self.wiring);
    }

    /// Resets the driver as a short loss of its supply does. The microcontroller does not notice.
    pub fn reset_driver(&mut self) {
        let now = self.now();
        if let Some(driver) = self.wiring.bus.slave_mut::<Tca6507>() {
            driver.power_cycle(now);
        }
    }

    /// Decodes the frames that the host has received until now.
    fn receive(&mut self) {
        let now = self.now();
        let bits = [Self::HOST_BIT_PS; FRAME_BITS];
        while let Some(frame) = self.host.poll(now, &self.wiring.uart_out, &bits) {
            if frame.framing_error {
                self.framing_errors += 1;
                continue;
            }
            if self.received.len() == Self::RECEIVED_MAX {
                self.received.pop_front();
            }
            self.received.push_back(frame.byte);
        }
        self.wiring.uart_out.forget(now.saturating_sub(Self::LINE_MEMORY));
        self.wiring.uart_in.forget(now.saturating_sub(Self::LINE_MEMORY));
    }
}
