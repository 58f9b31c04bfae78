//! HAProxy's agent check: one line per connection, with this node's readiness and its weight among the nodes.
//!
//! The line is `ready up 100%`, a lower weight while shards are congested, and `drain` once the server drains. Source:
//! HAProxy configuration manual 2.6, section 5.2, "agent-check".

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use millrace_node::Router;
use millrace_transport::cannot_accept;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

/// Interval between two samples of the shards' congestion, and the pause after a failed accept.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(100);
/// Weight of a new sample in the moving average, which covers about the last two seconds.
const SHARE: f64 = 0.05;
/// Minimum weight in percent. A congested node still gets a few clients, so that its recovery is noticed.
const WEIGHT_MIN: f64 = 10.0;
/// Timeout for a balancer to read its line.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// Answers agent checks until the task is dropped, or until `handed_over` completes because another process accepts
/// them. Must run inside a `LocalRuntime` or a `LocalSet`.
pub async fn serve(
    listener: TcpListener,
    ready: Arc<AtomicBool>,
    router: Arc<Router>,
    handed_over: impl Future<Output = ()>,
) {
    tokio::pin!(handed_over);
    let mut congestion = 0.0;
    let mut samples = tokio::time::interval(SAMPLE_INTERVAL);
    samples.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = &mut handed_over => return,
            _ = samples.tick() => congestion = averaged(congestion, router.congested_share()),
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => drop(tokio::task::spawn_local(answer(stream, line(ready.load(Relaxed), congestion)))),
                Err(error) => {
                    cannot_accept(&error, "an agent check");
                    tokio::time::sleep(SAMPLE_INTERVAL).await;
                }
            },
        }
    }
}

fn averaged(congestion: f64, now: f64) -> f64 {
    congestion + SHARE * (now - congestion)
}

/// Returns the line for a balancer. The weight has steps of ten percent, so that small changes do not keep the balancer
/// busy.
fn line(ready: bool, congestion: f64) -> String {
    if !ready {
        return "drain\n".into();
    }
    let weight = (100.0 - (100.0 - WEIGHT_MIN) * congestion) / 10.0;
    format!("ready up {}%\n", weight.round() as u32 * 10)
}

async fn answer(mut stream: TcpStream, line: String) {
    let answered = async {
        stream.write_all(line.as_bytes()).await?;
        stream.shutdown().await?;
        // Read what the balancer sent (`agent-send`). Otherwise closing would reset the connection and lose the line.
        let mut ignored = [0; 256];
        while stream.read(&mut ignored).await? > 0 {}
        std::io::Result::Ok(())
    };
    let _ = tokio::time::timeout(ANSWER_TIMEOUT, answered).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weight_follows_congestion_of_shards() {
        assert_eq!((line(true, 0.0).as_str(), line(true, 1.0).as_str()), ("ready up 100%\n", "ready up 10%\n"));
        assert_eq!((line(true, 0.5).as_str(), line(false, 0.0).as_str()), ("ready up 60%\n", "drain\n"));
        let mut congestion = 0.0;
        (0..3).for_each(|_| congestion = averaged(congestion, 1.0));
        assert_eq!(line(true, congestion), "ready up 90%\n", "a short congestion changes little");
        (0..100).for_each(|_| congestion = averaged(congestion, 1.0));
        assert_eq!(line(true, congestion), "ready up 10%\n");
        (0..100).for_each(|_| congestion = averaged(congestion, 0.0));
        assert_eq!(line(true, congestion), "ready up 100%\n");
    }
}
