//! Millrace under test, as the lab starts it.

use millrace_lab::targets::{self, Options, Server};

/// Starts Millrace on these CPUs with this number of shards, and waits until it listens.
pub fn start(shards: usize, cpus: &[usize], arguments: &[&str]) -> anyhow::Result<Server> {
    let mut all = vec!["--shards".to_owned(), shards.to_string()];
    all.extend(arguments.iter().map(|argument| (*argument).to_owned()));
    let binary = Some(env!("CARGO_BIN_EXE_millrace").into());
    targets::find("millrace")?.start(&Options { cpus: cpus.to_vec(), binary, arguments: all, ..Options::default() })
}
