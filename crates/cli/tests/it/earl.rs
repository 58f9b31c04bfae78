//! Tests `simulate earl` and `gateway --serial`: a command to a channel reaches the lamps of the LED module through
//! server, serial connection, firmware and I2C bus, and the light sensor reports them.

use std::{io::Write as _, process::Stdio};

use rustix::process::Signal;
use serde_json::Value;

use crate::support::{Lines, Process, Server, millrace, run};

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

/// Returns the next state that has this error; an empty text is no error.
fn state_with_error(states: &mut Lines, error: &str) -> Value {
    let is_wanted = |state: &Value| match error {
        "" => state["error"].is_null() && !state["given"].is_null(),
        error => state["error"].as_str().is_some_and(|text| text.contains(error)),
    };
    (0..200).map(|_| state(states.next())).find(is_wanted).expect("a state")
}

/// A module on a pseudo terminal, and a gateway between it and the channels of a server.
struct SerialKit {
    server: Server,
    link: String,
    module: Process,
    gateway: Process,
    states: Process,
    _folder: tempfile::TempDir,
}

impl SerialKit {
    fn start() -> Self {
        let server = Server::start(&[]);
        let folder = tempfile::tempdir().expect("a folder");
        let link = folder.path().join("earl").to_str().expect("UTF-8").to_owned();
        let module = start_module(&link, &server);
        let gateway =
            Process::start(&mut millrace(&["gateway", "--serial", &link, "--kit", "earl/3", "--to", &server.url]));
        let states =
            Process::start(&mut millrace(&["sub", "earl/3/state", "--since", "earliest", "--to", &server.url]));
        Self { server, link, module, gateway, states, _folder: folder }
    }

    fn command(&self, json: &str) {
        assert_eq!(run(&["pub", "earl/3/led", json, "--to", &self.server.url]).code, Some(0));
    }
}

fn start_module(link: &str, server: &Server) -> Process {
    let args = ["simulate", "earl", "--name", "earl/3", "--serial-link", link, "--to", &server.url];
    let mut module = Process::start(&mut millrace(&args));
    assert_eq!(module.out.wait_for("serial connection at"), format!("serial connection at {link}"));
    module
}

#[test]
fn gateway_drives_a_kit_on_a_serial_device() {
    let mut kit = SerialKit::start();
    let to = ["--to", &kit.server.url];
    let mut lamps = Process::start(millrace(&["sub", "earl/3/lamps", "--since", "earliest"]).args(to));
    let mut lights = Process::start(millrace(&["sub", "earl/3/light", "--since", "earliest"]).args(to));
    let dark = state(lights.out.next())["raw"].as_u64().expect("a reading");
    kit.command(r##"{"id": "x", "a": "#ff8800", "b": [0, 0, 4]}"##);
    let given = (0..50)
        .map(|_| state(kit.states.out.next()))
        .find(|state| state["commanded"]["id"] == "x" && state["given"]["a"] == serde_json::json!([15, 8, 0]));
    assert_eq!(given.expect("the module confirms")["lit"], Value::Null, "a module cannot measure its lamps");
    lamps.out.wait_for(r##"{"a":"#ff8800","b":"#000044"}"##);
    let brighter = (0..100).map(|_| state(lights.out.next())["raw"].as_u64().expect("a reading"));
    assert!({ brighter }.any(|raw| raw > dark + 100), "the sensor sees the lamps");
    kit.command(r#"{"id": "y", "a": [16, 0, 0]}"#);
    assert_eq!(state_with_error(&mut kit.states.out, "16: a level is 0 to 15")["error_id"], "y");
}

#[test]
fn gateway_reports_a_lost_device_and_connects_again() {
    let mut kit = SerialKit::start();
    kit.command(r#"{"id": "x", "a": [15, 0, 0]}"#);
    state_with_error(&mut kit.states.out, "");
    kit.module.signal(Signal::KILL);
    let gone = state_with_error(&mut kit.states.out, "the serial device");
    assert_eq!((&gone["given"], &gone["commanded"]["id"]), (&Value::Null, &"x".into()));
    // The device is missing: a command is answered, and shown later.
    kit.command(r#"{"id": "y", "a": [0, 15, 0]}"#);
    let waits = (0..50).map(|_| state(kit.states.out.next())).find(|state| state["commanded"]["id"] == "y");
    assert!(waits.expect("a state")["error"].as_str().is_some_and(|error| error.contains("serial device")));
    kit.module = start_module(&kit.link, &kit.server);
    let back = state_with_error(&mut kit.states.out, "");
    assert_eq!((&back["commanded"]["id"], &back["given"]["a"]), (&"y".into(), &serde_json::json!([0, 15, 0])));
}

#[test]
fn second_gateway_on_a_device_is_refused() {
    let mut kit = SerialKit::start();
    kit.gateway.err.wait_for("connected");
    let args = ["gateway", "--serial", &kit.link, "--kit", "earl/4", "--to", &kit.server.url];
    let mut second = Process::start(&mut millrace(&args));
    second.err.wait_for("used by another program");
    let mut states =
        Process::start(&mut millrace(&["sub", "earl/4/state", "--since", "earliest", "--to", &kit.server.url]));
    state_with_error(&mut states.out, "used by another program");
    let file = ["gateway", "--serial", "Cargo.toml", "--kit", "earl/5", "--to", &kit.server.url];
    Process::start(&mut millrace(&file)).err.wait_for("no serial device");
}

#[test]
fn kit_on_standard_input_and_output() {
    let mut command = millrace(&["simulate", "earl", "--stdio"]);
    let (reader, mut writer) = std::io::pipe().expect("a pipe");
    let mut kit = Process::start_with_input(command.stdin(Stdio::from(reader)));
    writeln!(writer, r##"{{"id": "x", "a": "#ff8800"}}"##).expect("the kit reads");
    let lit = (0..200).map(|_| state(kit.out.next())).find(|line| line["state"]["lit"]["a"] == "#ff8800");
    assert_eq!(lit.expect("the lamps are lit")["state"]["commanded"]["id"], "x");
    drop((writer, command));
    assert_eq!(kit.finish().code, Some(0), "the end of the input ends the kit");
}
