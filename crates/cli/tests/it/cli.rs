//! Help that teaches, and configuration that is never silently something else.

use crate::support::{Process, file, millrace, repository, run};

/// Source: sysexits.h, EX_CONFIG.
const EXIT_CONFIG: Option<i32> = Some(78);

#[test]
fn every_command_teaches_with_an_example() {
    let mut commands: Vec<Vec<String>> = vec![Vec::new()];
    let mut seen = 0;
    while let Some(command) = commands.pop() {
        let mut args: Vec<&str> = command.iter().map(String::as_str).collect();
        args.push("--help");
        let help = run(&args);
        assert_eq!(help.code, Some(0), "{args:?}: {help:?}");
        let examples = help.out.split_once("\nExample").or(help.out.split_once("\nTry it"));
        assert!(
            examples.is_some_and(|(_, lines)| lines.contains("millrace ")),
            "{args:?} has no example: {}",
            help.out
        );
        let section = help.out.split("Commands:\n").nth(1).unwrap_or_default();
        let names =
            section.lines().take_while(|line| !line.is_empty()).filter_map(|line| line.split_whitespace().next());
        for name in names.filter(|name| *name != "help") {
            commands.push(command.iter().cloned().chain([name.to_owned()]).collect());
        }
        seen += 1;
    }
    assert!(seen >= 13, "only {seen} commands were found");
}

#[test]
fn an_unknown_key_ends_with_78_and_is_named() {
    let path = file("unknown.toml", "[limits]\nheartbeet = \"5s\"\n");
    for command in ["serve", "config check"] {
        let command: Vec<&str> = command.split(' ').collect();
        let from_file = run(&[&command[..], &["--config", &path]].concat());
        assert_eq!(from_file.code, EXIT_CONFIG, "{from_file:?}");
        assert!(from_file.err.contains("heartbeet") && from_file.err.contains("line 2"), "{from_file:?}");

        let from_flag = run(&[&command[..], &["--set", "limits.heartbeet=5s"]].concat());
        assert_eq!(from_flag.code, EXIT_CONFIG, "{from_flag:?}");
        assert!(from_flag.err.contains("heartbeet") && from_flag.err.contains("--set"), "{from_flag:?}");

        let from_env = Process::start(millrace(&command).env("MILLRACE_LIMITS__HEARTBEET", "5s")).finish();
        assert_eq!(from_env.code, EXIT_CONFIG, "{from_env:?}");
        assert!(from_env.err.contains("env MILLRACE_LIMITS__HEARTBEET"), "{from_env:?}");
    }
}

#[test]
fn a_bad_value_is_refused_with_what_it_may_be() {
    for (setting, says) in [
        ("engine.url=postgres", "memory"),
        ("limits.heartbeat=soon", "limits.heartbeat"),
        ("server.udp=here", "HOST:PORT"),
        ("server.listen=8080", "server.listen"),
        ("log.format=xml", "json"),
        ("log.level=inof", "debug"),
    ] {
        let ended = run(&["config", "check", "--set", setting]);
        assert_eq!(ended.code, EXIT_CONFIG, "{setting}: {ended:?}");
        assert!(ended.err.contains(says), "{setting}: {ended:?}");
    }
    let missing = run(&["config", "check", "--config", "/nowhere/millrace.toml"]);
    assert!(missing.code == EXIT_CONFIG && missing.err.contains("/nowhere/millrace.toml"), "{missing:?}");
    let no_flag = run(&["serve", "--port", "1"]);
    assert!(no_flag.code == Some(2) && no_flag.err.contains("--port"), "{no_flag:?}");
}

#[test]
fn the_printed_defaults_are_a_good_file_and_the_document() {
    let printed = run(&["config", "default"]);
    assert_eq!(printed.code, Some(0));
    let path = file("defaults.toml", &printed.out);
    let checked = run(&["config", "check", "--config", &path]);
    assert_eq!((checked.code, checked.out.as_str()), (Some(0), "good\n"), "{checked:?}");

    let document = std::fs::read_to_string(repository("docs/config.md")).expect("the document is there");
    let block = document.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next());
    assert_eq!(block, Some(printed.out.as_str()), "put what `millrace config default` prints into docs/config.md");
}

#[test]
fn flags_win_over_the_environment_over_the_file() {
    let text = "[server]\nshards = 2\n[limits]\nheartbeat = \"5s\"\ngrace = \"3s\"\nhold_max = \"7s\"\n";
    let path = file("layers.toml", text);
    let flags = ["config", "effective", "--config", &path, "--set", "limits.hold_max=9s", "--shards", "4"];
    let mut command = millrace(&flags);
    command
        .env("MILLRACE_LIMITS__GRACE", "4s")
        .env("MILLRACE_LIMITS__HOLD_MAX", "8s")
        .env("MILLRACE_SERVER__SHARDS", "3");
    let ended = Process::start(&mut command).finish();
    let line =
        |key: &str| ended.out.lines().find(|line| line.starts_with(key)).unwrap_or_else(|| panic!("{key}: {ended:?}"));
    for (key, value, from) in [
        ("body_timeout ", "\"30s\"", "# default"),
        ("heartbeat ", "\"5s\"", "# file "),
        ("grace ", "\"4s\"", "# env MILLRACE_LIMITS__GRACE"),
        ("hold_max ", "\"9s\"", "# --set"),
        ("shards ", "4", "# --shards"),
    ] {
        assert!(line(key).contains(value) && line(key).contains(from), "{}", line(key));
    }
}
