//! Publishers that retry: each publication is sent with the same idempotency key until it is acknowledged. Faults do
//! not lower the publication rate.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    time::Duration,
};

use millrace_client::{clock::now_ms, publish::HttpPublisher, server::Server};
use serde::Deserialize;
use tokio::{task::JoinHandle, time::Instant};

use crate::{
    judge::{Id, Position},
    process::until,
};

/// Number of concurrent publishers per channel.
const PER_CHANNEL: usize = 2;

pub struct Load {
    pub channels: Vec<String>,
    state: Rc<State>,
    tasks: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct State {
    /// Publications scheduled at or after this time are not sent.
    end: Cell<Option<Instant>>,
    /// Channel index, position and publication of each acknowledgment.
    acknowledged: RefCell<Vec<(usize, Position, Id)>>,
    retries: Cell<u64>,
    errors: RefCell<Vec<String>>,
}

impl Load {
    /// Starts publishers with a total rate of `per_s` publications over `channels` channels. The tasks belong to the
    /// thread's `LocalSet`.
    pub fn start(server: &Server, channels: usize, per_s: f64) -> Self {
        let names: Vec<String> = (0..channels).map(channel_name).collect();
        let state = Rc::new(State::default());
        let interval = Duration::from_secs_f64((channels * PER_CHANNEL) as f64 / per_s);
        let task = |i: usize| {
            let path = format!("/v1/channels/{}", names[i / PER_CHANNEL]);
            // Start times are staggered, so that the load is even.
            let start = interval.mul_f64(i as f64 / (channels * PER_CHANNEL) as f64);
            tokio::task::spawn_local(publish(server.clone(), path, i, Instant::now() + start, interval, state.clone()))
        };
        let tasks = (0..channels * PER_CHANNEL).map(task).collect();
        Self { channels: names, state, tasks }
    }

    pub fn retries(&self) -> u64 {
        self.state.retries.get()
    }

    /// Waits up to `within` until all publications that are due now are acknowledged. Returns the acknowledged
    /// publications of each channel.
    ///
    /// Errors: the errors that publishers received.
    pub async fn stop(self, within: Duration) -> Result<Vec<Vec<(Position, Id)>>, Vec<String>> {
        self.state.end.set(Some(Instant::now()));
        until("publishers are answered", within, async || self.tasks.iter().all(JoinHandle::is_finished)).await;
        let errors = self.state.errors.take();
        if !errors.is_empty() {
            return Err(errors);
        }
        let mut channels = vec![Vec::new(); self.channels.len()];
        for (channel, position, id) in self.state.acknowledged.take() {
            channels[channel].push((position, id));
        }
        Ok(channels)
    }
}

/// Retry period of a publication. It is longer than any fault.
const RETRY_FOR: Duration = Duration::from_secs(60);

pub fn channel_name(i: usize) -> String {
    format!("load/{i}")
}

async fn publish(server: Server, path: String, publisher: usize, start: Instant, interval: Duration, state: Rc<State>) {
    #[derive(Deserialize)]
    struct Answer {
        position: String,
    }
    let mut http = HttpPublisher::new(RETRY_FOR, |_| {}).expect("a client");
    for number in 1.. {
        let due = start + interval * (number - 1);
        tokio::time::sleep_until(due).await;
        if state.end.get().is_some_and(|end| due >= end) {
            return;
        }
        let id = Id { publisher: publisher as u32, number };
        let due_ms = now_ms().saturating_sub(due.elapsed().as_millis() as u64);
        let body = format!(r#"{{"publisher":{publisher},"number":{number},"due":{due_ms}}}"#);
        let headers = [("Content-Type", "application/json")];
        let before = http.stats.retries;
        let answer = http.post(&server, &path, &headers, body.into_bytes(), |_| Ok(())).await;
        state.retries.set(state.retries.get() + http.stats.retries - before);
        match answer.map(|answer| serde_json::from_slice::<Answer>(&answer)) {
            Ok(Ok(answer)) => {
                let position = Position::parse(&answer.position);
                state.acknowledged.borrow_mut().push((publisher / PER_CHANNEL, position, id));
            }
            Ok(Err(error)) => return state.errors.borrow_mut().push(format!("{id}: {error}")),
            Err(error) => return state.errors.borrow_mut().push(format!("{id}: {error}")),
        }
    }
}
