//! Tests the help texts, and that no configuration input is silently ignored or misread.

use std::process::Stdio;

use millrace_server::Sources;

use crate::support::{Process, Server, file, millrace, repository, run};

/// Source: sysexits.h, EX_CONFIG.
const EXIT_CONFIG: Option<i32> = Some(78);

#[test]
fn every_help_text_has_an_example() {
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

/// A command whose output is cut off, as by `head`, does not panic and is not an error.
#[test]
fn closed_output_ends_a_command_quietly() {
    let key = ["token", "api-key", "--name", "billing"];
    for args in [&["token", "key"], &key[..], &["lab", "list"], &["config", "default"], &["simulate", "town"]] {
        let mut command = millrace(args);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the process starts");
        drop(child.stdout.take());
        let ended = child.wait_with_output().expect("it is our child");
        let error = String::from_utf8_lossy(&ended.stderr);
        assert_eq!((ended.status.code(), &*error), (Some(0), ""), "{args:?}");
    }
}

#[test]
fn unknown_key_is_code_78_and_named() {
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
fn invalid_value_error_lists_valid_values() {
    for (setting, says) in [
        ("engine.url=postgres", "sqlite:PATH"),
        ("engine.url=sqlite", "sqlite:PATH, for example"),
        (
            "limits.heartbeat=soon",
            "`limits.heartbeat = \"soon\"`: expected a duration with a unit, for example \"10s\"",
        ),
        ("limits.heartbeat=10", "expected a duration with a unit, for example \"10s\""),
        ("server.udp=here", "HOST:PORT"),
        ("server.listen=here", "`server.listen = \"here\"`: expected HOST:PORT"),
        ("server.shards=abc", "`server.shards`: expected a whole number"),
        ("server.behind_proxy=yes", "expected true or false"),
        ("limits=5", "is a section"),
        ("log.format=xml", "json"),
        ("log.level=inof", "debug"),
    ] {
        let ended = run(&["config", "check", "--set", setting]);
        assert_eq!(ended.code, EXIT_CONFIG, "{setting}: {ended:?}");
        assert!(ended.err.contains(says), "{setting}: {ended:?}");
    }
    let missing = run(&["config", "check", "--config", "/nowhere/millrace.toml"]);
    assert!(missing.code == EXIT_CONFIG && missing.err.contains("/nowhere/millrace.toml"), "{missing:?}");
    let letters = run(&["serve", "--shards", "abc"]);
    assert!(letters.code == Some(2) && letters.err.contains("expected a number from 0 to 1024"), "{letters:?}");
    let no_flag = run(&["serve", "--port", "1"]);
    assert!(no_flag.code == Some(2) && no_flag.err.contains("--port"), "{no_flag:?}");
}

#[test]
fn unknown_key_error_suggests_the_nearest() {
    for (key, nearest) in [
        ("limits.heartbeet", "the nearest is `limits.heartbeat`"),
        ("server.heartbeat", "the nearest is `limits.heartbeat`"),
        ("shards", "the nearest is `server.shards`"),
        ("auth.api_keys.billing.sha265", "unknown key"),
    ] {
        let refused = run(&["config", "check", "--set", &format!("{key}=1")]);
        assert_eq!(refused.code, EXIT_CONFIG, "{key}: {refused:?}");
        assert!(refused.err.contains(&format!("unknown key `{key}`")), "{key}: {refused:?}");
        assert!(refused.err.contains(nearest) && refused.err.lines().count() == 1, "{key}: {refused:?}");
    }
}

#[test]
fn no_variable_and_no_flag_is_ignored_silently() {
    let with = |name: &str, value: &str| Process::start(millrace(&["config", "check"]).env(name, value)).finish();
    for (name, nearest) in [
        ("MILLRACE_LIMITS_HEARTBEAT", "MILLRACE_LIMITS__HEARTBEAT"),
        ("MILLRACE_LISTEN", "MILLRACE_"),
        ("MILLRACE_TOKN", "MILLRACE_TOKEN"),
        ("MILLRACE_PORT", "MILLRACE_"),
        ("MILLRACE_LIMITS__HEARTBEET", "limits.heartbeat"),
    ] {
        let refused = with(name, "1");
        assert_eq!(refused.code, EXIT_CONFIG, "{name}: {refused:?}");
        assert!(refused.err.contains(&format!("env {name}: ")) && refused.err.contains(nearest), "{refused:?}");
    }
    // Variables that Kubernetes sets for a service of this name.
    for (name, value) in [
        ("MILLRACE_SERVICE_HOST", "10.0.0.1"),
        ("MILLRACE_SERVICE_PORT_HTTP", "8080"),
        ("MILLRACE_PORT", "tcp://10.0.0.1:8080"),
        ("MILLRACE_PORT_8080_TCP_ADDR", "10.0.0.1"),
        ("MILLRACE_CHAT_PORT_8080_TCP", "tcp://10.0.0.1:8080"),
        ("MILLRACE_TOKEN", "of a client"),
    ] {
        let taken = with(name, value);
        assert_eq!(taken.code, Some(0), "{name}: {taken:?}");
    }
    for (args, code, says) in [
        (&["config", "check", "--listen", "8080", "--set", "server.listen=9090"][..], 78, "--listen and by --set"),
        (&["config", "check", "--set", "tls.client_ca=ca.pem"], 78, "no effect without TLS"),
        (&["config", "check", "--set", "auth.issuer=me"], 78, "no effect without a key"),
        (&["config", "check", "--set", "admin.token=0123456789abcdef"], 78, "no effect without `admin.listen`"),
        (&["config", "check", "--tls-acme-accept-terms"], 78, "no effect without `tls.acme.domains`"),
        (&["sub", "a", "--interval", "1s"], 1, "no effect without --transport polling"),
        (&["gateway", "--window", "1s"], 1, "--mode multiplex"),
        (&["simulate", "fleet", "--to", "udp://127.0.0.1:1", "--token", "x"], 1, "datagrams carry no token"),
    ] {
        let refused = run(args);
        assert!(refused.code == Some(code) && refused.err.contains(says), "{args:?}: {refused:?}");
    }
}

/// Every variable that a document, a script or a test names is a setting or is in the list of other variables.
#[test]
fn every_documented_variable_is_known() {
    // These files name unknown variables on purpose.
    let wrong = ["crates/cli/tests/it/cli.rs", "crates/server/src/config/layers.rs"]
        .map(|path| repository(path).canonicalize().expect("the file is there"));
    let is_known = |name: &str| {
        let loaded = Sources::load(None, [(name.to_owned(), "x".to_owned())].into_iter(), []);
        let error = loaded.err().map(|error| error.to_string()).unwrap_or_default();
        !error.contains("unknown key") && !error.contains("no such variable")
    };
    let mut unknown = std::collections::BTreeSet::new();
    let mut named = 0;
    for path in crate::docs::sources().into_iter().filter(|path| !wrong.contains(path)) {
        let Ok(text) = std::fs::read_to_string(&path) else { continue };
        for (at, _) in text.match_indices("MILLRACE_") {
            let is_part = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
            let name = text[at..].split(|c| !is_part(c)).next().unwrap_or_default();
            // A program generates the rest of this name.
            let after = &text[at + name.len()..];
            let is_part_of_one = name.ends_with('_') || after.starts_with('{') || after.starts_with("${");
            named += 1;
            if !is_part_of_one && name != "MILLRACE_SECTION__KEY" && !is_known(name) {
                unknown.insert(format!("{name} in {}", path.display()));
            }
        }
    }
    assert!(named > 100, "only {named} variables were found");
    assert!(unknown.is_empty(), "{unknown:#?}");
}

#[test]
fn single_text_is_accepted_as_a_list() {
    let path = file("single.toml", "[auth]\nkeys = \"one.pub\"\n[namespaces.cars]\nanonymous = \"subscribe\"\n");
    let shown = run(&["config", "effective", "--config", &path, "--set", "server.hosts=millrace.test"]);
    assert_eq!(shown.code, Some(0), "{shown:?}");
    for line in ["keys = [\"one.pub\"]", "hosts = [\"millrace.test\"]"] {
        assert!(shown.out.contains(line), "{line}: {shown:?}");
    }
}

#[test]
fn duration_without_unit_error_has_its_line() {
    let path = file("duration.toml", "[limits]\ngrace = \"3s\"\nheartbeat = 10\n");
    let refused = run(&["config", "check", "--config", &path]);
    assert_eq!(refused.code, EXIT_CONFIG, "{refused:?}");
    let says = "duration.toml: line 3, column 13: `limits.heartbeat = 10`: expected a duration with a unit, for example \"10s\"";
    assert!(refused.err.contains(says), "{refused:?}");
}

#[test]
fn a_port_alone_and_localhost_are_addresses() {
    for listen in ["localhost:0", "0"] {
        let server = Server::start_from(&mut millrace(&["serve", "--listen", listen, "--shards", "1"]));
        assert!(server.url.starts_with("http://127.0.0.1:"), "{listen}: {}", server.url);
    }
    let refused = run(&["serve", "--listen", "example.org:80"]);
    assert!(refused.code == EXIT_CONFIG && refused.err.contains("--listen: "), "{refused:?}");
    assert!(refused.err.contains("for example 127.0.0.1:8080"), "{refused:?}");
}

#[test]
fn printed_defaults_are_valid_and_documented() {
    let printed = run(&["config", "default"]);
    assert_eq!(printed.code, Some(0));
    let path = file("defaults.toml", &printed.out);
    let checked = run(&["config", "check", "--config", &path]);
    assert_eq!((checked.code, checked.out.as_str()), (Some(0), "valid\n"), "{checked:?}");

    let document = std::fs::read_to_string(repository("docs/reference/config.md")).expect("the document is there");
    let block = document.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next());
    assert_eq!(
        block,
        Some(printed.out.as_str()),
        "put what `millrace config default` prints into docs/reference/config.md"
    );
}

#[test]
fn flags_override_environment_overrides_file() {
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
