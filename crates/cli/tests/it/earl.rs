//! Tests `simulate earl`: a command to a channel reaches the lamps of the LED module through server, serial
//! connection, firmware and I2C bus, and the light sensor reports them.

use serde_json::Value;

use crate::support::{Process, Server, millrace, run};

fn state(line: Option<String>) -> Value {
    serde_json::from_str(&line.expect("a report")).expect("JSON")
}

#[test]
fn command_on_a_channel_lights_the_lamps_of_the_kit() {
    let server = Server::start(&[]);
    let to = ["--to", &server.url];
    let mut kit = Process::start(millrace(&["simulate", "earl", "--name", "earl/7"]).args(to));
    kit.err.wait_for("earl/7/led");
    let mut states = Process::start(millrace(&["sub", "earl/7/state", "--since", "earliest"]).args(to));
    let mut lights = Process::start(millrace(&["sub", "earl/7/light", "--since", "earliest"]).args(to));
    let dark = state(lights.out.next())["raw"].as_u64().expect("a reading");

    let args = ["pub", "earl/7/led", r##"{"id": "x", "a": "#ff8800", "b": [0, 0, 4]}"##];
    assert_eq!(run(&[&args[..], &to].concat()).code, Some(0));
    let lit = (0..50).map(|_| state(states.out.next())).find(|state| state["lit"]["a"] == "#ff8800");
    let lit = lit.expect("the lamps are lit");
    assert_eq!((&lit["lit"]["b"], &lit["commanded"]["id"]), (&"#000044".into(), &"x".into()), "{lit}");
    let brighter = (0..100).map(|_| state(lights.out.next())["raw"].as_u64().expect("a reading"));
    assert!({ brighter }.any(|raw| raw > dark + 100), "the sensor sees the lamps");

    let wrong = ["pub", "earl/7/led", r#"{"a": [16, 0, 0]}"#];
    assert_eq!(run(&[&wrong[..], &to].concat()).code, Some(0));
    let is_refused = (0..50).any(|_| state(states.out.next())["error"] == "16: a level is 0 to 15");
    assert!(is_refused, "the state names the wrong level");
}

#[test]
fn file_that_is_no_firmware_ends_the_kit() {
    let ended = run(&["simulate", "earl", "--firmware", "Cargo.toml"]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.err.contains("no ELF file for the MSP430"), "{ended:?}");
}
