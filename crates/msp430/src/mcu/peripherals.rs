use crate::{
    Time,
    adc::Adc10,
    bus::{Levels, Puller},
    clock::{Clock, Periods},
    i2c_master::I2cMaster,
    port::Port,
    sfr::{Sfr, bit1, bit2},
    timer::TimerA,
    uart::Uart,
    watchdog::{Watchdog, WatchdogEvent},
    wiring::Wiring,
};

/// Pins of P1 with a function on the board.
pub(super) mod pin {
    pub const RXD: u8 = 1 << 1;
    pub const TXD: u8 = 1 << 2;
    pub const ENABLE: u8 = 1 << 5;
    pub const SCL: u8 = 1 << 6;
    pub const SDA: u8 = 1 << 7;
}

/// Addresses of the interrupt vectors, the highest priority first (msp430g2553.h, "Interrupt Vectors").
mod vector {
    pub const TIMER1_A0: u16 = 0xfffa;
    pub const TIMER1_A1: u16 = 0xfff8;
    pub const WDT: u16 = 0xfff4;
    pub const TIMER0_A0: u16 = 0xfff2;
    pub const TIMER0_A1: u16 = 0xfff0;
    pub const USCIAB0RX: u16 = 0xffee;
    pub const USCIAB0TX: u16 = 0xffec;
    pub const ADC10: u16 = 0xffea;
    pub const PORT2: u16 = 0xffe6;
    pub const PORT1: u16 = 0xffe4;
}

/// All modules of the chip except CPU and memory.
#[derive(Clone)]
pub struct Peripherals {
    pub(super) sfr: Sfr,
    pub(super) clock: Clock,
    pub(super) watchdog: Watchdog,
    /// Timer0_A3 and Timer1_A3.
    pub(super) timers: [TimerA; 2],
    /// P1 and P2.
    pub(super) ports: [Port; 2],
    pub(super) uart: Uart,
    pub(super) i2c: I2cMaster,
    pub(super) adc: Adc10,
    /// Registers of modules that the simulator does not have.
    pub(super) storage: Box<[u8; 0x200]>,
    /// Writes to those registers, per address.
    pub(super) stray_writes: Box<[u32; 0x200]>,
    rx_connected: bool,
}

impl Default for Peripherals {
    fn default() -> Self {
        Self {
            sfr: Sfr::default(),
            clock: Clock::default(),
            watchdog: Watchdog::default(),
            timers: Default::default(),
            ports: Default::default(),
            uart: Uart::default(),
            i2c: I2cMaster::default(),
            adc: Adc10::default(),
            storage: Box::new([0; 0x200]),
            stray_writes: Box::new([0; 0x200]),
            rx_connected: false,
        }
    }
}

impl Peripherals {
    /// Returns the written addresses that belong to no module of the simulator, with the number of writes.
    pub fn stray_writes(&self) -> impl Iterator<Item = (u16, u32)> {
        (0..).zip(self.stray_writes.iter().copied()).filter(|(_, count)| *count > 0)
    }

    /// Returns the levels that port P1 drives and receives.
    pub fn port_1(&self) -> &Port {
        &self.ports[0]
    }

    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Sets all modules except the watchdog to their state after a PUC.
    pub(super) fn reset(&mut self) {
        self.sfr.reset();
        self.clock = Clock::default();
        self.timers.iter_mut().for_each(TimerA::reset);
        self.ports.iter_mut().for_each(Port::reset);
        self.uart.reset();
        self.i2c.reset();
        self.adc.reset();
        self.storage.fill(0);
        self.rx_connected = false;
    }

    pub(super) fn set_periods(&mut self, now: Time, periods: &Periods) {
        self.watchdog.set_periods(now, periods);
        for timer in &mut self.timers {
            timer.set_periods(now, periods);
        }
        self.uart.set_periods(periods);
        self.i2c.set_periods(periods);
    }

