//! Runs the tour of README.md: every marked `sh` block, in order, against one server.
//!
//! Variables that a block sets are available in later blocks, as in one shell. One of these marker lines stands above
//! each block. The `text` block below a block, if any, is its expected output:
//! - `<!-- run -->`: the block must end by itself, with success.
//! - `<!-- run, then Ctrl-C -->`: the block runs forever; the test stops it after the expected output.

use std::process::Command;

use crate::support::{Process, Server, file, repository};

const RUN: &str = "<!-- run -->";
const RUN_FOR_EVER: &str = "<!-- run, then Ctrl-C -->";
/// Server address and epoch that the README uses as placeholders.
const URL: &str = "http://127.0.0.1:8080";
const EPOCH: &str = "5f0c12ab:";

struct Block {
    script: String,
    prints: Option<String>,
    ends: bool,
}

#[test]
fn the_tour_prints_what_it_promises() {
    let readme = std::fs::read_to_string(repository("README.md")).expect("the README is there");
    let blocks = blocks(&readme);
    assert!(blocks.len() >= 8, "only {} blocks of the README are run", blocks.len());
    let server = Server::start(&["--shards", "2"]);
    let variables = file("tour-variables", "");
    let answer = server.post("/v1/channels/epoch", "1").body;
    let epoch =
        answer.split_once(":\"").and_then(|(_, position)| position.split_inclusive(':').next()).expect("a position");
    for block in &blocks {
        // `millrace` is the binary under test; `--to` selects the server of this test.
        let prelude = format!("millrace() {{ {} \"$@\" --to {URL}; }}\n", env!("CARGO_BIN_EXE_millrace"));
        assert!(!block.script.contains(EPOCH), "pasted, it asks for the past of another server:\n{}", block.script);
        let before = std::fs::read_to_string(&variables).expect("it was just written");
        let after = format!("{{ declare -p position lobby prices || true; }} >'{variables}' 2>/dev/null\n");
        let script = (prelude + &before + &block.script + &after).replace(URL, &server.url);
        let mut shell = Process::start(Command::new("bash").args(["-e", "-u", "-o", "pipefail", "-c", &script]));
        let printed = if block.ends {
            let ended = shell.finish();
            assert_eq!(ended.code, Some(0), "{}\n{ended:?}", block.script);
            ended.out
        } else {
            let lines = block.prints.iter().flat_map(|text| text.lines());
            lines.map(|_| shell.out.next().unwrap_or_default() + "\n").collect()
        };
        let printed = normal(&printed.replace(epoch, EPOCH));
        match &block.prints {
            Some(prints) => assert_eq!(printed, normal(prints), "of\n{}", block.script),
            None => assert!(!printed.is_empty(), "nothing is printed by\n{}", block.script),
        }
    }
}

