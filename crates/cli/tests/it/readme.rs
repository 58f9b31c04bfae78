//! The tour of README.md, run as a newcomer would: every `sh` block that is marked, in order, against one server.
//!
//! A marked block stands below one of these lines, and what it prints is the `text` block below it, if there is one:
//! - `<!-- run -->`: it ends by itself, with success
//! - `<!-- run, then Ctrl-C -->`: it goes on for ever, and is ended once it has printed that much

use std::process::Command;

use crate::support::{Process, Server, repository};

const RUN: &str = "<!-- run -->";
const RUN_FOR_EVER: &str = "<!-- run, then Ctrl-C -->";
/// What the README has where a reader finds the address and the epoch of the own server.
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
    let answer = server.post("/v1/channels/epoch", "1").body;
    let epoch =
        answer.split_once(":\"").and_then(|(_, position)| position.split_inclusive(':').next()).expect("a position");
    for block in &blocks {
        // `millrace` is the binary under test, and asks this server.
        let prelude = format!("millrace() {{ {} \"$@\" --to {URL}; }}\n", env!("CARGO_BIN_EXE_millrace"));
        let script = (prelude + &block.script).replace(URL, &server.url).replace(EPOCH, epoch);
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

#[test]
fn no_shell_block_of_the_tour_is_left_out() {
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

/// Times (milliseconds since 1970) differ from run to run, and so does the white space at the end.
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
