//! The microcontroller: CPU, memory, peripherals, interrupts, resets and sleep.

mod access;
mod peripherals;

use crate::{
    Fault, FaultKind, Time,
    clock::{InfoMemory, Periods},
    cpu::{Cpu, sr},
    memory::Memory,
    sfr::bit1,
    wiring::Wiring,
};
use access::{Access, Effects, ResetRequest};
pub use peripherals::Peripherals;

/// Reason for a reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResetCause {
    /// Power-on or brown-out.
    PowerOn,
    /// The watchdog's interval ended.
    Watchdog,
    /// A write to WDTCTL had a wrong password.
    WatchdogPassword,
    /// A write to a register of the flash controller had a wrong key.
    FlashKey,
}

/// A reset and its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reset {
    pub time: Time,
    pub cause: ResetCause,
}

/// An MSP430G2553.
///
/// Time advances by whole instructions; an access to a peripheral takes effect at the start of its instruction. While
/// the CPU is off, time jumps to the next event. Waking from a low-power mode takes no extra time.
/// Not supported: NMI, the comparator, port P3, capture and outputs of the timers, and the bootstrap loader.
pub struct Mcu {
    cpu: Cpu,
    memory: Memory,
    peripherals: Peripherals,
    now: Time,
    periods: Periods,
    /// Time of the next event of a peripheral.
    next_event: Time,
    /// Address of the vector of the pending interrupt with the highest priority.
    pending: Option<u16>,
    active_cycles: u64,
    instructions: u64,
    resets: Vec<Reset>,
    fault: Option<Fault>,
}

impl Mcu {
    const RESET_VECTOR: u16 = 0xfffe;
    /// Number of resets that [`Mcu::resets`] keeps; later ones are not recorded.
    const RESETS_KEPT: usize = 1024;

    /// Creates a chip with erased flash memory before power-on. [`Mcu::power_on`] starts the program.
    pub fn new(info: InfoMemory) -> Self {
        let peripherals = Peripherals::default();
        let periods = peripherals.clock.periods(0);
        Self {
            cpu: Cpu::default(),
            memory: Memory::new(info.bytes()),
            peripherals,
            now: Time::ZERO,
            periods,
            next_event: Time::NEVER,
            pending: None,
            active_cycles: 0,
            instructions: 0,
            resets: Vec::new(),
            fault: None,
        }
    }

    pub fn now(&self) -> Time {
        self.now
    }

    pub fn cpu(&self) -> &Cpu {
        &self.cpu
    }

    /// Gives access to the registers of the CPU, so that a test can make a program hang or jump.
    pub fn cpu_mut(&mut self) -> &mut Cpu {
        &mut self.cpu
    }

    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    pub fn memory_mut(&mut self) -> &mut Memory {
        &mut self.memory
    }

    pub fn peripherals(&self) -> &Peripherals {
        &self.peripherals
    }

    /// Returns the present clock periods.
    pub fn periods(&self) -> &Periods {
        &self.periods
    }

    /// Returns the MCLK cycles in which the CPU was on.
    pub fn active_cycles(&self) -> u64 {
        self.active_cycles
    }

    /// Returns the executed instructions.
    pub fn instructions(&self) -> u64 {
        self.instructions
    }

    /// Returns the resets since the chip was created, oldest first; at most 1024.
    pub fn resets(&self) -> &[Reset] {
        &self.resets
    }

    /// Starts the chip as a rising supply voltage does. RAM keeps its content or gets an undefined one.
    pub fn power_on(&mut self, wiring: &mut Wiring, ram_lost: bool) {
        if ram_lost {
            self.memory.lose_ram();
        }
        self.peripherals = Peripherals::default();
        self.reset(wiring, ResetCause::PowerOn);
    }

    /// Runs until a time, or a few cycles longer: the last instruction completes.
    ///
    /// Errors: the CPU cannot continue. Every later call returns the same error, until power-on.
    pub fn run_until(&mut self, until: Time, wiring: &mut Wiring) -> Result<(), Fault> {
        while self.now < until {
            if let Some(fault) = self.fault {
                return Err(fault);
            }
            while self.next_event <= self.now {
                self.handle_event(wiring);
            }
            if let Some(vector) = self.pending.filter(|_| self.cpu.accepts_interrupts()) {
                self.accept_interrupt(vector, wiring);
            } else if self.cpu.is_asleep() {
                self.now = self.next_event.min(until);
            } else {
                self.step(wiring);
            }
        }
        Ok(())
    }

