//! `--supervised` of a run: progress as JSON lines for a program that has started the run, such as the server.

use std::{
    io::{self, Read as _},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
};

use millrace_lab::{
    report::live,
    sweep::{Event, View},
};
use serde_json::Value;

use crate::output::{self, OutputError};

/// Prints each event of a run as one line of JSON. Dropping it prints the last event.
pub struct Supervised(());

impl Supervised {
    /// Prints the first event.
    ///
    /// Errors: standard output is closed.
    pub fn start(first: &Value) -> Result<Self, OutputError> {
        output::line(first)?;
        Ok(Self(()))
    }
}

impl View for Supervised {
    fn show(&mut self, event: &Event<'_>) {
        print(&live::message(event));
    }
}

impl Drop for Supervised {
    fn drop(&mut self) {
        print(&live::finished());
    }
}

/// A supervisor that has ended reads nothing. The end of standard input stops the run then.
fn print(event: &Value) {
    let _ = output::line(event);
}

/// Sets `stop` at the end of standard input. The supervisor stops a run by closing its end of the pipe. The system
/// closes that end, too, when the supervisor is killed, so a run never outlives its supervisor.
///
/// Errors: the system refuses a thread.
pub fn stop_with_input(stop: Arc<AtomicBool>) -> io::Result<()> {
    let wait = move || {
        let mut ignored = [0; 1024];
        while io::stdin().read(&mut ignored).is_ok_and(|bytes| bytes > 0) {}
        stop.store(true, Relaxed);
    };
    thread::Builder::new().name("input".into()).spawn(wait).map(drop)
}
