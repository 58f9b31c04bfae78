//! Signals that stop a run.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::Relaxed},
};

use tokio::signal::unix::{SignalKind, signal};

use super::exit::EXIT_INTERRUPTED;

/// Returns a flag that SIGINT or SIGTERM sets; the run then keeps its recording and stops its servers. A second signal
/// exits immediately.
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
                    std::process::exit(EXIT_INTERRUPTED.into());
                }
            }
        });
    })?;
    Ok(stop)
}