/// Runs the README's three commands for a server that other machines can reach. Only the port and the address are
/// replaced.
#[test]
fn three_commands_start_a_secured_server() {
    let readme = std::fs::read_to_string(repository("README.md")).expect("the README is there");
    let (_, rest) = readme.split_once("<!-- secure -->\n```sh\n").expect("the commands are marked");
    let commands: Vec<&str> = rest.lines().take_while(|line| *line != "```").collect();
    let [key, serve, link] = commands[..] else { panic!("three commands: {commands:?}") };
    let home = tempfile::tempdir().expect("a folder");
    let shell = |line: &str| {
        let prelude = format!("millrace() {{ exec {} \"$@\"; }}\n", env!("CARGO_BIN_EXE_millrace"));
        let mut command = Command::new("bash");
        command.args(["-e", "-u", "-o", "pipefail", "-c", &(prelude + line)]);
        command.current_dir(home.path()).env("HOME", home.path()).env_remove("XDG_DATA_HOME");
        Process::start(&mut command)
    };
    assert_eq!(shell(key).finish().code, Some(0), "{key}");
    // The server runs in the foreground of its own shell, so that it ends with this test.
    let mut server = shell(&serve.replace(":8443", ":0").replace(" &", ""));
    let url = server.out.wait_for("listening on ");
    let port = url.rsplit(':').next().expect("a port");
    let printed = shell(&link.replace(":8443", &format!(":{port}"))).finish();
    assert_eq!(printed.code, Some(0), "{printed:?}");
    let (page, token) = printed.out.trim().split_once("#token=").expect("a token behind the #");
    assert!(page.starts_with("https://") && page.ends_with(&format!(":{port}/carcare")), "{page}");
    let ca = home.path().join(".local/share/millrace/tls/ca.pem");
    let status = |path: &str, header: &str| {
        let mut curl = Command::new("curl");
        curl.args(["-s", "-o", "/dev/null", "-w", "%{http_code}", "-H", header, "--cacert"]).arg(&ca);
        let ended = Process::start(curl.arg(format!("https://127.0.0.1:{port}{path}"))).finish();
        assert_eq!(ended.code, Some(0), "curl trusts what the server shows: {ended:?}");
        ended.out.trim().to_owned()
    };
    assert_eq!(status("/carcare", "Accept: text/html"), "200");
    assert_eq!(status("/v1/channels/fleet", "Accept: */*"), "401");
    let bearer = format!("Authorization: Bearer {token}");
    assert_eq!(status("/v1/channels/fleet?since=earliest", &bearer), "204");
    assert_eq!(status("/metrics", &bearer), "404");
}

/// Without `make install`, the shell does not find the tour's `millrace` after `make run`.
#[test]
fn make_install_copies_the_binary() {
    let folder = tempfile::tempdir().expect("a folder");
    let (binary, bindir) = (env!("CARGO_BIN_EXE_millrace"), folder.path().join("bin"));
    let mut make = Command::new("make");
    // `--old-file=build` prevents a build: the binary already exists.
    make.args(["--old-file=build", "install", &format!("BIN={binary}"), &format!("BINDIR={}", bindir.display())]);
    let ended = Process::start(make.current_dir(repository(""))).finish();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.out.contains("is not on the PATH"), "{ended:?}");
    let version = Process::start(Command::new(bindir.join("millrace")).arg("--version")).finish();
    assert!(version.code == Some(0) && version.out.starts_with("millrace"), "{version:?}");
}

#[test]
fn every_shell_block_of_the_tour_is_run() {
    let readme = std::fs::read_to_string(repository("README.md")).expect("the README is there");
    let tour = readme.split("\n## ").find(|section| section.starts_with("A tour")).expect("there is a tour");
    assert_eq!(tour.matches("```sh\n").count(), blocks(tour).len());
}

fn blocks(text: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        if line == "```text" {
            let inside = fenced(&mut lines);
            blocks.last_mut().expect("what is printed stands below what prints it").prints = Some(inside);
        } else if line == RUN || line == RUN_FOR_EVER {
            assert_eq!(lines.next(), Some("```sh"), "below {line}");
            blocks.push(Block { script: fenced(&mut lines), prints: None, ends: line == RUN });
        }
    }
    for block in &blocks {
        assert!(block.ends || block.prints.is_some(), "what ends it?\n{}", block.script);
    }
    blocks
}

fn fenced<'a>(lines: &mut impl Iterator<Item = &'a str>) -> String {
    lines.take_while(|line| *line != "```").map(|line| format!("{line}\n")).collect()
}

/// Normalizes output: times (milliseconds since 1970) differ between runs, and trailing white space may differ.
fn normal(text: &str) -> String {
    let mut normal = String::new();
    let mut digits = String::new();
    for c in text.trim_end().chars().chain(['\n']) {
        if c.is_ascii_digit() {
            digits.push(c);
            continue;
        }
        normal += if digits.len() == 13 { "TIME" } else { &digits };
        digits.clear();
        normal.push(c);
    }
    normal
}
