//! The driver of a kit and the LED module, with a serial connection between them that fails on command.

use std::time::Duration;

use millrace_earl::{Driver, Report};
use millrace_simulate::earl::{FIRMWARE, Module};
use serde_json::Value;

/// A change of the bytes that pass the wire in one direction.
type Fault = fn(Vec<u8>) -> Vec<u8>;

/// A driver and a module, connected by a wire.
struct Wire {
    driver: Driver,
    module: Module,
    now: Duration,
    to_module: Fault,
    to_driver: Fault,
    lights: u32,
    state: Value,
}

fn whole(bytes: Vec<u8>) -> Vec<u8> {
    bytes
}

fn cut(_: Vec<u8>) -> Vec<u8> {
    Vec::new()
}

/// Changes a bit of each line.
fn torn(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.iter_mut().filter(|byte| **byte == b'*').for_each(|byte| *byte = b'+');
    bytes
}

impl Wire {
    fn start() -> Self {
        let mut driver = Driver::default();
        driver.connect(Duration::ZERO);
        let module = Module::new(FIRMWARE).expect("the shipped firmware");
        let [to_module, to_driver] = [whole as Fault; 2];
        let mut wire =
            Self { driver, module, now: Duration::ZERO, to_module, to_driver, lights: 0, state: Value::Null };
        wire.wait(500);
        wire
    }

    fn wait(&mut self, ms: u64) {
        self.lights = 0;
        for _ in 0..ms / 5 {
            self.now += Duration::from_millis(5);
            let bytes = (self.to_driver)(self.module.advance(self.now).expect("the firmware runs"));
            self.driver.handle_input(self.now, &bytes);
            self.driver.handle_timeout(self.now);
            self.module.write(&(self.to_module)(self.driver.poll_output()));
            while let Some(report) = self.driver.poll_report() {
                match report {
                    Report::State(json) => self.state = serde_json::from_str(&json).expect("JSON"),
                    Report::Light(_) => self.lights += 1,
                }
            }
        }
    }

    fn command(&mut self, json: &str, ms: u64) {
        self.driver.handle_command(json.as_bytes());
        self.wait(ms);
    }

    /// Returns the error, or an empty text.
    fn error(&self) -> &str {
        self.state["error"].as_str().unwrap_or_default()
    }
}

const RED: [[u8; 3]; 2] = [[255, 0, 0], [0, 0, 0]];

#[test]
fn torn_lines_are_repeated() {
    for direction in 0..2 {
        let mut wire = Wire::start();
        let fault = if direction == 0 { &mut wire.to_module } else { &mut wire.to_driver };
        *fault = torn;
        wire.command(r#"{"id": "1", "a": [15, 0, 0]}"#, 350);
        [wire.to_module, wire.to_driver] = [whole; 2];
        wire.wait(800);
        assert_eq!((wire.error(), wire.module.lamps()), ("", RED), "{}", wire.state);
        assert_eq!(wire.state["given"]["a"], serde_json::json!([15, 0, 0]));
    }
}

#[test]
fn lines_that_stay_torn_are_reported() {
    for direction in 0..2 {
        let mut wire = Wire::start();
        let fault = if direction == 0 { &mut wire.to_module } else { &mut wire.to_driver };
        *fault = torn;
        wire.command(r#"{"id": "1", "a": [15, 0, 0]}"#, 1100);
        assert!(wire.error().contains("arrive torn"), "{}", wire.state);
        assert_eq!(wire.state["given"], Value::Null);
        [wire.to_module, wire.to_driver] = [whole; 2];
        wire.wait(3000);
        assert_eq!((wire.error(), wire.module.lamps()), ("", RED), "{}", wire.state);
    }
}

#[test]
fn silent_module_is_reported_and_sends_no_old_light() {
    let mut wire = Wire::start();
    wire.wait(1100);
    assert!(wire.lights >= 1);
    [wire.to_module, wire.to_driver] = [cut; 2];
    wire.command(r#"{"id": "1", "a": [15, 0, 0]}"#, 1100);
    assert_eq!(wire.error(), "the LED module does not answer");
    wire.wait(3000);
    assert_eq!(wire.lights, 0, "a reading that is old is no reading");
    [wire.to_module, wire.to_driver] = [whole; 2];
    wire.wait(3000);
    assert_eq!((wire.error(), wire.module.lamps()), ("", RED), "{}", wire.state);
}

#[test]
fn command_without_a_connection_is_shown_after_it() {
    let mut wire = Wire::start();
    wire.driver.handle_command(br#"{"id": "1", "a": [0, 0, 15]}"#);
    wire.wait(20);
    // The device is disconnected while requests are on their way.
    [wire.to_module, wire.to_driver] = [cut; 2];
    wire.driver.disconnect(wire.now, "the serial device was disconnected");
    wire.command(r#"{"id": "2", "a": [15, 0, 0]}"#, 2000);
    assert_eq!((wire.error(), &wire.state["commanded"]["id"]), ("the serial device was disconnected", &"2".into()));
    assert_eq!((&wire.state["given"], wire.lights), (&Value::Null, 0));
    // The module ran all the time: it reports no start.
    [wire.to_module, wire.to_driver] = [whole; 2];
    wire.driver.connect(wire.now);
    wire.wait(1000);
    assert_eq!((wire.error(), wire.module.lamps()), ("", RED), "{}", wire.state);
    assert_eq!(wire.state["restarts"], 0);
}

#[test]
fn newest_command_of_two_writers_wins_and_is_named() {
    let mut wire = Wire::start();
    for round in 0..20 {
        for (writer, level) in [("x", 15), ("y", 3)] {
            wire.driver.handle_command(format!(r#"{{"id": "{writer}{round}", "a": [{level}, 0, 0]}}"#).as_bytes());
            wire.wait(10);
        }
    }
    wire.wait(1000);
    assert_eq!(wire.state["commanded"]["id"], "y19");
    assert_eq!((&wire.state["given"]["a"][0], wire.module.lamps()[0]), (&3.into(), [51, 0, 0]), "{}", wire.state);
    assert!(wire.state["superseded"].as_u64().is_some_and(|count| count >= 20), "{}", wire.state);
    // The state of a wrong command names its writer, and the lamps keep the command of the other one.
    wire.command(r#"{"id": "x20", "a": [16, 0, 0]}"#, 100);
    assert_eq!((&wire.state["error_id"], &wire.state["commanded"]["id"]), (&"x20".into(), &"y19".into()));
    wire.command(r#"{"id": "y20", "a": [1, 0, 0]}"#, 500);
    assert_eq!((&wire.state["error_id"], &wire.state["error"]), (&Value::Null, &Value::Null));
}

#[test]
fn noise_on_the_wire_does_no_harm() {
    let mut wire = Wire::start();
    let mut seed = 7_u32;
    for _ in 0..100 {
        let noise = std::array::from_fn::<u8, 40, _>(|_| {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (seed >> 24) as u8
        });
        wire.driver.handle_input(wire.now, &noise);
        wire.module.write(&noise[..10]);
        wire.wait(20);
    }
    wire.command(r#"{"id": "1", "a": [15, 0, 0]}"#, 4000);
    assert_eq!((wire.error(), wire.module.lamps()), ("", RED), "{}", wire.state);
}
