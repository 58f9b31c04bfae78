//! `millrace gateway --serial`: a kit between a serial device and the channels of a server.

use std::{cell::RefCell, path::Path};

use millrace_client::server::Server;
use millrace_earl::Driver;
use millrace_gateway::kit::{Channels, Reports, operate};
use tokio::sync::Notify;

use crate::{login::Login, output, retry::Retry, signal::stop_signal, trust::Trust};

/// Runs until a signal, or until the server refuses or does not answer.
pub async fn run(
    path: &Path,
    name: String,
    to: Server,
    retry: Retry,
    login: Login,
    trust: &Trust,
) -> anyhow::Result<()> {
    trust.decide()?;
    let server = to.with_token(login.token()?);
    output::note(format_args!(
        "{}: commands from {name}/led, reports to {name}/state and {name}/light of {}; press Ctrl-C to stop",
        path.display(),
        server.shown()
    ));
    let (driver, wake, reports) = (RefCell::new(Driver::default()), Notify::new(), Reports::default());
    let channels = Channels { server, name, retry_for: retry.retry_for, note: |line| output::note(line) };
    let handle_command = |json: &[u8]| {
        driver.borrow_mut().handle_command(json);
        wake.notify_one();
    };
    tokio::select! {
        ended = channels.serve(&reports, handle_command) => Ok(ended?),
        never = operate(&driver, &wake, path, &reports, |line| output::note(line)) => match never {},
        stopped = stop_signal() => stopped,
    }
}
