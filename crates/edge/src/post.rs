//! Brings records to a server: over HTTP, retried until the server has each exactly once and in order, or over UDP, once.

use std::time::{Duration, Instant};

use serde::Deserialize;
use tokio::net::UdpSocket;

use crate::backoff::Backoff;
use crate::chance::Chance;
use crate::record::Record;
use crate::wire::{Problem, Server, body, cause};

/// Most records of one request; the server takes 1,000 lines.
const BATCH_MAX: usize = 500;
/// Attempts before a publisher gives up: at the longest about 40 s, on average 20 s.
const ATTEMPTS_MAX: u32 = 12;
const RETRY_BASE: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(5);
const ANSWER_TIME: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
pub enum PostError {
    #[error("{0}")]
    Address(String),
    /// The server will never take it.
    #[error("the server refuses a record: {0}")]
    Refused(Problem),
    #[error("gave up after {attempts} attempts: {last}")]
    GaveUp { attempts: u32, last: String },
    #[error("udp: {0}")]
    Udp(#[from] std::io::Error),
}

/// One request or datagram at a time, so a car's records never overtake each other.
pub struct Publisher {
    to: Target,
    backoff: Backoff,
    /// Differs from run to run, so that keys do, too.
    run: u64,
    requests: u64,
    pub stats: Stats,
}

enum Target {
    Http(Server, reqwest::Client),
    Udp(UdpSocket),
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Stats {
    /// Records the server has (UDP: handed to the network).
    pub sent: u64,
    pub retries: u64,
    /// Of the last request that was answered; none over UDP.
    pub round_trip: Option<Duration>,
}

impl Publisher {
    /// `to` is `http://HOST:PORT` or `udp://HOST:PORT`. Connects when the first record is sent.
    pub async fn new(to: &str) -> Result<Self, PostError> {
        let to = match to.strip_prefix("udp://") {
            Some(address) => Target::Udp(udp(address).await?),
            None => Target::Http(Server::parse(to).map_err(PostError::Address)?, client()?),
        };
        let mut chance = Chance::from_system();
        let run = chance.bits();
        Ok(Self { to, backoff: Backoff::new(RETRY_BASE, RETRY_MAX, chance), run, requests: 0, stats: Stats::default() })
    }

    /// Returns when the server has every record (UDP: when each is on its way).
    ///
    /// Errors: [`PostError::Refused`] and [`PostError::GaveUp`]; the records before may have arrived.
    pub async fn send(&mut self, records: &[Record]) -> Result<(), PostError> {
        for batch in batches(records) {
            match &self.to {
                Target::Udp(socket) => {
                    for record in batch {
                        socket.send(json(record).as_bytes()).await?;
                        self.stats.sent += 1;
                    }
                }
                Target::Http(..) => self.post(batch).await?,
            }
        }
        Ok(())
    }

    /// Sends one batch until it is taken. The key makes the server answer a repeated batch, or any line of it, as it did the
    /// first time, so a retry after a lost answer publishes nothing twice.
    async fn post(&mut self, batch: &[Record]) -> Result<(), PostError> {
        self.requests += 1;
        let key = format!("{:016x}-{}", self.run, self.requests);
        let (content_type, text) = encode(batch);
        self.backoff.succeeded();
        loop {
            let started = Instant::now();
            let outcome = self.attempt(&key, content_type, text.clone(), batch.len()).await;
            let last = match outcome {
                Ok(()) => {
                    self.stats.sent += batch.len() as u64;
                    self.stats.round_trip = Some(started.elapsed());
                    return Ok(());
                }
                Err(Failure::Refused(problem)) => return Err(PostError::Refused(problem)),
                Err(Failure::Again(why)) => why,
            };
            if self.backoff.attempts() + 1 >= ATTEMPTS_MAX {
                return Err(PostError::GaveUp { attempts: ATTEMPTS_MAX, last });
            }
            self.stats.retries += 1;
            tokio::time::sleep(self.backoff.next_wait()).await;
        }
    }

