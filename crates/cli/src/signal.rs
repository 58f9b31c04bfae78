//! Signals that end a command.

use tokio::signal::unix::{SignalKind, signal};

/// Returns when SIGINT or SIGTERM arrives.
pub async fn stop_signal() -> anyhow::Result<()> {
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    Ok(())
}
