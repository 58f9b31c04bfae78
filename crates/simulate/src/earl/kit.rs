//! The kit in virtual time: the driver sends requests to the simulated module.

use std::time::Duration;

use millrace_earl::{Driver, Report};
use millrace_msp430::Board;

use super::module::{Module, ModuleError};

/// Time between two looks at the serial connection.
const SLICE: Duration = Duration::from_millis(5);

/// The kit Earl: a driver and the LED module.
pub struct Kit {
    driver: Driver,
    module: Module,
    now: Duration,
}

impl Kit {
    /// Creates a kit whose module runs this firmware, an ELF file.
    ///
    /// Errors: the file is no program for this chip.
    pub fn new(firmware: &[u8]) -> Result<Self, ModuleError> {
        let mut driver = Driver::default();
        driver.connect(Duration::ZERO);
        Ok(Self { driver, module: Module::new(firmware)?, now: Duration::ZERO })
    }

    /// Returns the module, to inject faults or to change the light around the sensor.
    pub fn board_mut(&mut self) -> &mut Board {
        self.module.board_mut()
    }

    /// Accepts a command as JSON. See [`Driver::handle_command`].
    pub fn handle_command(&mut self, json: &[u8]) {
        self.driver.handle_command(json);
    }

    /// Runs the module until `now`, a time since the start of the kit, and returns what it has to report.
    ///
    /// Errors: the firmware stopped.
    pub fn advance(&mut self, now: Duration) -> Result<Vec<Report>, ModuleError> {
        let mut reports = Vec::new();
        while self.now < now {
            self.now = (self.now + SLICE).min(now);
            let bytes = self.module.advance(self.now)?;
            self.driver.handle_input(self.now, &bytes);
            self.driver.handle_timeout(self.now);
            self.module.write(&self.driver.poll_output());
            self.driver.handle_lamps(self.module.lamps());
            reports.extend(std::iter::from_fn(|| self.driver.poll_report()));
        }
        Ok(reports)
    }
}
