//! HAProxy's agent check: one line per connection, which says whether this node takes new clients, and how many beside others.
//!
//! `ready up 100%`, less while shards are congested, and `drain` once the server goes down. Source: HAProxy configuration manual 2.6,
//! section 5.2, "agent-check".

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use millrace_node::Router;
use millrace_transport::admin::cannot_accept;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

/// Between two looks at how congested the shards are.
const LOOK: Duration = Duration::from_millis(100);
/// What one look counts: an average over the last two seconds or so.
const SHARE: f64 = 0.05;
/// A congested node is still asked a little, or nobody would see that it has recovered.
const WEIGHT_MIN: f64 = 10.0;
/// Most time that a balancer has to take its line.
const PATIENCE: Duration = Duration::from_secs(1);

/// Answers until the task is dropped. Must run inside a `LocalRuntime` or a `LocalSet`.
pub async fn serve(listener: TcpListener, ready: Arc<AtomicBool>, router: Arc<Router>) {
    let mut congestion = 0.0;
    let mut looks = tokio::time::interval(LOOK);
    looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = looks.tick() => congestion = averaged(congestion, router.congested_share()),
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => drop(tokio::task::spawn_local(answer(stream, line(ready.load(Relaxed), congestion)))),
                Err(error) => {
                    cannot_accept(&error, "an agent check");
                    tokio::time::sleep(LOOK).await;
                }
            },
        }
    }
}

fn averaged(congestion: f64, now: f64) -> f64 {
    congestion + SHARE * (now - congestion)
}

/// In steps of ten, so that a balancer is not busy with small changes.
fn line(ready: bool, congestion: f64) -> String {
    if !ready {
        return "drain\n".into();
    }
    let weight = (100.0 - (100.0 - WEIGHT_MIN) * congestion) / 10.0;
    format!("ready up {}%\n", weight.round() as u32 * 10)
}

async fn answer(mut stream: TcpStream, line: String) {
    let told = async {
        stream.write_all(line.as_bytes()).await?;
        stream.shutdown().await?;
        // What it may have said (`agent-send`) is read, or closing would reset the connection and lose the line.
        let mut said = [0; 256];
        while stream.read(&mut said).await? > 0 {}
        std::io::Result::Ok(())
    };
    let _ = tokio::time::timeout(PATIENCE, told).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_weight_falls_while_shards_are_congested_and_rises_again() {
        assert_eq!((line(true, 0.0).as_str(), line(true, 1.0).as_str()), ("ready up 100%\n", "ready up 10%\n"));
        assert_eq!((line(true, 0.5).as_str(), line(false, 0.0).as_str()), ("ready up 60%\n", "drain\n"));
        let mut congestion = 0.0;
        (0..3).for_each(|_| congestion = averaged(congestion, 1.0));
        assert_eq!(line(true, congestion), "ready up 90%\n", "a moment is no state");
        (0..100).for_each(|_| congestion = averaged(congestion, 1.0));
        assert_eq!(line(true, congestion), "ready up 10%\n");
        (0..100).for_each(|_| congestion = averaged(congestion, 0.0));
        assert_eq!(line(true, congestion), "ready up 100%\n");
    }
}
