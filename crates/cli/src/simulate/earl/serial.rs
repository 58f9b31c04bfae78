//! The LED module on a pseudo terminal.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use millrace_earl::report::Lit;
use millrace_gateway::kit::Channels;
use millrace_simulate::earl::{Module, Terminal};
use tokio::sync::watch;

use super::real_time::ticks;
use crate::{output, signal::stop_signal};

/// Longest time between two reports of the lamps.
const LAMPS_EVERY: Duration = Duration::from_secs(1);
/// Least time between two reports of lamps that fade.
const LAMPS_PAUSE: Duration = Duration::from_millis(50);

/// Runs until a signal. `channels`: where the light of the lamps is published.
pub async fn run(module: Module, link: Option<PathBuf>, channels: Option<Channels>) -> anyhow::Result<()> {
    let terminal = Terminal::open(link)?;
    output::line(format_args!("serial connection at {}", terminal.path().display()))?;
    let lamps = watch::Sender::new(String::new());
    let publish = async {
        match &channels {
            Some(channels) => channels.publish("lamps", lamps.subscribe()).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        ended = operate(module, &terminal, &lamps) => ended,
        ended = publish => Ok(ended?),
        stopped = stop_signal() => stopped,
    }
}

/// Runs the module in real time.
async fn operate(mut module: Module, terminal: &Terminal, lamps: &watch::Sender<String>) -> anyhow::Result<()> {
    let (started, mut ticks) = (Instant::now(), ticks());
    let mut reported = (None, Duration::ZERO);
    loop {
        ticks.tick().await;
        module.write(&terminal.read()?);
        let now = started.elapsed();
        terminal.write(&module.advance(now)?)?;
        let lit = module.lamps();
        let pause = if reported.0 == Some(lit) { LAMPS_EVERY } else { LAMPS_PAUSE };
        if reported.0.is_none() || now >= reported.1 + pause {
            reported = (Some(lit), now);
            lamps.send_replace(serde_json::to_string(&Lit::new(lit))?);
        }
    }
}
