//! The driver of the LED module: commands become requests, each with a reply in time, and errors are reported.

use std::{collections::VecDeque, time::Duration};

use crate::{
    command::{Blink, Command, id_of},
    palette::{Allocation, allocate},
    report::{Commanded, Given, Lit, Report, State, error_text, light_json},
    request::{LINE_BYTES_MAX, Line, encode, parse},
};

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
/// Silence of the module after which the driver repeats all settings, because the start message may be lost.
const SILENCE_MAX: Duration = Duration::from_secs(1);
/// Least time between two reports of lamps that only fade.
const STATE_EVERY: Duration = Duration::from_millis(50);
/// Request for the version of the module's protocol, and the version that this driver speaks.
const VERSION_REQUEST: &str = "v";
const VERSION: &str = "1";

/// The host side of a kit. It sends requests to the module, and accepts commands at any time.
///
/// ```text
///               connect          reply to `v`            command              last reply
/// disconnected ────────► probing ────────────► ready: idle ─────► ready: sending ─────────► ready: shown
///       ▲                 ▲   │ no reply, error           ▲            │ no reply, error
///       │                 └───┴── after 1 s               └────────────┴── after 1 s
///       └── disconnect, from every state
/// ```
///
/// A start message of the module leads back to `probing` from every state of a connection.
pub struct Driver {
    now: Duration,
    is_connected: bool,
    /// The module has answered since the connection or since its start.
    is_ready: bool,
    received: Vec<u8>,
    output: Vec<u8>,
    sequence: u8,
    pending: Option<Pending>,
    /// Requests of the present command that were not sent yet.
    requests: VecDeque<String>,
    /// The newest command that was accepted.
    commanded: Commanded,
    /// Settings that are being sent, or that the module shows.
    setting: Option<Setting>,
    /// The present command is not sent yet.
    is_waiting: bool,
    /// A command that was accepted is not sent yet, so that a newer one supersedes it.
    is_new: bool,
    /// Time at which a failed command is tried again.
    retry_at: Option<Duration>,
    error: Option<Trouble>,
    superseded: u32,
    starts: u32,
    /// Measured light of the lamps.
    lamps: Option<[[u8; 3]; 2]>,
    light: Option<u16>,
    /// Time of the last reading.
    light_at: Duration,
    reported: Reported,
}

/// A request that waits for its reply.
struct Pending {
    sequence: u8,
    command: String,
    sent: Duration,
    attempts: u32,
    /// A line arrived that is torn, or the module received a torn line.
    is_garbled: bool,
}

struct Setting {
    allocation: Allocation,
    blink: Option<Blink>,
    is_shown: bool,
}

#[derive(PartialEq, Eq)]
enum Trouble {
    /// A command is wrong. The error stays until a correct one arrives.
    Refusal { text: String, id: Option<String> },
    /// Hardware or connection fail. The error stays until the next attempt.
    Failure { text: String },
}

/// The reports of last time.
#[derive(Default)]
struct Reported {
    is_due: bool,
    state_at: Duration,
    lamps: Option<[[u8; 3]; 2]>,
    light_at: Duration,
    light: Option<u16>,
}

impl Default for Driver {
    fn default() -> Self {
        Self {
            now: Duration::ZERO,
            is_connected: false,
            is_ready: false,
            received: Vec::new(),
            output: Vec::new(),
            sequence: 0,
            pending: None,
            requests: VecDeque::new(),
            commanded: Commanded { id: None, a: [0; 3], b: [0; 3], blink: None },
            setting: None,
            is_waiting: false,
            is_new: false,
            retry_at: None,
            error: None,
            superseded: 0,
            starts: 0,
            lamps: None,
            light: None,
            light_at: Duration::ZERO,
            reported: Reported { is_due: true, ..Reported::default() },
        }
    }
}

impl Driver {
    /// Begins a connection to a module: the driver sends all settings. The module may be running for a long time.
    pub fn connect(&mut self, now: Duration) {
        self.now = now;
        self.reset();
        (self.is_connected, self.light_at) = (true, now);
        self.probe();
    }

    /// Ends the connection. The state says why until the next connection shows the command.
    pub fn disconnect(&mut self, now: Duration, why: &str) {
        self.now = now;
        self.reset();
        self.is_connected = false;
        self.set_error(Some(Trouble::Failure { text: error_text(why) }));
    }

    fn reset(&mut self) {
        (self.is_ready, self.pending, self.setting, self.retry_at) = (false, None, None, None);
        (self.light, self.reported.light) = (None, None);
        self.received.clear();
        self.output.clear();
        self.requests.clear();
        self.reported.is_due = true;
    }

