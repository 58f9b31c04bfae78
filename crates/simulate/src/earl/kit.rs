//! The kit in virtual time: it drives the LED module over the serial connection, and reports lamps and light.

use std::{collections::VecDeque, time::Duration};

use millrace_msp430::{Board, Elf, ElfError, Fault, LoadError, Rgb, Time};
use serde::Serialize;

use super::{
    command::{Blink, Command},
    palette::{Allocation, allocate},
    request::{LINE_BYTES_MAX, Line, encode, parse},
};

/// Time between two looks at the serial connection.
const SLICE: Duration = Duration::from_millis(5);
/// Time for the reply to a request. The longest request and reply take 100 ms at 9600 baud.
const REPLY_MAX: Duration = Duration::from_millis(300);
/// Attempts of a request, because a line may be torn.
const ATTEMPTS_MAX: u32 = 3;
/// Time after which a failed command is tried again.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Period of light readings, in units of 10 ms.
const LIGHT_PERIOD: u8 = 2;
/// Least change of a light reading that is reported at once, in counts of 1023.
const LIGHT_CHANGE_MIN: u16 = 4;
/// Longest time between two reports of the light.
const LIGHT_EVERY: Duration = Duration::from_secs(1);
/// Silence of the module after which the kit repeats all settings, because the start message may be lost.
const SILENCE_MAX: Duration = Duration::from_secs(1);
/// Highest reading of the 10-bit converter.
const LIGHT_MAX: u16 = 1023;
/// Least time between two reports of lamps that only fade.
const STATE_EVERY: Duration = Duration::from_millis(50);

/// Reason why the kit cannot run.
#[derive(Debug, thiserror::Error)]
pub enum KitError {
    #[error("the firmware is no ELF file for the MSP430: {0}")]
    Elf(#[from] ElfError),
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error("the firmware stopped: {0}")]
    Fault(#[from] Fault),
}

/// A message of the kit, as JSON.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    /// Commanded and lit lamps, and errors.
    State(String),
    /// A reading of the light sensor.
    Light(String),
}

/// A request that waits for its reply.
struct Pending {
    sequence: u8,
    command: String,
    sent: Duration,
    attempts: u32,
}

/// The kit Earl: a host that sends requests to the LED module.
pub struct Kit {
    board: Board,
    now: Duration,
    received: Vec<u8>,
    sequence: u8,
    pending: Option<Pending>,
    /// Requests of the present command that were not sent yet.
    requests: VecDeque<String>,
    /// Commanded levels of the LEDs A and B.
    colors: [[u8; 3]; 2],
    blink: Option<Blink>,
    id: Option<String>,
    /// The command that is being sent, or that the module shows.
    given: Option<Given>,
    /// A newer command waits until the present one is sent.
    is_waiting: bool,
    /// Time at which a failed command is tried again.
    retry_at: Option<Duration>,
    error: Option<String>,
    /// Commands that a newer one replaced before they were sent.
    superseded: u64,
    boots: u64,
    reported: Reported,
    light: Option<u16>,
    /// Time of the last reading.
    light_at: Duration,
}

struct Given {
    allocation: Allocation,
    blink: Option<Blink>,
    is_shown: bool,
}

/// The reports of last time.
#[derive(Default)]
struct Reported {
    is_due: bool,
    state_at: Duration,
    lamps: [[u8; 3]; 2],
    light_at: Duration,
    light: Option<u16>,
}

impl Kit {
    /// Creates a kit whose module runs this firmware, an ELF file.
    ///
    /// Errors: the file is no program for this chip.
    pub fn new(firmware: &[u8]) -> Result<Self, KitError> {
        let board = Board::with_program(&Elf::parse(firmware)?)?;
        let mut kit = Self {
            board,
            now: Duration::ZERO,
            received: Vec::new(),
            sequence: 0,
            pending: None,
            requests: VecDeque::new(),
            colors: [[0; 3]; 2],
            blink: None,
            id: None,
            given: None,
            is_waiting: false,
            retry_at: None,
            error: None,
            superseded: 0,
            boots: 0,
            reported: Reported::default(),
            light: None,
            light_at: Duration::ZERO,
        };
        kit.reported.is_due = true;
        Ok(kit)
    }

    /// Returns the module, to inject faults or to change the light around the sensor.
    pub fn board_mut(&mut self) -> &mut Board {
        &mut self.board
    }

    /// Accepts a command as JSON. The next [`Kit::advance`] reports what became of it.
    ///
    /// Only the newest command counts: a command that is not sent yet is superseded.
    pub fn handle_command(&mut self, json: &[u8]) {
        self.reported.is_due = true;
        match Command::parse(json) {
            Ok(Command { id, a, b, blink }) => {
                self.superseded += u64::from(self.is_waiting);
                self.colors = [a.unwrap_or(self.colors[0]), b.unwrap_or(self.colors[1])];
                (self.blink, self.id, self.error) = (blink, id, None);
                (self.is_waiting, self.retry_at) = (true, None);
            }
            Err(error) => self.error = Some(error.to_string()),
        }
    }

