//! The firmware of the LED module on the simulated board. Without clang or lld, each test prints that it was skipped.

mod bus;
mod commands;
mod faults;
mod serial;

use std::{fs, path::Path, process::Command, sync::OnceLock};

use millrace_msp430::{Board, Elf, I2cEvent, I2cEventKind, InfoMemory, Time};

/// Builds the firmware and returns its ELF file. `None`, with a message, without clang or lld.
pub fn elf() -> Option<Vec<u8>> {
    static ELF: OnceLock<Option<Vec<u8>>> = OnceLock::new();
    ELF.get_or_init(build).clone()
}

fn build() -> Option<Vec<u8>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let folder = root.join("firmware/led-module");
    for tool in ["clang-14", "ld.lld-14", "make"] {
        if Command::new(tool).arg("--version").output().is_err() {
            println!("skipped: the tests of the firmware: {tool} not found; install clang-14, lld-14 and make");
            return None;
        }
    }
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("firmware");
    let output = Command::new("make")
        .arg("-C")
        .arg(&folder)
        .arg(format!("OUT={}", out.display()))
        .arg("msp430")
        .output()
        .expect("make runs: its version was printed");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(fs::read(out.join("led-module-msp430.elf")).expect("the Makefile builds this file"))
}

#[test]
fn shipped_firmware_equals_the_built_one() {
    let Some(built) = elf() else { return };
    let shipped = include_bytes!("../../../../simulate/fixtures/led-module.elf");
    let [built, shipped] = [&built[..], shipped].map(|file| Elf::parse(file).expect("an ELF file"));
    let update = "llvm-strip-14 -o crates/simulate/fixtures/led-module.elf target/firmware/led-module-msp430.elf";
    assert_eq!(built.segments(), shipped.segments(), "after `make firmware`, run: {update}");
}

/// CRC-16/CCITT-FALSE.
fn crc(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0xffff, |crc, byte| {
        (0..8).fold(crc ^ u16::from(*byte) << 8, |crc, _| crc << 1 ^ if crc & 0x8000 != 0 { 0x1021 } else { 0 })
    })
}

/// Returns a line with its CRC and line feed.
fn line(text: &str) -> Vec<u8> {
    format!("{text}*{:04x}\n", crc(text.as_bytes())).into_bytes()
}

/// One write on the bus: bytes after the address, with their acknowledgements.
#[derive(Debug, PartialEq)]
struct Transfer {
    address: u8,
    acknowledged: bool,
    bytes: Vec<u8>,
    refused: usize,
    stopped: bool,
}

/// A board that runs the firmware, and the host's end of the serial line.
struct Kit {
    board: Board,
    elf: Elf,
    sequence: u8,
    partial: Vec<u8>,
    lines: Vec<String>,
    /// Lines with a wrong CRC. Only a reset in the middle of a line can cause one.
    garbled: Vec<String>,
    may_garble: bool,
}

impl Kit {
    /// Starts the firmware and runs 50 ms. `None` if the firmware cannot be built here.
    fn start() -> Option<Self> {
        let mut kit = Self::off(InfoMemory::Calibrated)?;
        kit.board.power_on();
        kit.run(50);
        Some(kit)
    }

    /// Programs a board and leaves it without power.
    fn off(info: InfoMemory) -> Option<Self> {
        let elf = Elf::parse(&elf()?).unwrap();
        let mut board = Board::new(info);
        board.load(&elf).unwrap();
        Some(Self {
            board,
            elf,
            sequence: 0,
            partial: Vec::new(),
            lines: Vec::new(),
            garbled: Vec::new(),
            may_garble: false,
        })
    }

    /// Starts the firmware and drops the first events and transfers.
    fn ready() -> Option<Self> {
        let mut kit = Self::start()?;
        kit.take_lines();
        kit.board.i2c_events();
        Some(kit)
    }

    fn run(&mut self, ms: u64) {
        self.board.run_for(Time::from_ms(ms)).unwrap();
        for byte in self.board.uart_read() {
            if byte == b'\n' {
                let bytes = std::mem::take(&mut self.partial);
                let text = String::from_utf8_lossy(&bytes).into_owned();
                match text.rsplit_once('*').filter(|(body, sum)| *sum == format!("{:04x}", crc(body.as_bytes()))) {
                    Some((body, _)) => self.lines.push(body.to_owned()),
                    None => self.garbled.push(text),
                }
            } else {
                self.partial.push(byte);
            }
        }
    }

    fn take_lines(&mut self) -> Vec<String> {
        assert!(self.may_garble || self.garbled.is_empty(), "lines without a valid CRC: {:?}", self.garbled);
        std::mem::take(&mut self.lines)
    }

    /// Sends raw bytes.
    fn send(&mut self, bytes: &[u8]) {
        self.board.uart_write(bytes);
    }

    /// Sends a command and returns the sequence of its reply.
    fn send_command(&mut self, command: &str) -> String {
        self.sequence = self.sequence.wrapping_add(1);
        let sequence = format!("{:02x}", self.sequence);
        self.send(&line(&format!("{sequence} {command}")));
        sequence
    }

    /// Sends a command and returns its reply without the sequence. Other lines stay in `lines`.
    fn request(&mut self, command: &str) -> String {
        let prefix = format!("{} ", self.send_command(command));
        for _ in 0..50 {
            self.run(10);
            if let Some(at) = self.lines.iter().position(|line| line.starts_with(&prefix)) {
                return self.lines.remove(at)[prefix.len()..].to_owned();
            }
        }
        panic!("no reply to {command:?} within 500 ms; other lines: {:?}", self.lines)
    }

    /// Asserts the replies of commands.
    fn expect(&mut self, exchange: &[(&str, &str)]) {
        for (command, reply) in exchange {
            assert_eq!(self.request(command), *reply, "{command}");
        }
    }

    /// Returns the transfers since the last call.
    fn transfers(&mut self) -> Vec<Transfer> {
        transfers(&self.board.i2c_events())
    }

    /// Returns the bytes of the transfers since the last call. All are complete and acknowledged by the driver.
    fn writes(&mut self) -> Vec<Vec<u8>> {
        let complete = |transfer: Transfer| {
            assert!(transfer.acknowledged && transfer.refused == 0 && transfer.stopped, "{transfer:02x?}");
            assert_eq!(transfer.address, 0x45);
            transfer.bytes
        };
        self.transfers().into_iter().map(complete).collect()
    }

    fn registers(&self) -> [u8; 11] {
        *self.board.driver().unwrap().registers()
    }
}

fn transfers(events: &[I2cEvent]) -> Vec<Transfer> {
    let mut all: Vec<Transfer> = Vec::new();
    for event in events {
        match (event.kind, all.last_mut()) {
            (I2cEventKind::Start, _) => {
                all.push(Transfer { address: 0xff, acknowledged: false, bytes: Vec::new(), refused: 0, stopped: false })
            }
            (I2cEventKind::Address { address, read, ack }, Some(last)) => {
                assert!(!read, "the firmware only writes");
                (last.address, last.acknowledged) = (address, ack);
            }
            (I2cEventKind::Byte { byte, ack }, Some(last)) => {
                last.bytes.push(byte);
                last.refused += usize::from(!ack);
            }
            (I2cEventKind::Stop, Some(last)) => last.stopped = true,
            (kind, _) => panic!("{kind:?} outside of a transfer, or a repeated START"),
        }
    }
    all
}