    /// Accepts a command as JSON. The next state says what became of it.
    ///
    /// Only the newest command counts: a command that is not sent yet is superseded. Colors that a newer command does
    /// not name stay.
    pub fn handle_command(&mut self, json: &[u8]) {
        self.reported.is_due = true;
        match Command::parse(json) {
            Ok(Command { id, a, b, blink }) => {
                self.superseded = self.superseded.wrapping_add(self.is_new.into());
                let [a, b] = [a.unwrap_or(self.commanded.a), b.unwrap_or(self.commanded.b)];
                self.commanded = Commanded { id, a, b, blink };
                (self.is_waiting, self.is_new) = (true, true);
                self.retry_at = self.retry_at.map(|_| self.now);
                // A connection that is missing stays the reason why the command is not shown.
                if self.is_connected {
                    self.error = None;
                }
            }
            Err(error) => {
                self.error = Some(Trouble::Refusal { text: error_text(&error.to_string()), id: id_of(json) });
            }
        }
    }

    /// Accepts bytes of the serial connection.
    pub fn handle_input(&mut self, now: Duration, bytes: &[u8]) {
        self.now = now;
        for byte in bytes {
            match byte {
                b'\n' => {
                    let line = std::mem::take(&mut self.received);
                    match parse(&line).or_else(|| parse(after_tear(&line)?)) {
                        Some(line) => self.handle_line(line),
                        None => self.note_garbled(!line.is_empty()),
                    }
                }
                // The rest of a line that is too long is no line, either.
                _ if self.received.len() < LINE_BYTES_MAX => self.received.push(*byte),
                _ => {}
            }
        }
    }

    /// Sends what is due: the next request, a retransmission, or a new attempt.
    pub fn handle_timeout(&mut self, now: Duration) {
        self.now = now;
        if self.is_connected {
            self.send();
        }
    }

    /// Accepts the measured light of both LEDs. Only a simulated kit can measure it.
    pub fn handle_lamps(&mut self, lamps: [[u8; 3]; 2]) {
        self.lamps = Some(lamps);
    }

    /// Returns the time of the next [`Driver::handle_timeout`] and of the next report.
    pub fn poll_timeout(&self) -> Duration {
        let reply = self.pending.as_ref().map(|pending| pending.sent + REPLY_MAX);
        let is_sendable = self.is_connected && self.pending.is_none();
        let now = (is_sendable && (!self.requests.is_empty() || self.is_waiting && self.is_ready)).then_some(self.now);
        let silence = is_sendable.then_some(self.light_at + SILENCE_MAX);
        let light = self.light.map(|_| self.reported.light_at + LIGHT_EVERY);
        let due = self.reported.is_due.then_some(self.now);
        let times = [reply, now, silence, light, due, self.retry_at.filter(|_| is_sendable)];
        times.into_iter().flatten().min().unwrap_or(self.now + SILENCE_MAX)
    }