    async fn attempt(&self, key: &str, content_type: &str, text: String, count: usize) -> Result<(), Failure> {
        let Target::Http(server, client) = &self.to else { unreachable!("only HTTP is attempted") };
        let request = client
            .post(server.http("/rest/input"))
            .header("Content-Type", content_type)
            .header("Idempotency-Key", key)
            .body(text);
        let response = request.send().await.map_err(|error| Failure::Again(cause(&error)))?;
        let status = response.status();
        let answer = body(response).await.map_err(Failure::Again)?;
        if !status.is_success() {
            return Err(Problem::of(status.as_u16(), &answer).into());
        }
        if count == 1 { Ok(()) } else { decode(&answer, count) }
    }
}

#[derive(Debug)]
enum Failure {
    Again(String),
    Refused(Problem),
}

impl From<Problem> for Failure {
    fn from(problem: Problem) -> Self {
        if problem.retry { Self::Again(problem.to_string()) } else { Self::Refused(problem) }
    }
}

async fn udp(address: &str) -> Result<UdpSocket, PostError> {
    let wrong = |error: std::io::Error| PostError::Address(format!("udp://{address}: {error}"));
    let to = tokio::net::lookup_host(address).await.map_err(wrong)?.next();
    let to = to.ok_or_else(|| PostError::Address(format!("udp://{address}: no such host")))?;
    let from = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(from).await?;
    socket.connect(to).await?;
    Ok(socket)
}

fn client() -> Result<reqwest::Client, PostError> {
    let client = reqwest::Client::builder().no_proxy().tcp_nodelay(true).timeout(ANSWER_TIME).build();
    client.map_err(|error| PostError::Address(cause(&error)))
}

/// Cuts records so that no batch has two of one car: of two lines the first might be tried again after the second arrived.
fn batches(records: &[Record]) -> Vec<&[Record]> {
    let mut batches = Vec::new();
    let mut start = 0;
    let mut cars = std::collections::HashSet::new();
    for (index, record) in records.iter().enumerate() {
        if index - start == BATCH_MAX || !cars.insert(record.car_id) {
            batches.push(&records[start..index]);
            start = index;
            cars.clear();
            cars.insert(record.car_id);
        }
    }
    if start < records.len() {
        batches.push(&records[start..]);
    }
    batches
}

fn json(record: &Record) -> String {
    serde_json::to_string(record).expect("a record is JSON")
}

fn encode(batch: &[Record]) -> (&'static str, String) {
    match batch {
        [one] => ("application/json", json(one)),
        many => ("application/x-ndjson", many.iter().map(|record| json(record) + "\n").collect()),
    }
}

/// `{"results": [{"position"} | {"error": {..}}]}`, one per record. One line to try again makes the whole batch try again.
fn decode(answer: &[u8], count: usize) -> Result<(), Failure> {
    #[derive(Deserialize)]
    struct Answer {
        results: Vec<Line>,
    }
    #[derive(Deserialize)]
    struct Line {
        error: Option<Problem>,
    }
    let answer: Answer =
        serde_json::from_slice(answer).map_err(|error| Failure::Again(format!("not an answer: {error}")))?;
    if answer.results.len() != count {
        return Err(Failure::Again(format!("{} results for {count} records", answer.results.len())));
    }
    let mut errors: Vec<Problem> = answer.results.into_iter().filter_map(|line| line.error).collect();
    errors.sort_by_key(|problem| problem.retry);
    errors.into_iter().next().map_or(Ok(()), |problem| Err(problem.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(car_id: u32, seq: u64) -> Record {
        Record {
            car_id,
            timestamp: 1,
            gps_latitude: 47.5,
            gps_longitude: 19.1,
            speed: 0.0,
            rpm: 820,
            coolant_temperature: 20,
            heading: None,
            gear: None,
            seq: Some(seq),
            event: None,
            code: None,
        }
    }

    #[test]
    fn no_batch_has_a_car_twice_and_order_is_kept() {
        let records: Vec<Record> = (0..1300).map(|i| record(i % 600 + 1, u64::from(i))).collect();
        let batches = batches(&records);
        assert_eq!(batches.iter().map(|b| b.len()).collect::<Vec<_>>(), [500, 100 + 400, 200 + 100]);
        assert_eq!(batches.concat(), records);
        assert_eq!(super::batches(&[record(1, 1), record(1, 2)]).len(), 2);
        assert!(super::batches(&[]).is_empty());
    }

    #[test]
    fn one_record_is_json_and_many_are_lines() {
        assert_eq!(encode(&[record(1, 1)]).0, "application/json");
        let (content_type, text) = encode(&[record(1, 1), record(2, 1)]);
        assert_eq!(content_type, "application/x-ndjson");
        let ids: Vec<u32> =
            text.lines().map(|line| serde_json::from_str::<Record>(line).expect("a record").car_id).collect();
        assert_eq!(ids, [1, 2]);
        assert!(encode(&[record(u32::MAX, u64::MAX)]).1.len() < 1472, "a record fits a datagram");
    }

    #[test]
    fn an_answer_is_read_line_by_line() {
        assert!(decode(br#"{"results":[{"position":"a:1"},{"position":"a:2"}]}"#, 2).is_ok());
        assert!(matches!(decode(br#"{"results":[{"position":"a:1"}]}"#, 2), Err(Failure::Again(_))));
        assert!(matches!(decode(b"<html>", 1), Err(Failure::Again(_))));
        let busy = r#"{"error":{"code":"unavailable","detail":"","retry":true}}"#;
        let wrong = r#"{"error":{"code":"bad_json","detail":"no","retry":false}}"#;
        let answer = |lines: &[&str]| decode(format!(r#"{{"results":[{}]}}"#, lines.join(",")).as_bytes(), lines.len());
        assert!(matches!(answer(&[busy, r#"{"position":"a:1"}"#]), Err(Failure::Again(_))));
        assert!(matches!(answer(&[busy, wrong]), Err(Failure::Refused(p)) if p.code == "bad_json"));
    }
}
