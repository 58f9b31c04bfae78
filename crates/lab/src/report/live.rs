//! A page of a run as it goes, fed by our own server: it is started as any target, and told of each event and each second.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    sync::mpsc::{Receiver, SyncSender, sync_channel},
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::Context;
use serde_json::{Value, json};

use crate::{
    recording::PhaseName,
    sweep::{Event, View},
    targets::{self, Options, Server},
};

/// Where the page listens.
const CHANNEL: &str = "lab/live";
/// Events that wait to be published; the page is not worth holding up a run.
const WAITING_MAX: usize = 256;
const PATIENCE: Duration = Duration::from_secs(1);

/// A server with the page. Both end with this value.
pub struct Live {
    server: Server,
    feed: Option<SyncSender<Value>>,
    poster: Option<JoinHandle<()>>,
}

impl Live {
    /// Starts a server on a free port of loopback.
    ///
    /// Errors: there is no Millrace to start, or it does not start.
    pub fn start() -> anyhow::Result<Live> {
        let server = targets::find("millrace")?.start(&Options::default()).context("the live page needs a server")?;
        let (feed, events) = sync_channel(WAITING_MAX);
        let address = server.address;
        let poster = thread::Builder::new().name("live".into()).spawn(move || post_all(address, &events))?;
        Ok(Live { server, feed: Some(feed), poster: Some(poster) })
    }

    pub fn url(&self) -> String {
        format!("http://{}/lab", self.server.address)
    }
}

impl View for Live {
    fn tell(&mut self, event: &Event<'_>) {
        // A page that lags is not told this second.
        self.feed.iter().for_each(|feed| drop(feed.try_send(told(event))));
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.feed.iter().for_each(|feed| drop(feed.try_send(json!({ "is": "finished" }))));
        drop(self.feed.take());
        self.poster.take().into_iter().for_each(|poster| drop(poster.join()));
    }
}

/// What the page is told: `web/src/pages/lab/events.ts`.
fn told(event: &Event<'_>) -> Value {
    match event {
        Event::Said(text) => json!({ "is": "said", "text": text }),
        Event::Planned { runs, done, estimate_s } => {
            json!({ "is": "planned", "runs": runs, "done": done, "estimate_s": estimate_s })
        }
        Event::Begun { index, of, label, left_s } => {
            json!({ "is": "begun", "index": index, "of": of, "label": label, "left_s": left_s })
        }
        Event::Second(second) => json!({
            "is": "second",
            "at_s": second.at_s,
            "published": second.counts.sent,
            "delivered": second.counts.delivered,
            "p50_us": second.latency_us.quantile_us(0.5),
            "p99_us": second.latency_us.quantile_us(0.99),
            "server_cpu_cores": second.server_cpu_s,
            "generator_cpu_cores": second.generator_cpu_s,
            "server_memory_bytes": second.server_pss_bytes,
        }),
        Event::Ended { run, missed } => {
            let test = run.phase(PhaseName::Test);
            let quantile = |share| test.and_then(|test| test.latency_us.quantile_us(share));
            json!({
                "is": "ended",
                "target": run.target,
                "transport": run.transport,
                "load": run.load,
                "repeat": run.repeat,
                "delivered": test.map(|test| test.counts.delivered),
                "lost": test.map(|test| test.counts.lost),
                "p50_us": quantile(0.5),
                "p99_us": quantile(0.99),
                "is_valid": run.is_valid(),
                "missed": missed,
            })
        }
    }
}

fn post_all(address: SocketAddr, events: &Receiver<Value>) {
    for event in events {
        // The next one may get through.
        drop(post(address, &event.to_string()));
    }
}

/// One request on a connection of its own: there is one a second.
fn post(address: SocketAddr, body: &str) -> std::io::Result<()> {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let head = format!(
        "POST /v1/channels/{CHANNEL} HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(&[head.as_bytes(), body.as_bytes()].concat())?;
    // It is published once it is answered.
    stream.read_to_end(&mut Vec::new()).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        histogram::Histogram,
        recording::{Counts, Second},
    };

    #[test]
    fn a_second_is_told_small_and_in_the_words_of_the_page() {
        let mut latency_us = Histogram::default();
        (1..=100).for_each(|us| latency_us.record_us(us * 10));
        let counts = Counts { sent: 200, delivered: 100, ..Counts::default() };
        let second = Second { at_s: 3.0, counts, latency_us, server_pss_bytes: 4096, ..Second::default() };
        let told = told(&Event::Second(&second));
        assert_eq!((&told["p50_us"], &told["p99_us"]), (&json!(500), &json!(990)));
        assert_eq!((&told["delivered"], &told["server_memory_bytes"]), (&json!(100), &json!(4096)));
        assert!(told.to_string().len() < 400, "{told}");
    }
}
