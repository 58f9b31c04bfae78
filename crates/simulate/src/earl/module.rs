//! The LED module in virtual time: board, firmware and serial connection.

use std::time::Duration;

use millrace_msp430::{Board, Elf, ElfError, Fault, LoadError, Rgb, Time};

/// Reason why the module cannot run.
#[derive(Debug, thiserror::Error)]
pub enum ModuleError {
    #[error("the firmware is no ELF file for the MSP430: {0}")]
    Elf(#[from] ElfError),
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error("the firmware stopped: {0}")]
    Fault(#[from] Fault),
}

/// The LED module. Its serial connection has 9600 baud in virtual time.
pub struct Module {
    board: Board,
}

impl Module {
    /// Creates a module that runs this firmware, an ELF file.
    ///
    /// Errors: the file is no program for this chip.
    pub fn new(firmware: &[u8]) -> Result<Self, ModuleError> {
        Ok(Self { board: Board::with_program(&Elf::parse(firmware)?)? })
    }

    /// Returns the board, to inject faults or to change the light around the sensor.
    pub fn board_mut(&mut self) -> &mut Board {
        &mut self.board
    }

    /// Sends bytes to the module.
    pub fn write(&mut self, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.board.uart_write(bytes);
        }
    }

    /// Runs until `now`, a time since the start of the module, and returns the bytes that it has sent.
    ///
    /// Errors: the firmware stopped.
    pub fn advance(&mut self, now: Duration) -> Result<Vec<u8>, ModuleError> {
        self.board.run_until(Time::from_us(now.as_micros() as u64))?;
        Ok(self.board.uart_read())
    }

    /// Returns the present light of both LEDs, each with 256 shades of red, green and blue.
    pub fn lamps(&self) -> [[u8; 3]; 2] {
        let shades = |rgb: &Rgb| [rgb.red, rgb.green, rgb.blue].map(|share| (share * 255.0).round() as u8);
        let lamps = self.board.lamps();
        [shades(&lamps.a), shades(&lamps.b)]
    }
}