    /// Runs the module until `now`, a time since the start of the kit, and returns what it has to report.
    ///
    /// Errors: the firmware stopped.
    pub fn advance(&mut self, now: Duration) -> Result<Vec<Report>, KitError> {
        let mut reports = Vec::new();
        while self.now < now {
            self.now = (self.now + SLICE).min(now);
            self.board.run_until(Time::from_us(self.now.as_micros() as u64))?;
            self.receive();
            self.send();
            self.report(&mut reports);
        }
        Ok(reports)
    }

    fn receive(&mut self) {
        for byte in self.board.uart_read() {
            match byte {
                b'\n' => {
                    let line = std::mem::take(&mut self.received);
                    if let Some(line) = parse(&line).or_else(|| parse(after_tear(&line)?)) {
                        self.handle_line(line);
                    }
                }
                // The rest of a line that is too long is no line, either.
                _ if self.received.len() < LINE_BYTES_MAX => self.received.push(byte),
                _ => {}
            }
        }
    }

    fn handle_line(&mut self, line: Line) {
        match line {
            Line::Reply { sequence, result } if self.pending.as_ref().is_some_and(|one| one.sequence == sequence) => {
                self.pending = None;
                match result {
                    Ok(_) => self.finish(),
                    Err(code) => self.fail(reason(&code)),
                }
            }
            // The reply to an earlier attempt.
            Line::Reply { .. } => {}
            // The module did not understand the request. Its timeout repeats the request.
            Line::Unnumbered { .. } => {}
            Line::Event(event) => self.handle_event(&event),
        }
    }

    fn handle_event(&mut self, event: &str) {
        match event.split_once(' ') {
            Some(("boot", _)) => {
                self.boots += 1;
                self.pending = None;
                self.requests = [light_request()].into();
                self.is_waiting |= self.given.take().is_some();
            }
            Some(("l", value)) => {
                self.light = u16::from_str_radix(value, 16).ok().or(self.light);
                self.light_at = self.now;
            }
            Some(("err", code)) => self.fail(reason(code)),
            _ => {}
        }
    }

    /// The last request of a command was answered.
    fn finish(&mut self) {
        if let Some(given) = self.given.as_mut().filter(|_| self.requests.is_empty()) {
            self.reported.is_due |= !std::mem::replace(&mut given.is_shown, true);
        }
    }

    fn fail(&mut self, error: String) {
        self.requests.clear();
        self.pending = None;
        self.reported.is_due |= self.error.as_ref() != Some(&error);
        self.error = Some(error);
        self.given = None;
        self.retry_at = Some(self.now + RETRY_AFTER);
    }

    fn send(&mut self) {
        if let Some(pending) = &mut self.pending {
            if self.now < pending.sent + REPLY_MAX {
                return;
            }
            if pending.attempts == ATTEMPTS_MAX {
                return self.fail("the LED module does not answer".into());
            }
            (pending.sent, pending.attempts) = (self.now, pending.attempts + 1);
            // A line feed ends a line that was torn.
            self.board.uart_write(b"\n");
            self.board.uart_write(&encode(pending.sequence, &pending.command));
            return;
        }
        if self.now >= self.light_at + SILENCE_MAX {
            self.light_at = self.now;
            self.is_waiting |= self.retry_at.is_none();
            self.given = None;
        }
        if self.requests.is_empty() && self.is_due() {
            self.start_command();
        }
        if let Some(command) = self.requests.pop_front() {
            self.sequence = self.sequence.wrapping_add(1);
            self.board.uart_write(&encode(self.sequence, &command));
            self.pending = Some(Pending { sequence: self.sequence, command, sent: self.now, attempts: 1 });
        }
    }

    /// Returns true if a command is to be sent. Nothing is sent before the module has reported its start.
    fn is_due(&self) -> bool {
        self.boots > 0 && (self.is_waiting || self.retry_at.is_some_and(|time| self.now >= time))
    }

    /// Queues the requests of the newest command. Settings that the module has already are left out, because a request
    /// takes about 40 ms at 9600 baud.
    fn start_command(&mut self) {
        (self.is_waiting, self.retry_at, self.error) = (false, None, None);
        let [a, b] = self.colors;
        let wanted = [a[0], a[1], a[2], b[0], b[1], b[2]];
        let blinks = self.blink.map_or([false; 6], Blink::outputs);
        let allocation = allocate(wanted, blinks);
        let shown = self.given.as_ref().filter(|given| given.is_shown);
        let (before, blink_before) = shown.map_or((None, None), |given| (Some(given.allocation), given.blink));
        if before.is_none() {
            // The request for light may have failed, too.
            self.requests.push_back(light_request());
        }
        if before.map(|before| before.pwm) != Some(allocation.pwm) {
            let [pwm0, pwm1] = allocation.pwm;
            self.requests.push_back(format!("w 08 {pwm1:x}{pwm0:x}"));
        }
        if before.map(|before| before.master) != Some(allocation.master) {
            self.requests.push_back(format!("m {:x}", allocation.master));
        }
        let blink = self.blink.map(Blink::given);
        if let Some(given) = blink.filter(|_| blink != blink_before) {
            let [fade_in, on, fade_out, off, off_again] = given.codes();
            self.requests.push_back(format!("b 0 {fade_in:x} {on:x} {fade_out:x} {off:x} {off_again:x}"));
        }
        // The colors come last, so that no lamp shows a level of the command before. The module answers them even if
        // they are the same.
        let [select0, select1, select2] = allocation.select;
        self.requests.push_back(format!("p {select0:02x} {select1:02x} {select2:02x}"));
        self.given = Some(Given { allocation, blink, is_shown: false });
    }