    /// Returns and removes the bytes for the serial connection.
    pub fn poll_output(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.output)
    }

    /// Returns the next report that is due.
    pub fn poll_report(&mut self) -> Option<Report> {
        let has_changed = self.lamps != self.reported.lamps && self.now >= self.reported.state_at + STATE_EVERY;
        if self.reported.is_due || has_changed {
            (self.reported.is_due, self.reported.state_at, self.reported.lamps) = (false, self.now, self.lamps);
            return Some(Report::State(self.state().to_json()));
        }
        let light = self.light?;
        let change = self.reported.light.map_or(u16::MAX, |before| before.abs_diff(light));
        let is_due = change >= LIGHT_CHANGE_MIN || self.now >= self.reported.light_at + LIGHT_EVERY;
        is_due.then(|| {
            (self.reported.light, self.reported.light_at) = (Some(light), self.now);
            Report::Light(light_json(light))
        })
    }

    fn note_garbled(&mut self, is_garbled: bool) {
        if let Some(pending) = &mut self.pending {
            pending.is_garbled |= is_garbled;
        }
    }

    fn handle_line(&mut self, line: Line) {
        match line {
            Line::Reply { sequence, result } => {
                // Another sequence: the reply to an earlier attempt.
                if let Some(pending) = self.pending.take_if(|pending| pending.sequence == sequence) {
                    match result {
                        Ok(values) if pending.command == VERSION_REQUEST => self.handle_version(&values),
                        Ok(_) => self.finish(),
                        Err(code) => self.fail(reason(&code)),
                    }
                }
            }
            // The module did not understand the request. Its timeout repeats the request.
            Line::Unnumbered { .. } => self.note_garbled(true),
            Line::Event(event) => self.handle_event(&event),
        }
    }

    fn handle_event(&mut self, event: &str) {
        match event.split_once(' ') {
            Some(("boot", _)) => {
                self.starts = self.starts.saturating_add(1);
                self.reported.is_due |= self.starts > 1;
                (self.is_ready, self.pending, self.retry_at) = (false, None, None);
                self.setting = None;
                self.requests.clear();
                self.probe();
            }
            Some(("l", value)) => {
                self.light = u16::from_str_radix(value, 16).ok().or(self.light);
                self.light_at = self.now;
            }
            Some(("err", code)) => self.fail(reason(code)),
            _ => {}
        }
    }

    /// Asks a module that is not known to run for its version. A line feed ends a line that was torn.
    fn probe(&mut self) {
        self.output.push(b'\n');
        self.requests.push_back(VERSION_REQUEST.to_owned());
    }

    fn handle_version(&mut self, values: &str) {
        let version = values.split(' ').next().unwrap_or_default();
        if version != VERSION {
            let text = format!("the LED module has protocol version {version}; this program needs version {VERSION}");
            return self.fail(text);
        }
        (self.is_ready, self.is_waiting) = (true, true);
        // A module that runs already has not reported a start.
        self.starts = self.starts.max(1);
    }

    /// The last request of a command was answered.
    fn finish(&mut self) {
        if let Some(setting) = self.setting.as_mut().filter(|_| self.requests.is_empty()) {
            self.reported.is_due |= !std::mem::replace(&mut setting.is_shown, true);
        }
    }

    fn fail(&mut self, text: String) {
        self.requests.clear();
        (self.pending, self.setting) = (None, None);
        self.set_error(Some(Trouble::Failure { text: error_text(&text) }));
        self.retry_at = Some(self.now + RETRY_AFTER);
    }

    fn set_error(&mut self, error: Option<Trouble>) {
        self.reported.is_due |= self.error != error;
        self.error = error;
    }

    fn send(&mut self) {
        if let Some(pending) = &mut self.pending {
            if self.now < pending.sent + REPLY_MAX {
                return;
            }
            if pending.attempts == ATTEMPTS_MAX {
                let text = match pending.is_garbled {
                    true => "lines of the serial connection arrive torn; check its wires and its baud rate",
                    false => "the LED module does not answer",
                };
                (self.is_ready, self.light) = (false, None);
                return self.fail(text.into());
            }
            (pending.sent, pending.attempts) = (self.now, pending.attempts + 1);
            // A line feed ends a line that was torn.
            self.output.push(b'\n');
            self.output.extend(encode(pending.sequence, &pending.command));
            return;
        }
        if self.now >= self.light_at + SILENCE_MAX {
            // The module is silent: it may have restarted, or may be gone.
            (self.light_at, self.light) = (self.now, None);
            self.is_waiting |= self.retry_at.is_none();
            self.setting = None;
        }
        let is_retry = self.retry_at.is_some_and(|time| self.now >= time);
        if self.requests.is_empty() && (is_retry || self.is_ready && self.is_waiting) {
            self.retry_at = None;
            match self.is_ready {
                true => self.start_command(),
                false => self.probe(),
            }
        }
        if let Some(command) = self.requests.pop_front() {
            self.sequence = self.sequence.wrapping_add(1);
            self.output.extend(encode(self.sequence, &command));
            let (sequence, sent) = (self.sequence, self.now);
            self.pending = Some(Pending { sequence, command, sent, attempts: 1, is_garbled: false });
        }
    }

    /// Queues the requests of the newest command. Settings that the module has already are left out, because a request
    /// takes about 40 ms at 9600 baud.
    fn start_command(&mut self) {
        (self.is_waiting, self.is_new) = (false, false);
        self.error.take_if(|error| matches!(error, Trouble::Failure { .. }));
        let Commanded { a, b, blink, .. } = self.commanded;
        let blinks = blink.map_or([false; 6], Blink::outputs);
        let allocation = allocate([a[0], a[1], a[2], b[0], b[1], b[2]], blinks);
        let shown = self.setting.as_ref().filter(|setting| setting.is_shown);
        let (before, blink_before) = shown.map_or((None, None), |shown| (Some(shown.allocation), shown.blink));
        if before.is_none() {
            // The request for light may have failed, too.
            self.requests.push_back(format!("l {LIGHT_PERIOD:02x}"));
        }
        if before.map(|before| before.pwm) != Some(allocation.pwm) {
            let [pwm0, pwm1] = allocation.pwm;
            self.requests.push_back(format!("w 08 {pwm1:x}{pwm0:x}"));
        }
        if before.map(|before| before.master) != Some(allocation.master) {
            self.requests.push_back(format!("m {:x}", allocation.master));
        }
        let blink = blink.map(Blink::given);
        if let Some(given) = blink.filter(|_| blink != blink_before) {
            let [fade_in, on, fade_out, off, off_again] = given.codes();
            self.requests.push_back(format!("b 0 {fade_in:x} {on:x} {fade_out:x} {off:x} {off_again:x}"));
        }
        // The colors come last, so that no lamp shows a level of the command before. The module answers them even if
        // they are the same.
        let [select0, select1, select2] = allocation.select;
        self.requests.push_back(format!("p {select0:02x} {select1:02x} {select2:02x}"));
        self.setting = Some(Setting { allocation, blink, is_shown: false });
    }

    fn state(&self) -> State {
        let shown = self.setting.as_ref().filter(|setting| setting.is_shown);
        let given = shown.map(|Setting { allocation: Allocation { given, .. }, blink, .. }| {
            let [a, b] = [0, 3].map(|first| [given[first], given[first + 1], given[first + 2]]);
            Given::new(a, b, *blink, &self.commanded)
        });
        let (error, error_id) = match &self.error {
            None => (None, None),
            Some(Trouble::Refusal { text, id }) => (Some(text.clone()), id.clone()),
            Some(Trouble::Failure { text }) => (Some(text.clone()), None),
        };
        State {
            commanded: self.commanded.clone(),
            given,
            lit: self.lamps.map(Lit::new),
            error,
            error_id,
            superseded: self.superseded,
            restarts: self.starts.saturating_sub(1),
        }
    }
}

