//! A kit on standard input and output: one JSON object per line.

use std::{
    cell::RefCell,
    io::{self, BufRead as _, Read as _},
};

use millrace_simulate::earl::{Kit, Report};
use tokio::sync::mpsc;

use super::real_time::operate;
use crate::{output, signal::stop_signal};

/// Longest line that is read, in bytes. A command is shorter.
const LINE_BYTES_MAX: u64 = 64 * 1024;
/// Lines that wait for the kit. The reader then pauses.
const LINES_MAX: usize = 64;

/// Runs until the end of standard input, or until a signal.
pub async fn run(kit: Kit) -> anyhow::Result<()> {
    let kit = RefCell::new(kit);
    let report = |report| {
        match report {
            Report::State(json) => output::line(format_args!("{{\"state\":{json}}}"))?,
            Report::Light(json) => output::line(format_args!("{{\"light\":{json}}}"))?,
        }
        Ok(())
    };
    let (sender, mut lines) = mpsc::channel(LINES_MAX);
    // A thread of its own: a read of standard input cannot be cancelled, and the end of the runtime would wait for it.
    std::thread::spawn(move || read(&sender));
    let handle_commands = async {
        while let Some(line) = lines.recv().await {
            kit.borrow_mut().handle_command(line?.trim_ascii());
        }
        Ok(())
    };
    tokio::select! {
        ended = handle_commands => ended,
        ended = operate(&kit, report) => ended,
        stopped = stop_signal() => stopped,
    }
}

fn read(sender: &mpsc::Sender<io::Result<Vec<u8>>>) {
    let mut input = io::stdin().lock();
    loop {
        let mut line = Vec::new();
        let read = (&mut input).take(LINE_BYTES_MAX).read_until(b'\n', &mut line);
        if matches!(read, Ok(0)) || sender.blocking_send(read.map(|_| line)).is_err() {
            return;
        }
    }
}
