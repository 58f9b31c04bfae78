//! The kit Earl: commands reach the lamps through firmware and bus, and faults are reported.

use std::time::Duration;

use millrace_msp430::{Injection, SensorState};
use millrace_simulate::earl::{FIRMWARE, Kit, Report};
use serde_json::Value;

/// A kit, and the reports of the last call.
struct Run {
    kit: Kit,
    now: Duration,
    states: Vec<Value>,
    lights: Vec<Value>,
}

impl Run {
    fn start() -> Self {
        let kit = Kit::new(FIRMWARE).expect("the shipped firmware");
        let mut run = Self { kit, now: Duration::ZERO, states: Vec::new(), lights: Vec::new() };
        run.wait(500);
        run
    }

    /// Runs for this time. `states` and `lights` have the reports of the time.
    fn wait(&mut self, ms: u64) {
        self.now += Duration::from_millis(ms);
        (self.states, self.lights) = Default::default();
        for report in self.kit.advance(self.now).expect("the firmware runs") {
            match report {
                Report::State(json) => self.states.push(serde_json::from_str(&json).expect("JSON")),
                Report::Light(json) => self.lights.push(serde_json::from_str(&json).expect("JSON")),
            }
        }
    }

    fn command(&mut self, json: &str, ms: u64) -> &Value {
        self.kit.handle_command(json.as_bytes());
        self.wait(ms);
        self.states.last().expect("a state")
    }
}

#[test]
fn color_lights_the_lamps() {
    let mut run = Run::start();
    let state = run.command(r##"{"id": "1", "a": "#ff8800", "b": [0, 0, 4]}"##, 1000);
    assert_eq!(state["commanded"]["id"], "1");
    assert_eq!(state["given"]["a"], serde_json::json!([15, 8, 0]));
    assert_eq!(state["given"]["note"], Value::Null);
    assert_eq!((&state["lit"]["a"], &state["lit"]["b"]), (&"#ff8800".into(), &"#000044".into()));
    assert_eq!(state["error"], Value::Null);
    let state = run.command(r#"{"b": [0, 0, 0]}"#, 1000);
    assert_eq!(
        (&state["lit"]["a"], &state["lit"]["b"]),
        (&"#ff8800".into(), &"#000000".into()),
        "LED A keeps its color"
    );
}

#[test]
fn state_says_what_the_driver_could_give() {
    let mut run = Run::start();
    let state = run.command(r#"{"a": [1, 2, 6], "b": [7, 13, 14]}"#, 1000);
    assert_ne!(state["given"]["a"], state["commanded"]["a"]);
    assert!(state["given"]["note"].as_str().is_some_and(|note| note.contains("three brightness levels")), "{state}");
}

#[test]
fn sensor_sees_the_lamps() {
    let mut run = Run::start();
    let raw = |run: &Run| run.lights.last().expect("a reading")["raw"].as_u64().expect("a number");
    run.wait(1100);
    let dark = raw(&run);
    run.command(r#"{"a": [15, 15, 15], "b": [15, 15, 15]}"#, 1200);
    let bright = raw(&run);
    assert!(bright > dark + 500, "{dark}, {bright}");
    run.kit.board_mut().sensor_mut().state = SensorState::Saturated;
    run.wait(200);
    assert_eq!(run.lights.last().expect("a reading")["sensor"], "saturated");
    run.kit.board_mut().sensor_mut().state = SensorState::Dark;
    run.wait(200);
    assert_eq!(run.lights.last().expect("a reading")["sensor"], "dark");
}

#[test]
fn blink_shows_on_the_lamps() {
    let mut run = Run::start();
    run.command(r#"{"a": [15, 0, 0], "b": [0, 15, 0], "blink": {"a": true, "on_ms": 256, "off_ms": 256}}"#, 1000);
    let mut changes = 0;
    let mut before = Value::Null;
    for _ in 0..40 {
        run.wait(50);
        for state in &run.states {
            assert_eq!(state["lit"]["b"], "#00ff00", "LED B does not blink");
            changes += u32::from(state["lit"]["a"] != before);
            before = state["lit"]["a"].clone();
        }
    }
    assert!((6..=9).contains(&changes), "about 8 changes in 2 s: {changes}");
}

#[test]
fn wrong_command_is_answered_and_changes_nothing() {
    let mut run = Run::start();
    run.command(r#"{"a": [15, 0, 0]}"#, 1000);
    let state = run.command(r#"{"a": [16, 0, 0]}"#, 200);
    assert_eq!(state["error"], "16: a level is 0 to 15");
    assert_eq!(state["lit"]["a"], "#ff0000");
    let state = run.command(r#"{"id": "r", "register": 11, "value": 1}"#, 200);
    assert!(state["error"].as_str().is_some_and(|error| error.contains("unknown field `register`")), "{state}");
    assert_eq!((&state["error_id"], &state["lit"]["a"]), (&"r".into(), &"#ff0000".into()));
    let state = run.command("\"on\"", 200);
    assert!(state["error"].as_str().is_some_and(|error| error.contains("expected struct")), "{state}");
}

#[test]
fn newest_of_fast_commands_wins() {
    let mut run = Run::start();
    for level in 0..=15 {
        run.kit.handle_command(format!(r#"{{"a": [{level}, 0, 0]}}"#).as_bytes());
        run.wait(1);
    }
    run.wait(1500);
    let state = run.states.last().expect("a state");
    assert_eq!(state["lit"]["a"], "#ff0000");
    assert!(state["superseded"].as_u64().is_some_and(|count| count >= 10), "{state}");
}

#[test]
fn missing_driver_is_reported_and_found_again() {
    let mut run = Run::start();
    run.kit.board_mut().inject(Injection::Disconnect { disconnected: true });
    let state = run.command(r#"{"a": [15, 0, 0]}"#, 800);
    assert!(state["error"].as_str().is_some_and(|error| error.contains("does not answer")), "{state}");
    assert_eq!(state["lit"]["a"], "#000000");
    run.kit.board_mut().inject(Injection::Disconnect { disconnected: false });
    run.wait(2500);
    let state = run.states.last().expect("a state");
    assert_eq!((&state["error"], &state["lit"]["a"]), (&Value::Null, &"#ff0000".into()), "{state}");
}

#[test]
fn lamps_return_after_a_brown_out() {
    let mut run = Run::start();
    run.command(r#"{"b": [0, 9, 0]}"#, 1000);
    run.kit.board_mut().inject(Injection::BrownOut { ram_lost: true });
    run.wait(1500);
    let state = run.states.last().expect("a state");
    assert_eq!((&state["lit"]["b"], &state["restarts"]), (&"#009900".into(), &1.into()), "{state}");
}

#[test]
fn same_commands_give_the_same_reports() {
    let all = || {
        let mut run = Run::start();
        run.command(r#"{"a": [3, 0, 9], "blink": {"a": true, "fade_in_ms": 512, "on_ms": 64, "off_ms": 64}}"#, 3000);
        (run.states, run.lights)
    };
    assert_eq!(all(), all());
}

#[test]
fn file_that_is_no_firmware_is_refused() {
    assert!(Kit::new(b"").is_err());
    assert!(Kit::new(&FIRMWARE[..100]).is_err());
}