    /// Returns the time of the next event of a module.
    pub(super) fn poll_timeout(&self, wiring: &Wiring) -> Option<Time> {
        [
            self.watchdog.poll_timeout(),
            self.timers[0].poll_timeout(),
            self.timers[1].poll_timeout(),
            self.uart.poll_timeout(self.rx_connected.then_some(&wiring.uart_in)),
            self.i2c.poll_timeout(),
            self.adc.poll_timeout(),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Handles all events at or before `now`. Returns whether the watchdog resets the chip.
    pub(super) fn handle_event(&mut self, now: Time, wiring: &mut Wiring) -> bool {
        if self.watchdog.handle_timeout(now, &mut self.sfr) == Some(WatchdogEvent::Reset) {
            return true;
        }
        for timer in &mut self.timers {
            timer.advance(now);
        }
        let Wiring { uart_in, uart_out, .. } = wiring;
        let line_in = self.rx_connected.then_some(&*uart_in);
        let line_out = (self.ports[0].usci_pins() & pin::TXD != 0).then_some(uart_out);
        self.uart.handle_timeout(now, &mut self.sfr, line_in, line_out);
        self.adc.handle_timeout(now, |channel, time| wiring.voltage(channel, time));
        self.i2c.handle_timeout(now, &mut self.sfr);
        self.apply_pins(now, wiring);
        false
    }

    /// Connects the outputs of ports and modules to the wiring, and the levels of the wiring to the inputs.
    pub(super) fn apply_pins(&mut self, now: Time, wiring: &mut Wiring) {
        let port = &self.ports[0];
        let (usci, low) = (port.usci_pins(), port.outputs() & !port.out);
        let (scl, sda) = self.i2c.pulls();
        wiring.bus.pull(now, Puller::Master, scl && usci & pin::SCL != 0, sda && usci & pin::SDA != 0);
        wiring.bus.pull(now, Puller::Gpio, low & pin::SCL != 0, low & pin::SDA != 0);
        wiring.set_enable(now, port.outputs() & port.out & pin::ENABLE != 0);
        let levels = wiring.bus.levels();
        let level = |pin: u8, high: bool| if high { pin } else { 0 };
        self.ports[0].drive(pin::SCL | pin::SDA, level(pin::SCL, levels.scl) | level(pin::SDA, levels.sda));
        // A module without its pin sees the idle level.
        let seen = Levels { scl: levels.scl || usci & pin::SCL == 0, sda: levels.sda || usci & pin::SDA == 0 };
        self.i2c.handle_levels(now, seen);
        let rx_connected = usci & pin::RXD != 0;
        if rx_connected && !self.rx_connected {
            self.uart.skip_input(now);
        }
        self.rx_connected = rx_connected;
    }

    /// Returns the vector of the pending interrupt with the highest priority.
    pub(super) fn pending(&self) -> Option<u16> {
        let usci = self.sfr.ie2 & self.sfr.ifg2;
        // In I2C mode, the transmit vector serves the data of both directions, and the receive vector the state.
        let (i2c_rx, i2c_tx) = match self.i2c.is_i2c() {
            true => (self.i2c.state_pending(), usci & (bit2::UCB0RX | bit2::UCB0TX) != 0),
            false => (usci & bit2::UCB0RX != 0, usci & bit2::UCB0TX != 0),
        };
        let watchdog = self.watchdog.is_interval_timer() && self.sfr.ie1 & self.sfr.ifg1 & bit1::WDT != 0;
        [
            (vector::TIMER1_A0, self.timers[1].compare_0_pending()),
            (vector::TIMER1_A1, self.timers[1].vector_pending()),
            (vector::WDT, watchdog),
            (vector::TIMER0_A0, self.timers[0].compare_0_pending()),
            (vector::TIMER0_A1, self.timers[0].vector_pending()),
            (vector::USCIAB0RX, usci & bit2::UCA0RX != 0 || i2c_rx),
            (vector::USCIAB0TX, usci & bit2::UCA0TX != 0 || i2c_tx),
            (vector::ADC10, self.adc.is_pending()),
            (vector::PORT2, self.ports[1].is_pending()),
            (vector::PORT1, self.ports[0].is_pending()),
        ]
        .into_iter()
        .find(|(_, pending)| *pending)
        .map(|(vector, _)| vector)
    }

    /// Resets the flag of an accepted interrupt if the vector has only one source.
    pub(super) fn accept(&mut self, vector: u16) {
        match vector {
            vector::WDT => self.sfr.ifg1 &= !bit1::WDT,
            vector::TIMER0_A0 => self.timers[0].accept_compare_0(),
            vector::TIMER1_A0 => self.timers[1].accept_compare_0(),
            vector::ADC10 => self.adc.accept(),
            _ => {}
        }
    }
}