    /// Takes over changes of the wiring: levels of the bus, and data on the serial line.
    pub fn handle_wiring(&mut self, wiring: &mut Wiring) {
        self.peripherals.apply_pins(self.now, wiring);
        self.schedule(wiring);
    }

    fn step(&mut self, wiring: &mut Wiring) {
        let status = self.cpu.sr();
        let mut effects = Effects::default();
        let mut access = Access {
            pc: self.cpu.pc(),
            now: self.now,
            periods: self.periods,
            memory: &mut self.memory,
            peripherals: &mut self.peripherals,
            wiring,
            effects: &mut effects,
        };
        match self.cpu.step(&mut access) {
            Ok(cycles) => self.spend(cycles),
            Err(fault) => self.fault = Some(fault),
        }
        self.instructions += 1;
        self.memory.note_stack(self.cpu.sp());
        self.settle(status, effects, wiring);
    }

    fn accept_interrupt(&mut self, vector: u16, wiring: &mut Wiring) {
        let status = self.cpu.sr();
        self.peripherals.accept(vector);
        let mut effects = Effects { registers: true, ..Effects::default() };
        let mut access = Access {
            pc: self.cpu.pc(),
            now: self.now,
            periods: self.periods,
            memory: &mut self.memory,
            peripherals: &mut self.peripherals,
            wiring,
            effects: &mut effects,
        };
        let cycles = self.cpu.accept_interrupt(&mut access, vector);
        self.spend(cycles);
        self.memory.note_stack(self.cpu.sp());
        self.settle(status, effects, wiring);
    }

    fn spend(&mut self, cycles: u32) {
        self.active_cycles += u64::from(cycles);
        self.now += Time::from_ps(u64::from(cycles) * self.periods.mclk);
    }

    /// Applies the effects of an instruction on clocks, pins and requests.
    fn settle(&mut self, status: u16, effects: Effects, wiring: &mut Wiring) {
        const POWER: u16 = sr::OSCOFF | sr::SCG0 | sr::SCG1;
        if let Some(request) = effects.reset {
            self.peripherals.sfr.ifg1 |= if request == ResetRequest::WatchdogPassword { bit1::WDT } else { 0 };
            return self.reset(
                wiring,
                match request {
                    ResetRequest::WatchdogPassword => ResetCause::WatchdogPassword,
                    ResetRequest::FlashKey => ResetCause::FlashKey,
                },
            );
        }
        let clocks_changed = effects.clocks || (status ^ self.cpu.sr()) & POWER != 0;
        if clocks_changed {
            self.set_periods();
        }
        if effects.registers {
            self.peripherals.apply_pins(self.now, wiring);
        }
        if clocks_changed || effects.registers {
            self.schedule(wiring);
        }
    }

    fn handle_event(&mut self, wiring: &mut Wiring) {
        if self.peripherals.handle_event(self.next_event, wiring) {
            self.reset(wiring, ResetCause::Watchdog);
        } else {
            self.schedule(wiring);
        }
    }

    fn set_periods(&mut self) {
        self.periods = self.peripherals.clock.periods(self.cpu.sr());
        self.peripherals.set_periods(self.now, &self.periods);
    }

    fn schedule(&mut self, wiring: &Wiring) {
        self.next_event = self.peripherals.poll_timeout(wiring).unwrap_or(Time::NEVER);
        self.pending = self.peripherals.pending();
    }

    /// Resets the chip (PUC) and loads the reset vector.
    fn reset(&mut self, wiring: &mut Wiring, cause: ResetCause) {
        if self.resets.len() < Self::RESETS_KEPT {
            self.resets.push(Reset { time: self.now, cause });
        }
        self.memory.controller.reset();
        let vector = self.memory.peek_word(Self::RESET_VECTOR).unwrap_or(0xffff);
        let erased = Fault { pc: Self::RESET_VECTOR, kind: FaultKind::ErasedResetVector };
        self.fault = (vector == 0xffff).then_some(erased);
        self.cpu.reset(vector);
        self.peripherals.reset();
        wiring.uart_out.cut(self.now);
        self.periods = self.peripherals.clock.periods(0);
        self.peripherals.watchdog.reset(self.now, &self.periods);
        self.set_periods();
        self.peripherals.apply_pins(self.now, wiring);
        self.schedule(wiring);
    }

    /// Returns a byte of memory or of an 8-bit register, without the side effects of a read; 0 for other registers and
    /// vacant addresses.
    pub fn peek(&self, address: u16) -> u8 {
        self.memory.peek(address).unwrap_or_else(|| self.peripherals.clone().peek(self.now, address))
    }
}
