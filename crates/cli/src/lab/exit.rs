//! How a run ends: exit codes for scripts, and signals.

use std::{
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use millrace_lab::sweep::Verdict;
use tokio::signal::unix::{SignalKind, signal};

/// A service level was missed, or a check failed.
pub const MISSED: u8 = 1;
/// A run was invalid.
pub const INVALID: u8 = 2;
pub const ERROR: u8 = 3;
/// Source: the convention of shells, 128 + SIGINT.
pub const INTERRUPTED: u8 = 130;

/// Returns the exit code of a verdict. An invalid run cannot judge a service level, so it takes precedence.
pub fn code(verdict: &Verdict) -> ExitCode {
    match verdict {
        Verdict { invalid: 1.., .. } => ExitCode::from(INVALID),
        Verdict { missed: 1.., .. } => ExitCode::from(MISSED),
        _ => ExitCode::SUCCESS,
    }
}

/// Returns a flag that SIGINT or SIGTERM sets; the run then keeps its recording and stops its servers. A second signal exits
/// immediately.
pub fn stop_by_signal() -> anyhow::Result<Arc<AtomicBool>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let stop = Arc::new(AtomicBool::new(false));
    let signalled = Arc::clone(&stop);
    let (mut interrupt, mut terminate) = {
        let _inside = runtime.enter();
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?)
    };
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        runtime.block_on(async {
            loop {
                tokio::select! { _ = interrupt.recv() => {}, _ = terminate.recv() => {} }
                if signalled.swap(true, Relaxed) {
                    std::process::exit(INTERRUPTED.into());
                }
            }
        });
    })?;
    Ok(stop)
}