/// Returns the start message of the module behind the rest of a line that its restart has torn.
fn after_tear(line: &[u8]) -> Option<&[u8]> {
    let start = line.windows(7).rposition(|part| part == b"ev boot").filter(|start| *start > 0)?;
    Some(&line[start..])
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::crc;

    /// A driver whose module answers each request with the result of `answer`.
    fn run(driver: &mut Driver, ms: u64, answer: impl Fn(&str) -> Option<&'static str>) -> Vec<String> {
        let mut states = Vec::new();
        for _ in 0..ms {
            let now = driver.now + Duration::from_millis(1);
            driver.handle_timeout(now);
            for line in driver.poll_output().split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
                let text = std::str::from_utf8(line).expect("ASCII");
                let (sequence, command) = text.split_once(' ').expect("a request");
                let Some(result) = answer(command.split('*').next().expect("a command")) else { continue };
                let reply = format!("{sequence} {result}");
                let line = format!("{reply}*{:04x}\n", crc(reply.as_bytes()));
                driver.handle_input(now, line.as_bytes());
            }
            states.extend(std::iter::from_fn(|| driver.poll_report()).map(|report| match report {
                Report::State(json) | Report::Light(json) => json,
            }));
        }
        states
    }

    fn connected() -> Driver {
        let mut driver = Driver::default();
        driver.connect(Duration::ZERO);
        driver
    }

    #[test]
    fn unknown_register_is_reported() {
        let answer = |command: &str| match command {
            "v" => Some("ok 1 04 00 00"),
            command if command.starts_with("w ") => Some("err reg"),
            _ => Some("ok"),
        };
        let states = run(&mut connected(), 100, answer);
        let last = states.last().expect("a state");
        assert!(last.contains("refused a request: reg"), "{last}");
    }

    #[test]
    fn module_with_another_protocol_gets_no_command() {
        let answer = |command: &str| match command {
            "v" => Some("ok 2 04 00 00"),
            other => panic!("{other}"),
        };
        let mut driver = connected();
        driver.handle_command(br#"{"a": [1, 2, 3]}"#);
        let states = run(&mut driver, 3000, answer);
        assert!(states.iter().any(|state| state.contains("has protocol version 2")), "{states:?}");
    }

    #[test]
    fn pending_work_has_a_time() {
        let mut driver = connected();
        for _ in 0..5000 {
            let now = driver.poll_timeout().max(driver.now + Duration::from_millis(1));
            assert!(now <= driver.now + Duration::from_secs(1), "{now:?}");
            driver.handle_timeout(now);
            driver.poll_output();
            while driver.poll_report().is_some() {}
        }
        assert!(driver.now > Duration::from_secs(300), "it does not spin: {:?}", driver.now);
    }
}