    fn report(&mut self, reports: &mut Vec<Report>) {
        let lamps = self.board.lamps();
        let lamps = [lamps.a, lamps.b].map(|rgb| shades(&rgb));
        let has_changed = lamps != self.reported.lamps && self.now >= self.reported.state_at + STATE_EVERY;
        if self.reported.is_due || has_changed {
            (self.reported.is_due, self.reported.state_at, self.reported.lamps) = (false, self.now, lamps);
            reports.push(Report::State(self.state(lamps)));
        }
        if let Some(light) = self.light {
            let change = self.reported.light.map_or(u16::MAX, |before| before.abs_diff(light));
            if change >= LIGHT_CHANGE_MIN || self.now >= self.reported.light_at + LIGHT_EVERY {
                (self.reported.light, self.reported.light_at) = (Some(light), self.now);
                reports.push(Report::Light(self.light_json(light)));
            }
        }
    }

    fn light_json(&self, raw: u16) -> String {
        let sensor = match raw {
            0 => "dark",
            LIGHT_MAX.. => "saturated",
            _ => "working",
        };
        let light = f64::from(raw) / f64::from(LIGHT_MAX);
        json(&Light { light: (light * 1000.0).round() / 1000.0, raw, sensor })
    }

    fn state(&self, lit: [[u8; 3]; 2]) -> String {
        let shown = self.given.as_ref().filter(|given| given.is_shown);
        let given = shown.map(|Given { allocation: Allocation { given, .. }, blink, .. }| {
            let [a, b] = [0, 3].map(|first| [given[first], given[first + 1], given[first + 2]]);
            // The note is missing if the module gives all that was commanded.
            let is_exact = [a, b] == self.colors && *blink == self.blink;
            let note =
                (!is_exact).then_some("the driver has three brightness levels and 16 times; this is the nearest");
            GivenState { a, b, blink: *blink, note }
        });
        json(&State {
            commanded: Commanded { id: self.id.as_deref(), a: self.colors[0], b: self.colors[1], blink: self.blink },
            given,
            lit: Lit { a: hex(lit[0]), b: hex(lit[1]) },
            error: self.error.as_deref(),
            superseded: self.superseded,
            restarts: self.boots.saturating_sub(1),
        })
    }
}

#[derive(Serialize)]
struct Light {
    light: f64,
    raw: u16,
    sensor: &'static str,
}

#[derive(Serialize)]
struct State<'a> {
    commanded: Commanded<'a>,
    given: Option<GivenState>,
    lit: Lit,
    error: Option<&'a str>,
    superseded: u64,
    restarts: u64,
}

#[derive(Serialize)]
struct Commanded<'a> {
    id: Option<&'a str>,
    a: [u8; 3],
    b: [u8; 3],
    blink: Option<Blink>,
}

#[derive(Serialize)]
struct GivenState {
    a: [u8; 3],
    b: [u8; 3],
    blink: Option<Blink>,
    note: Option<&'static str>,
}

#[derive(Serialize)]
struct Lit {
    a: String,
    b: String,
}

fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("numbers and text")
}

/// Returns the start message of the module behind the rest of a line that its restart has torn.
fn after_tear(line: &[u8]) -> Option<&[u8]> {
    let start = line.windows(7).rposition(|part| part == b"ev boot").filter(|start| *start > 0)?;
    Some(&line[start..])
}

fn light_request() -> String {
    format!("l {LIGHT_PERIOD:02x}")
}

fn shades(rgb: &Rgb) -> [u8; 3] {
    [rgb.red, rgb.green, rgb.blue].map(|share| (share * 255.0).round() as u8)
}

fn hex([red, green, blue]: [u8; 3]) -> String {
    format!("#{red:02x}{green:02x}{blue:02x}")
}

/// Returns the text of an error code of the module.
fn reason(code: &str) -> String {
    let text = match code {
        "nack" => "the LED driver does not answer; is the module connected?",
        "bus" => "the I2C bus is stuck",
        "cal" => "the clock of the module is not calibrated",
        "busy" => "the LED module is busy",
        _ => return format!("the LED module refused a request: {code}"),
    };
    text.to_owned()
}
