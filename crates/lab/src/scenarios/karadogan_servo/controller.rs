//! The controller of the loop: it switches the lamp on and off at fixed times, and waits until the sensor reports the
//! change.

use std::{
    io::{Read, Write},
    net::{Shutdown, SocketAddr, TcpStream},
    sync::mpsc::{self, Receiver, RecvTimeoutError, Sender},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use serde::Deserialize;

use crate::{
    load::{
        Dialect, Event, Role,
        http::{exchange, post},
    },
    targets::{ClientOptions, Transport, find},
};

/// Time for the kit to connect, and for the sensor to report a lamp that was just switched.
const START_MAX: Duration = Duration::from_secs(20);
/// Time without a change after which a reading counts as steady.
const STEADY: Duration = Duration::from_millis(800);
/// Largest random delay of a step: two measurements of the sensor.
const JITTER: Duration = Duration::from_millis(40);
const PATIENCE: Duration = Duration::from_secs(5);
/// Least difference of the readings with the lamp off and on, of 1023.
const CONTRAST_MIN: u16 = 100;

pub struct Plan {
    pub steps: u32,
    /// Time between two steps. Each step is up to [`JITTER`] late at random, so that it is not in phase with the
    /// measurements of the sensor.
    pub every: Duration,
    pub seed: u64,
    /// Prefix of the kit's channels.
    pub name: &'static str,
}

/// One change of the lamp.
pub struct Step {
    /// Time from the due time of the change until the controller had a reading that shows it. `None`: no reading
    /// before the next step.
    pub latency: Option<Duration>,
    /// How often the readings went from one side of the threshold to the other. 1 is right.
    pub changes: u32,
    /// Time from the due time until the change was published.
    pub late: Duration,
}

/// A reading of the sensor, and when it arrived.
type Reading = (Instant, u16);

/// Runs all steps. `server` is the address for the controller.
///
/// Errors: the kit does not report, its sensor does not see its lamp, or the server refuses a request.
pub fn run(server: SocketAddr, plan: &Plan, go_on: &dyn Fn() -> anyhow::Result<()>) -> anyhow::Result<Vec<Step>> {
    let mut publisher = TcpStream::connect(server)?;
    publisher.set_nodelay(true)?;
    publisher.set_read_timeout(Some(PATIENCE))?;
    let mut switch = |is_on: bool| publish(&mut publisher, plan.name, is_on);
    let (socket, readings) = subscribe(server, &format!("{}/light", plan.name))?;
    let result = (|| -> anyhow::Result<Vec<Step>> {
        switch(true)?;
        let on = steady(&readings).context("the sensor reports nothing with the lamp on")?;
        switch(false)?;
        let off = steady(&readings).context("the sensor reports nothing with the lamp off")?;
        ensure!(on > off + CONTRAST_MIN, "the sensor reports {on} with the lamp on, and {off} with the lamp off");
        let mut threshold = Threshold { level: off + (on - off) / 2, is_above: false };
        let mut random = Pcg64Mcg::seed_from_u64(plan.seed);
        let start = Instant::now();
        let mut steps = Vec::new();
        for step in 0..plan.steps {
            go_on()?;
            let due = start + plan.every * step + JITTER.mul_f64(random.random());
            let end = start + plan.every * (step + 1);
            thread::sleep(due.saturating_duration_since(Instant::now()));
            switch(step % 2 == 0)?;
            let late = due.elapsed();
            let (mut latency, mut changes) = (None, 0);
            while let Some((at, raw)) = before(&readings, end)? {
                if threshold.crosses(raw) {
                    changes += 1;
                    latency.get_or_insert(at.saturating_duration_since(due));
                }
            }
            steps.push(Step { latency, changes, late });
        }
        Ok(steps)
    })();
    // This ends the thread of the subscription.
    let _ = socket.shutdown(Shutdown::Both);
    result
}

/// Which side of a level the readings are on.
struct Threshold {
    level: u16,
    is_above: bool,
}

impl Threshold {
    /// Returns true if a reading is on the other side than the one before.
    fn crosses(&mut self, raw: u16) -> bool {
        let is_above = raw > self.level;
        std::mem::replace(&mut self.is_above, is_above) != is_above
    }
}

fn publish(stream: &mut TcpStream, name: &str, is_on: bool) -> anyhow::Result<()> {
    let level = if is_on { 15 } else { 0 };
    let (body, mut out) = (format!(r#"{{"a":[{level},{level},{level}]}}"#), Vec::new());
    post(&format!("/v1/channels/{name}/led"), "Content-Type: application/json\r\n", body.as_bytes(), &mut out);
    exchange(stream, &out, |_| Ok(()))
}

/// Returns the reading that no longer changes.
fn steady(readings: &Receiver<Reading>) -> anyhow::Result<u16> {
    let (start, mut last) = (Instant::now(), None::<Reading>);
    while start.elapsed() < START_MAX {
        let wait = last.map_or(START_MAX, |_| STEADY);
        match readings.recv_timeout(wait) {
            Ok((at, raw)) if last.is_none_or(|(_, before)| before != raw) => last = Some((at, raw)),
            Ok((at, raw)) if last.is_some_and(|(since, _)| at.saturating_duration_since(since) >= STEADY) => {
                return Ok(raw);
            }
            Ok(_) => {}
            Err(RecvTimeoutError::Timeout) => {
                if let Some((_, raw)) = last {
                    return Ok(raw);
                }
            }
            Err(RecvTimeoutError::Disconnected) => bail!("the server closed the subscription"),
        }
    }
    bail!("no steady reading within {START_MAX:?}")
}

/// Returns the next reading that arrives before `end`.
fn before(readings: &Receiver<Reading>, end: Instant) -> anyhow::Result<Option<Reading>> {
    match readings.recv_timeout(end.saturating_duration_since(Instant::now())) {
        Ok(reading) => Ok(Some(reading)),
        Err(RecvTimeoutError::Timeout) => Ok(None),
        Err(RecvTimeoutError::Disconnected) => bail!("the server closed the subscription"),
    }
}

/// Subscribes to the readings of the sensor. A thread receives them until the socket is closed.
fn subscribe(server: SocketAddr, channel: &str) -> anyhow::Result<(TcpStream, Receiver<Reading>)> {
    let options = ClientOptions { role: Role::Subscriber, channel, poll_every: PATIENCE };
    let dialect = find("millrace")?.dialect(Transport::WebSocket, &options);
    let socket = TcpStream::connect(server)?;
    socket.set_nodelay(true)?;
    let (send, readings) = mpsc::channel();
    let connection = socket.try_clone()?;
    thread::Builder::new().name("sensor".into()).spawn(move || receive(connection, dialect, &send))?;
    Ok((socket, readings))
}

fn receive(mut socket: TcpStream, mut dialect: Box<dyn Dialect>, send: &Sender<Reading>) -> anyhow::Result<()> {
    #[derive(Deserialize)]
    struct Light {
        raw: u16,
    }
    let start = Instant::now();
    let (mut bytes, mut partial, mut out) = ([0; 16 * 1024], Vec::new(), Vec::new());
    dialect.open(&mut out);
    loop {
        socket.write_all(&std::mem::take(&mut out))?;
        let length = socket.read(&mut bytes)?;
        ensure!(length > 0, "the connection ended");
        let now = Instant::now();
        partial.extend_from_slice(&bytes[..length]);
        let used = dialect.feed(&partial, start.elapsed().as_nanos() as u64, &mut out, &mut |event| {
            if let Event::Message(payload) = event
                && let Ok(Light { raw }) = serde_json::from_slice(payload)
            {
                // After the last step, there is no receiver.
                let _ = send.send((now, raw));
            }
        })?;
        partial.drain(..used);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threshold_counts_each_change_once() {
        let mut threshold = Threshold { level: 500, is_above: false };
        let changes = [400, 500, 501, 700, 499, 400, 800].map(|raw| threshold.crosses(raw));
        assert_eq!(changes, [false, false, true, false, true, false, true]);
    }
}
