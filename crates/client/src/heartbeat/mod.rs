//! Finds the longest heartbeat interval that keeps a connection alive in the network of this machine.
//!
//! Middleboxes such as NATs drop connections that are silent for too long, and notify neither end. [`search`] opens
//! sessions that ask the server for heartbeats of different intervals. If the first heartbeat of a session arrives, the
//! network has kept the connection through a silence of this length.
//!
//! - [`finder`]: decides which silences to probe, without I/O
//! - [`probe`]: one session

mod finder;
mod probe;

use std::time::Duration;

use futures_util::{StreamExt, stream::FuturesUnordered};

pub use finder::{Finder, Found, Limits, LimitsError};
pub use probe::Measured;

use crate::server::Server;
use probe::Probe;

/// Connection attempts of one probe, and the pause between them.
const ATTEMPTS: u32 = 3;
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Why a search ended without a result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeartbeatError {
    /// A connection failed, also when it was tried again. This is no result: the network may be down.
    #[error("a connection failed: {0}")]
    Connect(String),
    /// The server refuses sessions.
    #[error("{0}")]
    Refused(String),
    #[error("{0}")]
    Limits(#[from] LimitsError),
}

/// Progress of a search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Connections with these silences were opened.
    Round(Vec<Duration>),
    Measured(Measured),
}

/// Returns the interval that the server grants to a client that asks for this one.
///
/// Errors: see [`HeartbeatError`].
pub async fn granted(server: &Server, interval: Duration) -> Result<Duration, HeartbeatError> {
    Ok(open(server, interval).await?.granted)
}

/// Probes until the finder is content. The finder keeps the results, also if this future is dropped.
///
/// Duration: up to six times the longest silence; about three times the silence that the network permits, because a
/// connection that dies ends the probes of longer silences. Each probe needs one connection.
///
/// Errors: see [`HeartbeatError`].
pub async fn search(
    server: &Server,
    finder: &mut Finder,
    report: &mut dyn FnMut(Progress),
) -> Result<(), HeartbeatError> {
    loop {
        let round = finder.next_round();
        if round.is_empty() {
            return Ok(());
        }
        report(Progress::Round(round.clone()));
        let mut left = round.clone();
        let mut shortest_dead = Duration::MAX;
        let mut probes: FuturesUnordered<_> = round.into_iter().map(|silence| probe(server, silence)).collect();
        while left.iter().any(|silence| *silence < shortest_dead) {
            let Some((silence, measured)) = probes.next().await else { break };
            let measured = measured?;
            left.retain(|other| *other != silence);
            if !measured.has_survived {
                shortest_dead = shortest_dead.min(silence);
            }
            finder.record(silence, measured.silence, measured.has_survived);
            report(Progress::Measured(measured));
        }
    }
}

async fn probe(server: &Server, silence: Duration) -> (Duration, Result<Measured, HeartbeatError>) {
    let measured = async { open(server, silence).await?.run().await };
    (silence, measured.await)
}

async fn open(server: &Server, interval: Duration) -> Result<Probe, HeartbeatError> {
    let mut attempt = 1;
    loop {
        match Probe::open(server, interval).await {
            Err(HeartbeatError::Connect(_)) if attempt < ATTEMPTS => attempt += 1,
            opened => return opened,
        }
        tokio::time::sleep(RETRY_AFTER).await;
    }
}
